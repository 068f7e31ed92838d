"""Checkpoints: a run that was killed goes on and ends with the numbers of one that was not.

Beside `<run>.h5` a folder `<run>.ckpt` holds the last two, `round-000012` after 12 rounds: `state.json` and the tensors
in `tensors-<n>.safetensors`. A checkpoint is written under another name, forced to the disk and then renamed, so that
one with the right name is complete; `state.json` carries a format version, what the run is (settings, code, data set,
repeat ...), the sha256 of every other file and its own.
What of a run is kept is in run_state.py.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError

from flcore.utils import interrupt
from flcore.utils.errors import RunError, UsageError
from flcore.utils.runs.files import sync_folder, write_bytes
from flcore.utils.runs.record import checkpoint_folder
from flcore.utils.runs.run_state import Reader, UnusableError, capture, restore

FORMAT = 1
STATE = "state.json"
# in the order in which a difference is told
IDENTITY = ("algorithm", "dataset", "num_clients", "repeat", "settings_digest", "code_digest", "torch")


class Checkpoints:
    """The checkpoints of one run.

    Args:
        h5: the run's result file.
        info: what it is, see `IDENTITY`; further entries do not matter.
        every: rounds between two checkpoints; 0: none.
        resume: go on from the latest usable one.
        say: takes lines for the user.
        keep: write one after the last round, too.
        source: the result file of the run whose checkpoints are resumed; None: this run's own.
    """

    def __init__(
        self,
        h5: Path,
        info: Mapping[str, Any],
        every: int,
        resume: bool,
        say: Callable[[str], object] = print,
        keep: bool = False,
        source: Path | None = None,
    ) -> None:
        self.folder, self.source = checkpoint_folder(h5), checkpoint_folder(source or h5)
        self.keep = keep
        self.identity = {name: info.get(name) for name in IDENTITY} | {"torch": str(torch.__version__)}
        self.every, self.resume, self.say = every, resume, say
        self.latest: int | None = None  # rounds in the newest one known to be good

    def check(self, server: Any) -> None:
        """Refuses what cannot be resumed: PFLlib-style servers that bring their own loop."""
        if server.own_loop and (self.every or self.resume or self.keep):
            raise UsageError(
                f"--checkpoint_every, --keep_checkpoint and --resume do not work with {server.algorithm}: it brings "
                "its own loop or local training, whose state is not known; leave them out"
            )

    def begin(self, server: Any) -> int:
        """Restores the latest usable checkpoint; returns the number of rounds that are done.

        Raises:
            RunError: there are checkpoints, but none can be used.
        """
        if self.every:
            interrupt.wait_for("this round is done and a checkpoint written")
        if not self.resume:
            self.remove()  # of the run that this one replaces
            return 0
        found = self.rounds()
        for done in reversed(found):
            try:
                self._load(server, self.source / _name(done), done)
            except UnusableError as why:
                self.say(f"checkpoint {self.source / _name(done)} is not used: {why}")
                continue
            self.latest = done
            self.say(f"resumed after {done} rounds from {self.source / _name(done)}")
            return done
        if found:
            raise RunError(f"no checkpoint in {self.source} can be used; without --resume the run starts anew")
        self.say("--resume: there is no checkpoint of this run, so it starts from the beginning")
        return 0

    def round_done(self, server: Any, done: int) -> None:
        """Between two rounds, `done` of them finished: writes a checkpoint if it is time for one, or for the end."""
        asked = bool(self.every) and interrupt.asked()
        last = self.keep and (done == server.global_rounds or server.recorder.stopped)
        if asked or last or (self.every and done % self.every == 0):
            self._save(server, done)
        if asked:
            raise KeyboardInterrupt

    def rounds(self) -> list[int]:
        """Rounds after which there is a checkpoint, whatever its state."""
        names = (re.fullmatch(r"round-(\d{1,9})", path.name) for path in self.source.glob("round-*"))
        return sorted(int(name[1]) for name in names if name)

    def remove(self) -> None:
        """Removes all of them, as a finished run does."""
        shutil.rmtree(self.folder, ignore_errors=True)

    # ---- writing -------------------------------------------------------------------------------------------------

    def _save(self, server: Any, done: int) -> None:
        path, temporary = self.folder / _name(done), self.folder / f".writing-{os.getpid()}"
        try:
            shutil.rmtree(temporary, ignore_errors=True)
            temporary.mkdir(parents=True)
            state = {"format": FORMAT, "round": done, "identity": self.identity} | capture(server, temporary)
            text = _canonical(state)
            content = {"digest": hashlib.sha256(text.encode()).hexdigest(), "state": state}
            write_bytes(temporary / STATE, json.dumps(content).encode(), sync=True)
            sync_folder(temporary)
            if path.exists():  # refused at the start of this run
                path.rename(self.folder / f".refused-{os.getpid()}-{done}")
            temporary.rename(path)
            sync_folder(self.folder)
            sync_folder(self.folder.parent)
        except OSError as error:
            shutil.rmtree(temporary, ignore_errors=True)
            kept = "none was written before" if self.latest is None else f"the one of round {self.latest} is whole"
            raise RunError(
                f"checkpoint {path} cannot be written: {error.strerror or error}; {kept}. "
                "Make room or the folder writable, then go on with --resume"
            ) from None
        for other in self.folder.iterdir():
            if other not in (path, self.folder / _name(-1 if self.latest is None else self.latest)):
                shutil.rmtree(other, ignore_errors=True)
        self.latest = done

    # ---- reading -------------------------------------------------------------------------------------------------

    def _load(self, server: Any, folder: Path, done: int) -> None:
        try:
            content = json.loads((folder / STATE).read_bytes())
            state = content["state"]
            if state["format"] != FORMAT:
                raise UnusableError(f"its format is {state['format']}, this program reads {FORMAT}")
            if hashlib.sha256(_canonical(state).encode()).hexdigest() != content["digest"]:
                raise UnusableError(f"{STATE} is damaged (its digest differs)")
            for name in IDENTITY:
                if state["identity"].get(name) != self.identity[name]:
                    raise UnusableError(f"it belongs to another run ({_difference(name, state['identity'].get(name))})")
            if state["round"] != done:
                raise UnusableError(f"it was written after round {state['round']}")
            reader = Reader(folder, state["files"], state["common_files"], server.device)
            restore(server, state, reader)
        except OSError as error:
            raise UnusableError(f"{error.strerror or error} ({Path(error.filename or folder).name})") from None
        except (
            ValueError, TypeError, KeyError, IndexError, AttributeError, RuntimeError, RecursionError, SafetensorError
        ) as error:  # fmt: skip
            raise UnusableError(f"its content is not a run's state ({type(error).__name__})") from None


def _name(done: int) -> str:
    return f"round-{done:06d}"


def _canonical(state: Any) -> str:
    return json.dumps(state, sort_keys=True)


def _difference(name: str, value: Any) -> str:
    words = {
        "settings_digest": "other settings",
        "code_digest": "other code",
        "num_clients": f"{value} clients",
    }
    return words.get(name, f"{name} {value}")
