"""Checkpoints: a run that was killed goes on and ends with the numbers of one that was not.

Beside `<run>.h5` a folder `<run>.ckpt` holds the last two, `round-000012` after 12 rounds: `state.json` and the tensors
in `tensors-<n>.safetensors`. A checkpoint is written under another name, forced to the disk and then renamed, so that
one with the right name is complete; `state.json` carries a format version, what the run is (settings, code, data set,
repeat ...), the sha256 of every other file and its own.

The classes of servers and clients name in `remembers` the attributes that last from round to round. A value may be
None, a number, a string, an array, a tensor, a module, an optimizer, or a list, tuple or dict of such. What a round
sets before it reads it is not kept. Random draws need nothing, since their generators are keyed by the round
(utils/seeds.py); only torch's global generators, from which a model's dropout draws, are kept.
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

import numpy as np
import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from flcore.utils import interrupt
from flcore.utils.errors import RunError, UsageError
from flcore.utils.result_utils import checkpoint_folder
from flcore.utils.tensor_files import identity, pack, read_tensors, unpack, write_bytes, write_tensors

FORMAT = 1
PIECE = 64 * 2**20  # bytes of tensors in one file, and so in memory beside the run's own
STATE = "state.json"
# in the order in which a difference is told
IDENTITY = ("algorithm", "dataset", "num_clients", "repeat", "settings_digest", "code_digest", "torch")
PLAIN = (type(None), bool, int, float, str)


class UnusableError(Exception):
    """Why a checkpoint cannot be used, in words that follow its name."""


class Checkpoints:
    """The checkpoints of one run.

    Args:
        h5: the run's result file.
        info: what it is, see `IDENTITY`; further entries do not matter.
        every: rounds between two checkpoints; 0: none.
        resume: go on from the latest usable one.
        say: takes lines for the user.
    """

    def __init__(
        self, h5: Path, info: Mapping[str, Any], every: int, resume: bool, say: Callable[[str], object] = print
    ) -> None:
        self.folder = checkpoint_folder(h5)
        self.identity = {name: info.get(name) for name in IDENTITY} | {"torch": str(torch.__version__)}
        self.every, self.resume, self.say = every, resume, say
        self.latest: int | None = None  # rounds in the newest one known to be good

    def check(self, server: Any) -> None:
        """Refuses what cannot be resumed: PFLlib-style servers and clients that bring their own loop or training."""
        foreign = server.has_own_loop() or not all(client.has_rule() for client in server.clients)
        if foreign and (self.every or self.resume):
            raise UsageError(
                f"--checkpoint_every and --resume do not work with {server.algorithm}: it brings its own loop or local "
                "training, whose state is not known; leave them out"
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
                self._load(server, done)
            except UnusableError as why:
                self.say(f"checkpoint {self._path(done)} is not used: {why}")
                continue
            self.latest = done
            self.say(f"resumed after {done} rounds from {self._path(done)}")
            return done
        if found:
            raise RunError(f"no checkpoint in {self.folder} can be used; without --resume the run starts anew")
        self.say("--resume: there is no checkpoint of this run, so it starts from the beginning")
        return 0

    def round_done(self, server: Any, done: int) -> None:
        """Between two rounds, `done` of them finished: writes a checkpoint if it is time for one, or for the end."""
        asked = interrupt.asked()
        if self.every and (done % self.every == 0 or asked):
            self._save(server, done)
            if asked:
                raise KeyboardInterrupt

    def rounds(self) -> list[int]:
        """Rounds after which there is a checkpoint, whatever its state."""
        names = (re.fullmatch(r"round-(\d{1,9})", path.name) for path in self.folder.glob("round-*"))
        return sorted(int(name[1]) for name in names if name)

    def remove(self) -> None:
        """Removes all of them, as a finished run does."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def _path(self, done: int) -> Path:
        return self.folder / f"round-{done:06d}"

    # ---- writing -------------------------------------------------------------------------------------------------

    def _save(self, server: Any, done: int) -> None:
        path, temporary = self._path(done), self.folder / f".writing-{os.getpid()}"
        try:
            shutil.rmtree(temporary, ignore_errors=True)
            temporary.mkdir(parents=True)
            state = {"format": FORMAT, "round": done, "identity": self.identity} | _capture(server, temporary)
            text = _canonical(state)
            content = {"digest": hashlib.sha256(text.encode()).hexdigest(), "state": state}
            write_bytes(temporary / STATE, json.dumps(content).encode(), sync=True)
            _sync_folder(temporary)
            if path.exists():  # refused at the start of this run
                path.rename(self.folder / f".refused-{os.getpid()}-{done}")
            temporary.rename(path)
            _sync_folder(self.folder)
            _sync_folder(self.folder.parent)
        except OSError as error:
            shutil.rmtree(temporary, ignore_errors=True)
            kept = "none was written before" if self.latest is None else f"the one of round {self.latest} is whole"
            raise RunError(
                f"checkpoint {path} cannot be written: {error.strerror or error}; {kept}. "
                "Make room or the folder writable, then go on with --resume"
            ) from None
        for other in self.folder.iterdir():
            if other not in (path, self._path(-1 if self.latest is None else self.latest)):
                shutil.rmtree(other, ignore_errors=True)
        self.latest = done

    # ---- reading -------------------------------------------------------------------------------------------------

    def _load(self, server: Any, done: int) -> None:
        folder = self._path(done)
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
            reader = _Reader(folder, state["files"], state["common_files"], server.device)
            _restore(server, state, reader)
        except OSError as error:
            raise UnusableError(f"{error.strerror or error} ({Path(error.filename or folder).name})") from None
        except (
            ValueError, TypeError, KeyError, IndexError, AttributeError, RuntimeError, RecursionError, SafetensorError
        ) as error:  # fmt: skip
            raise UnusableError(f"its content is not a run's state ({type(error).__name__})") from None


def _canonical(state: Any) -> str:
    return json.dumps(state, sort_keys=True)


def _difference(name: str, value: Any) -> str:
    words = {
        "settings_digest": "other settings",
        "code_digest": "other code",
        "num_clients": f"{value} clients",
    }
    return words.get(name, f"{name} {value}")


def _sync_folder(folder: Path) -> None:
    if os.name == "posix":
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


# ---------------------------------------------------------------------------------------------- a run's state


def remembered(owner: Any) -> list[str]:
    """The names that the classes of a server or a client declare in `remembers`, the base class first."""
    declared = (vars(one).get("remembers", ()) for one in reversed(type(owner).__mro__))
    return [name for names in declared for name in names]


def _capture(server: Any, folder: Path) -> dict[str, Any]:
    """The state as JSON; its tensors are written to files in `folder`."""
    writer = _Writer(folder)
    shared = {id(client.shared): client.shared for client in server.clients}  # one message for all, as a rule
    numbers = {key: number for number, key in enumerate(shared)}
    state: dict[str, Any] = {
        "server": {name: writer.encode(getattr(server, name)) for name in remembered(server)},
        "messages": [writer.encode(message) for message in shared.values()],
        "random": writer.encode(_random_states(server.device)),
    }
    state["common_files"] = writer.end_of_common()
    state["clients"] = [
        {name: writer.encode(getattr(client, name)) for name in remembered(client)}
        | {"shared": numbers[id(client.shared)]}
        for client in server.clients
    ]
    writer.flush()
    return state | {"files": writer.files}


def _restore(server: Any, state: Mapping[str, Any], reader: _Reader) -> None:
    """Sets what `_capture` read. If it turns out wrong half-way, the next one overwrites it, or the run ends."""
    for name in remembered(server):
        _set(server, name, reader.decode(state["server"][name]))
    messages = [reader.decode(message) for message in state["messages"]]
    random = reader.decode(state["random"])
    for client, saved in zip(server.clients, state["clients"], strict=True):
        for name in remembered(client):
            _set(client, name, reader.decode(saved[name]))
        client.shared = messages[saved["shared"]]
    _set_random_states(random, server.device)


def _random_states(device: torch.device) -> list[Tensor]:
    """The states of torch's global generators: the CPU's, and that of a CUDA device, where dropout draws by itself."""
    return [torch.get_rng_state(), *([torch.cuda.get_rng_state(device)] if device.type == "cuda" else [])]


def _set_random_states(states: list[Tensor], device: torch.device) -> None:
    torch.set_rng_state(states[0])
    if device.type == "cuda":
        torch.cuda.set_rng_state(states[1], device)


def _set(owner: Any, name: str, value: Any) -> None:
    """Module, optimizer and parameter take over the value, anything else is replaced by it."""
    present = getattr(owner, name)
    if isinstance(present, (nn.Module, torch.optim.Optimizer)):
        present.load_state_dict(value)
    elif isinstance(present, nn.Parameter):
        with torch.no_grad():
            present.copy_(value)
    elif _layout(present) not in (None, _layout(value)):
        raise UnusableError(f"its {name} have other names or shapes than this run's")
    else:
        setattr(owner, name, value)


def _layout(value: Any) -> Any:
    """Names and shapes of a dict of tensors; None for anything else, and for one that is still empty."""
    if isinstance(value, dict) and value and all(isinstance(item, Tensor) for item in value.values()):
        return {name: item.shape for name, item in value.items()}
    return None


class _Writer:
    """Turns values into JSON and puts their tensors into files; a tensor that occurs often is written once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.files: list[dict[str, Any]] = []  # digest, and number of the first tensor
        self._count = self._first = self._size = 0
        self._pending: dict[str, Tensor] = {}
        # The tensors themselves are kept beside their numbers: memory that is freed may be used again.
        self._known: dict[Any, tuple[Tensor, Any]] = {}
        self._common: dict[Any, tuple[Tensor, Any]] | None = None

    def encode(self, value: Any) -> Any:
        if isinstance(value, PLAIN):
            return value
        if isinstance(value, np.generic):
            return value.item()
        if isinstance(value, Tensor):
            return self._tensor(value)
        if isinstance(value, np.ndarray):
            return {"array": self._tensor(torch.from_numpy(value.copy()))}
        if isinstance(value, (nn.Module, torch.optim.Optimizer)):
            return self.encode(value.state_dict())
        if isinstance(value, Mapping):
            return {"dict": [[self.encode(key), self.encode(item)] for key, item in value.items()]}
        if isinstance(value, list) and _are_rows(value):
            return {"rows": self._tensor(torch.from_numpy(np.stack(value)))}
        if isinstance(value, (list, tuple)):
            return {type(value).__name__: [self.encode(item) for item in value]}
        raise RunError(f"a checkpoint cannot hold a {type(value).__name__}")

    def _tensor(self, tensor: Tensor) -> dict[str, Any]:
        known = self._known.get(identity(tensor))
        if known:
            return known[1]  # type: ignore[no-any-return]
        stored, order = pack(tensor)
        encoded: dict[str, Any] = {"cpu" if tensor.device.type == "cpu" else "tensor": self._count}
        if order is not None:
            encoded["order"] = order
        self._pending[str(self._count)] = stored
        self._count += 1
        self._known[identity(tensor)] = tensor, encoded
        self._size += stored.nbytes
        if self._size >= PIECE:
            self.flush()
        return encoded

    def flush(self) -> None:
        if self._pending:
            path = self.folder / _piece(len(self.files))
            self.files.append({"sha256": write_tensors(path, self._pending, sync=True), "first": self._first})
        self._pending, self._size, self._first = {}, 0, self._count
        if self._common is not None:
            self._known = dict(self._common)

    def end_of_common(self) -> int:
        """What was encoded so far stays known; returns the number of files that hold it."""
        self._common = dict(self._known)
        self.flush()
        return len(self.files)


class _Reader:
    """The opposite of `_Writer`. All files are checked at once; in memory are the common ones and one other.

    Args:
        folder, files, common: as written.
        device: where the tensors belong.
    """

    def __init__(self, folder: Path, files: list[dict[str, Any]], common: int, device: Any) -> None:
        self.folder, self.files, self.common, self.device = folder, files, common, device
        self._open: dict[int, dict[int, Tensor]] = {}
        self._stored: dict[str, Tensor] = {}  # of the file opened last, before somebody asked for them
        for number, file in enumerate(files):
            if hashlib.sha256((folder / _piece(number)).read_bytes()).hexdigest() != file["sha256"]:
                raise UnusableError(f"{_piece(number)} is damaged (its digest differs)")

    def decode(self, value: Any) -> Any:
        if isinstance(value, PLAIN):
            return value
        for kind, device in (("cpu", "cpu"), ("tensor", self.device)):
            if kind in value:
                return self._tensor(value[kind], value.get("order"), device)
        [(kind, content)] = value.items()
        if kind == "dict":
            return {self.decode(key): self.decode(item) for key, item in content}
        if kind in ("list", "tuple"):
            items = [self.decode(item) for item in content]
            return items if kind == "list" else tuple(items)
        array = self.decode(content).numpy()
        return list(array) if kind == "rows" else array

    def _tensor(self, number: int, order: list[int] | None, device: Any) -> Tensor:
        piece = max(i for i, file in enumerate(self.files) if file["first"] <= number)
        if piece not in self._open:
            self._open = {i: tensors for i, tensors in self._open.items() if i < self.common}
            self._open[piece] = {}
            self._stored = read_tensors((self.folder / _piece(piece)).read_bytes())
        tensors = self._open[piece]
        if number not in tensors:  # all its owners share one object
            tensors[number] = unpack(self._stored.pop(str(number)).to(device), order)
        return tensors[number]


def _are_rows(values: list[Any]) -> bool:
    """Whether they can be one array: at least one, all arrays of one type and shape."""
    kinds = {(value.dtype, value.shape) if isinstance(value, np.ndarray) else None for value in values}
    return len(kinds) == 1 and None not in kinds


def _piece(number: int) -> str:
    return f"tensors-{number}.safetensors"
