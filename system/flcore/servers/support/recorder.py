"""What a run leaves: records, the result file, the model file, a line a round, a summary."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from flcore.clients.support.items import load_item, save_item
from flcore.utils.runs.files import write_h5

CURVES = ("rs_test_acc", "rs_test_auc", "rs_train_loss")  # PFLlib's lists


class Recorder:
    """Keeps a server's records in its files and tells them to its observers."""

    def __init__(self, server: Any) -> None:
        self.server = server
        self.progress = tqdm(disable=True)

    def add(self, **values: Any) -> None:
        """Adds one value to each of the named lists of records."""
        for name, value in values.items():
            self.server.records.setdefault(name, []).append(value)

    # ---- rounds ------------------------------------------------------------------------------------------------------

    def begin(self, done: int) -> None:
        """Training begins, or goes on after ``done`` rounds: one live line, on a terminal."""
        server = self.server
        self.progress = tqdm(
            total=server.global_rounds, initial=done, desc=server.algorithm, unit="round", disable=None, leave=False
        )

    def client_done(self, number: int, participants: int) -> None:
        """``number`` of the round's participants have trained."""
        self.progress.set_postfix_str(f"client {number}/{participants}")

    def round_done(self) -> bool:
        """Records a round that was trained and aggregated; True if an observer wants no other."""
        server, uploads = self.server, self.server.round_uploads
        self.add(
            rs_bytes_up=server.bytes_up,
            rs_seconds=server.Budget[-1],
            rs_simulated_seconds=uploads.seconds,
            rs_left_out=len(uploads.left_out),
            rs_late=len(uploads.late),
        )
        for i in sorted(uploads.left_out):
            self.add(rs_left_out_clients=(server.current_round, i))
        self.progress.update()
        record = self.round_record()
        if "test_acc" in record:
            tqdm.write(self._line(record))
        self.save()
        wishes = [observer.on_round(record) for observer in server.observers]  # each hears of it
        return any(wishes)

    def round_record(self) -> dict[str, Any]:
        """The numbers of the round that was trained last, under their names in the result file without ``rs_``.

        Those of an evaluation are missing in a round without one (``-eg``).
        """
        server = self.server
        names = ["bytes_down", "bytes_up", "seconds", "simulated_seconds", "left_out", "late"]
        if server.current_round % server.eval_gap == 0:
            names += ["test_acc", "test_auc", "train_loss", "test_acc_after", "test_mean", "test_std"]
            names += ["worst_decile", "best_decile", "forgetting"]
        lists = {name: getattr(server, name) for name in CURVES} | server.records
        return {"round": server.current_round} | {name: lists[f"rs_{name}"][-1] for name in names}

    def _line(self, record: dict[str, Any]) -> str:
        """The round in words."""
        server = self.server
        line = (
            f"round {record['round']:>4}/{server.global_rounds}"
            f" | A {record['test_acc']:.4f} ± {record['test_std']:.4f}"
            f" | B {record['test_acc_after']:.4f} | train loss {shown(record['train_loss'])}"
            f" | {(record['bytes_down'] + record['bytes_up']) / 1e6:.2f} MB | {record['seconds']:.1f} s"
        )
        if server.participation.shows_time():
            line += f" | simulated {record['simulated_seconds']:.1f} s, {record['late']} late"
        return line

    def summary(self) -> None:
        """The run's numbers, in PFLlib's words where it has some."""
        server, records = self.server, self.server.records
        self.progress.close()
        best = int(np.nanargmax(server.rs_test_acc))
        print(f"\nAfter round {server.current_round}: A {server.rs_test_acc[-1]:.4f}")
        print(f"\nBest accuracy.\n{server.rs_test_acc[best]}")
        print(f"(at round {records['rs_round'][best]}; selected on the test set)")
        if server.Budget:
            print(f"\nAverage time cost per round.\n{sum(server.Budget) / len(server.Budget)}")
        if server.participation.shows_time():
            print(f"\nSimulated time of all rounds: {sum(records.get('rs_simulated_seconds', ())):.1f} s")
        if number := sum(records.get("rs_left_out", ())):
            print(f"\n{number} uploads were left out: not finite, or not as they must be")

    # ---- files -------------------------------------------------------------------------------------------------------

    @property
    def path(self) -> Path | None:
        """The run's .h5 file; None: nothing is written."""
        found = getattr(self.server.args, "result_path", None)
        return found and Path(found)

    def save(self) -> None:
        """Writes everything recorded so far to the run's .h5 file, complete or not at all."""
        if self.path:
            write_h5(self.path, {name: getattr(self.server, name) for name in CURVES} | self.server.records)

    @property
    def model_path(self) -> Path:
        """Beside the result file, so that no other run's model is overwritten; PFLlib's place without one."""
        server = self.server
        pfllibs = Path("models") / str(server.dataset) / f"{server.algorithm}_server.pt"
        return self.path.with_suffix(".pt") if self.path else pfllibs

    def save_model(self) -> None:
        """Saves what the clients got last (shared weights, prototypes); what stays at the clients is not in it.

        From the CPU, so that a machine without this run's device reads it.
        """
        if message := self.server.final_message():
            save_item({name: value.cpu() for name, value in message.items()}, self.model_path)

    def load_model(self) -> None:
        """Replaces the server's weights by those of the model file."""
        loaded, own = load_item(self.model_path, self.server.device), self.server.global_params
        self.server.global_params = own | {name: value for name, value in loaded.items() if name in own}


def shown(value: float) -> str:
    """A number for people; nan, as of a mean over nothing, is undefined."""
    return "undefined" if np.isnan(value) else f"{value:.4f}"
