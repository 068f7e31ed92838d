"""What watches a run: the lines and the bar on a terminal, and whatever a user wants to know of every round."""

from __future__ import annotations

import logging
import shutil
import sys
import time
from typing import Any

import numpy as np
from tqdm import tqdm

from flcore.context import RunContext
from flcore.result import Repeat, Result
from flcore.utils.errors import SHOWN
from flcore.utils.records import row, shown
from flcore.utils.runs.read import best_lines, read_accuracies

log = logging.getLogger(SHOWN)


class Observer:
    """Hears of every repeat of an experiment: `Experiment(...).run(observers=[...])`. Override what is of interest.

    A PFLlib-style server with a round loop of its own tells nothing between a repeat's start and its end.
    """

    def on_start(self, context: RunContext) -> None:
        """A repeat begins, or goes on after a checkpoint."""

    def on_training(self, clients: list[Any]) -> None:
        """These participants have got the round's message and are about to train; in a large round some at a time."""

    def on_client(self, number: int, participants: int) -> None:
        """``number`` of the round's participants have trained."""

    def on_round(self, record: dict[str, Any]) -> bool | None:
        """A round is done; True ends the training: the last model is only sent out and scored.

        record: the round's number and what was measured, by the names in the result file without ``rs_``, such as
        ``test_acc`` and ``train_loss``; those of an evaluation are missing in a round without one (``eval_gap``).
        """
        return None

    def on_end(self, repeat: Repeat) -> None:
        """The repeat has ended, in whatever way ``repeat.status`` says; every one that began comes here."""

    def on_result(self, result: Result) -> None:
        """All repeats are done."""


class Terminal(Observer):
    """What `main.py` prints: on a terminal one live line, elsewhere a line for every evaluated round; at the end a
    table and PFLlib's summary. A --log file gets all of it.

    Args:
        quiet: what comes at the end alone.
    """

    def __init__(self, quiet: bool = False) -> None:
        self.quiet, self.started, self.score = quiet, time.time(), ""
        self.bar = tqdm(disable=True)

    def say(self, text: str, shown: bool = True) -> None:
        """Prints lines above the bar, and notes them for --log."""
        if shown:
            tqdm.write(text, file=sys.stdout)
        log.info(text)

    def on_start(self, context: RunContext) -> None:
        self.context, self.first, self.score = context, True, ""
        columns, rows = shutil.get_terminal_size()  # also where the terminal tells none, or COLUMNS is no number
        self.bar = tqdm(
            total=context.global_rounds,
            desc=context.algorithm,
            unit="round",
            disable=self.quiet or None,  # None: unless it is a terminal
            leave=False,
            ncols=columns,
            nrows=rows,
        )
        self.lines = not self.quiet and not (sys.stdout.isatty() and sys.stderr.isatty())

    def on_client(self, number: int, participants: int) -> None:
        self.bar.set_postfix_str(f"{self.score}client {number}/{participants}")

    def on_round(self, record: dict[str, Any]) -> None:
        if self.first:  # of a run that goes on, it is not round 0
            self.first, self.bar.initial, self.bar.n = False, record["round"], record["round"]
        if "test_acc" in record:
            self.say(self.line(record), self.lines)
            self.score = f"A {record['test_acc']:.4f}, B {record['test_acc_after']:.4f}, "
        self.bar.update()

    def line(self, record: dict[str, Any]) -> str:
        """An evaluated round in words."""
        line = (
            f"round {record['round']:>4}/{self.context.global_rounds}"
            f" | A {record['test_acc']:.4f} ± {record['test_std']:.4f}"
            f" | B {record['test_acc_after']:.4f} | train loss {shown(record['train_loss'])}"
            f" | {(record['bytes_down'] + record['bytes_up']) / 1e6:.2f} MB | {record['seconds']:.1f} s"
        )
        if self.shows_time():
            line += f" | simulated {record['simulated_seconds']:.1f} s, {record['late']} late"
        return line

    def shows_time(self) -> bool:
        """Whether simulated time is of interest in this run."""
        context = self.context
        limited = context.time_select or "time_threthold" in context.given
        return bool(limited or context.train_slow_rate or context.send_slow_rate)

    def on_end(self, repeat: Repeat) -> None:
        self.bar.close()
        own_loop = self.context.method.server_class().own_loop  # PFLlib's servers print a summary of their own
        if repeat.status in ("finished", "stopped") and not own_loop:
            self.summary(repeat)

    def on_result(self, result: Result) -> None:
        last = result.repeats[-1]
        curves = [repeat.test_acc for repeat in result.repeats]
        if last.path:  # there may be earlier repeats
            info = last.info
            name = info["dataset"], info["algorithm"], info["goal"]
            curves = read_accuracies(last.path.parent, *name, last.repeat + 1)
        for line in best_lines(curves):
            self.say(line)
        self.say(f"total time {time.time() - self.started:.1f} s")

    def summary(self, repeat: Repeat) -> None:
        """The run's numbers as a table, and those that PFLlib prints in its words."""
        context, arrays, rounds = self.context, repeat.arrays, repeat.rounds
        last, best = int(rounds[-1]), int(np.nanargmax(repeat.test_acc))
        scores = row(arrays, last)
        scored: Any = arrays.get("rs_scored", ())
        rows = [
            (f"A: after the download, round {last}", shown(scores["test_acc"])),
            *([(f"   of {len(scored[0])} of {context.num_clients} clients", "")] if len(scored) else []),
            ("   std over the clients", shown(scores["test_std"])),
            ("   worst tenth of the clients", shown(scores["worst_decile"])),
            (f"   best, round {rounds[best]:.0f} (selected on the test set)", shown(repeat.test_acc[best])),
        ]
        if len(after := repeat.test_acc_after):
            rows.append((f"B: after training, round {rounds[len(after) - 1]:.0f}", shown(after[-1])))
        traffic = repeat.curve("rs_bytes_down").sum() + repeat.curve("rs_bytes_up").sum()
        rows.append(("MB down and up, all rounds", f"{traffic / 1e6:.2f}"))
        if self.shows_time():
            rows.append(("simulated seconds, all rounds", f"{repeat.curve('rs_simulated_seconds').sum():.1f}"))
        for name, words in (("rs_left_out", "left out: not finite, or not as they must be"), ("rs_lost", "lost: -cdr")):
            if number := int(repeat.curve(name).sum()):
                rows.append((f"uploads {words}", f"{number}"))
        moments = "after the download", f"after {context.fine_tuning_epoch_new} rounds of fine-tuning"
        for moment, accuracy in zip(moments, repeat.curve("rs_new_acc"), strict=False):
            rows.append((f"{context.num_new_clients} new clients {moment}", shown(accuracy)))
        width = max(len(words) for words, _ in rows)
        self.say("\n" + "\n".join(f"{words:<{width}}  {value:>10}" for words, value in rows))
        self.say(f"\nBest accuracy.\n{repeat.test_acc[best]}")
        if len(seconds := repeat.curve("rs_seconds")):
            self.say(f"\nAverage time cost per round.\n{seconds.mean()}\n")
