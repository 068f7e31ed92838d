"""Result files: their names, how they are written so that nothing is lost, how they are read back.

A run leaves `<dataset>_<algorithm>_<goal>_<repeat>.h5` (PFLlib's name and arrays, and ours) and beside it
`<same>.run.json`, which says how the arrays came about. Every file is written under another name and then renamed, so
that a reader never sees half of one.
"""

import argparse
import hashlib
import json
import math
import os
import platform
import re
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import ArrayLike, NDArray

from utils.errors import UsageError

try:
    import fcntl
except ImportError:  # Windows; there two runs started within the same instant may take one name
    fcntl = None  # type: ignore[assignment]

REPO = Path(__file__).resolve().parents[2]
RESULTS = REPO / "results"  # main sets it from --results_dir

PACKAGES = ("torch", "torchvision", "numpy", "scikit-learn", "h5py")
# What says where and how often to run, not what to compute: two runs that differ only here have the same settings.
NOT_SETTINGS = {"data_dir", "results_dir", "goal", "overwrite", "reuse", "times", "prev", "num_threads", "given"}


# ---------------------------------------------------------------------------------------------- writing


@contextmanager
def write_in_place(path: Path) -> Iterator[Path]:
    """A temporary name in the folder of `path`, renamed to `path` if the body succeeds and removed if it does not."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        yield temporary
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def write_h5(path: Path | str, arrays: Mapping[str, ArrayLike]) -> None:
    """Writes one data set per entry, float64 unless it holds integers, in one step."""
    with write_in_place(Path(path)) as temporary, h5py.File(temporary, "w") as file:
        for name, values in arrays.items():
            array = np.asarray(values)
            file.create_dataset(name, data=array if array.dtype.kind in "iu" else array.astype(np.float64))


def write_json(path: Path | str, content: Any) -> None:
    """Writes `content` as indented JSON, in one step."""
    with write_in_place(Path(path)) as temporary:
        temporary.write_text(json.dumps(content, indent=1) + "\n")


# ---------------------------------------------------------------------------------------------- what a run was


def _plain(value: Any) -> Any:
    """`value` as JSON can hold it; what has no short text, such as a model, becomes the name of its class."""
    if isinstance(value, (np.generic, np.ndarray)):
        value = value.tolist()
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)  # JSON has no word for it
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, (set, frozenset)):
        return sorted(_plain(item) for item in value)
    text = str(value)
    return text if len(text) < 200 and "\n" not in text else type(value).__name__


def run_settings(args: argparse.Namespace, data_digest: str | None) -> dict[str, Any]:
    """All that decides a run's numbers: every argument but those in NOT_SETTINGS, and the digest of the data."""
    arguments = {name: _plain(value) for name, value in sorted(vars(args).items()) if name not in NOT_SETTINGS}
    return arguments | {"data_digest": data_digest}


def settings_digest(settings: Mapping[str, Any]) -> str:
    """Hex digest of the settings, whatever their order."""
    return hashlib.sha256(json.dumps(_plain(settings), sort_keys=True).encode()).hexdigest()


def code_digest() -> str:
    """Hex digest of the framework's own code (system/**/*.py), also where there is no git."""
    code = hashlib.sha256()
    for path in sorted((REPO / "system").rglob("*.py")):
        code.update(f"{path.relative_to(REPO)}\0".encode() + path.read_bytes() + b"\0")
    return code.hexdigest()


def _git(*command: str) -> str | None:
    try:
        done = subprocess.run(["git", "-C", str(REPO), *command], capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def run_info(args: argparse.Namespace, extra: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """What run.json says of a run beside its settings and its state: arguments, versions, commit, platform, seed.

    `commit` and `dirty` are None outside a git checkout of this code. `extra` is added as it is: the point of
    evaluation, the data set's description, whatever else a reader should know.
    """
    ours = _git("rev-parse", "--show-toplevel") == str(REPO)  # and not a repository that this folder was copied into
    commit = _git("rev-parse", "HEAD") if ours else None
    changes = _git("status", "--porcelain", "--untracked-files=no") if commit else None
    info: dict[str, Any] = {
        "arguments": {name: _plain(value) for name, value in sorted(vars(args).items()) if name != "given"},
        "given": sorted(getattr(args, "given", ())),
        "seed": getattr(args, "seed", None),
        "versions": {"python": platform.python_version()} | {package: _version(package) for package in PACKAGES},
        "commit": commit,
        "dirty": None if changes is None else bool(changes),
        "platform": platform.platform(),
    }
    info.update(_plain(extra or {}))
    return info


# ---------------------------------------------------------------------------------------------- claiming a name


@dataclass
class RunFiles:
    """The two files of one run. `goal` is the name that was free; `reused`: there is a finished run of the same."""

    h5: Path
    json: Path
    goal: str
    reused: bool
    info: dict[str, Any] = field(repr=False)

    def update(self, **fields: Any) -> None:
        """Adds to run.json, or changes what it says."""
        self.info |= _plain(fields)
        write_json(self.json, self.info)

    def finish(self, status: str) -> None:
        """Notes the end of the run; `status` is finished, interrupted or failed."""
        self.update(status=status, end=_now(), wall_time_s=round(time.time() - self.info["start_time"], 3))


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _safe(name: str) -> str:
    """`name` as a part of a file name: letters, digits, dot, underscore, plus, minus."""
    return re.sub(r"[^\w.+-]+", "-", name).strip(".-") or "test"


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """One process at a time in the body. The lock ends with its process, so a crash leaves nothing behind."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle = open(folder / ".lock", "w")  # noqa: SIM115 (closed below)
    except OSError as error:
        raise UsageError(f"--results_dir {folder} cannot be written to: {error.strerror}") from None
    with handle:
        if fcntl:
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _read_info(path: Path) -> dict[str, Any]:
    """The content of a run.json; empty where there is none or it cannot be read."""
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _is_running(info: Mapping[str, Any]) -> bool:
    if info.get("status") != "running":
        return False
    if info.get("host") != socket.gethostname():
        return True  # a machine that shares the folder: it cannot be asked, so its run is left alone
    try:
        os.kill(info["pid"], 0)
    except (ProcessLookupError, KeyError, TypeError):
        return False
    except PermissionError:  # somebody else's process
        return True
    return True


def _goals(goal: str, digest: str) -> Iterator[str]:
    """The names to try: the user's own, then with the settings' digest, then numbered."""
    suffixed = goal if goal.endswith(f"-{digest[:6]}") else f"{goal}-{digest[:6]}"
    yield from dict.fromkeys((goal, suffixed))
    number = 2
    while True:
        yield f"{suffixed}-{number}"
        number += 1


def claim_run(
    results_dir: Path | str,
    dataset: str,
    algorithm: str,
    goal: str,
    repeat: int,
    settings: Mapping[str, Any],
    overwrite: bool = False,
    reuse: bool = False,
    say: Callable[[str], None] = print,
) -> RunFiles:
    """Takes a name for a run, so that it never destroys what other settings or a run still going wrote.

    The name with the user's goal is free if no repeat under it was made with other settings; otherwise the goal gets
    six digits of the settings' digest. A result of the same settings is replaced, or kept with `reuse` if it is
    finished and the code is still the same. A run that is still going is left alone, by a further suffix. `overwrite`
    replaces other settings' results too. Give the returned `goal` to the claims of a run's further repeats.

    Raises:
        UsageError: the folder cannot be written to.
    """
    folder, goal = Path(results_dir), _safe(goal)
    digest, code = settings_digest(settings), code_digest()

    def earlier(name: str) -> dict[int, dict[str, Any]]:
        """The run.json of every repeat with a file under this goal; empty for PFLlib's own files."""
        stem = f"{_safe(dataset)}_{_safe(algorithm)}_{name}_"
        found = (re.fullmatch(re.escape(stem) + r"(\d+)\.(h5|run\.json)", path.name) for path in folder.iterdir())
        return {int(match[1]): _read_info(folder / f"{stem}{match[1]}.run.json") for match in found if match}

    def is_free(name: str) -> bool:
        runs = earlier(name)
        alike = all(info.get("settings_digest") == digest for info in runs.values())
        return (alike or overwrite) and not _is_running(runs.get(repeat, {}))

    with _locked(folder):
        name = next(name for name in _goals(goal, digest) if is_free(name))
        previous = earlier(name).get(repeat)
        stem = folder / f"{_safe(dataset)}_{_safe(algorithm)}_{name}_{repeat}"
        files = RunFiles(Path(f"{stem}.h5"), Path(f"{stem}.run.json"), name, False, previous or {})
        same = files.info.get("settings_digest") == digest
        finished = files.info.get("status") == "finished" and files.h5.exists()
        if reuse and finished and same and files.info["code_digest"] == code:
            say(f"results: {files.h5} is finished with the same settings and is reused")
            files.reused = True
            return files
        if name != goal:
            say(f"results: the name '{goal}' belongs to another run; this one is named '{name}'")
        if previous is not None:
            say(f"results: {files.h5}, an earlier run with {'the same' if same else 'other'} settings, is replaced")
            files.h5.unlink(missing_ok=True)
        files.info = {}
        files.update(
            status="running",
            dataset=dataset,
            algorithm=algorithm,
            goal=name,
            repeat=repeat,
            settings=settings,
            settings_digest=digest,
            code_digest=code,
            pid=os.getpid(),
            host=socket.gethostname(),
            start=_now(),
            start_time=time.time(),
        )
        return files


# ---------------------------------------------------------------------------------------------- reading


@dataclass
class Run:
    """One result file: its arrays by name, and its run.json (empty for a file of PFLlib's own)."""

    path: Path
    arrays: dict[str, NDArray[Any]]
    info: dict[str, Any]
    dataset: str
    algorithm: str
    goal: str
    repeat: int

    @property
    def status(self) -> str:
        """finished, interrupted, failed or running; a run whose process is gone was interrupted. Empty if unknown."""
        status = str(self.info.get("status", ""))
        return "interrupted" if status == "running" and not _is_running(self.info) else status


def read_run(path: Path | str) -> Run:
    """Reads a result file and the run.json beside it.

    Raises:
        UsageError: the file is missing, damaged, or not named as a result.
    """
    path = Path(path)
    name = re.fullmatch(r"([^_]+)_([^_]+)_(.+)_(\d+)\.h5", path.name)
    info = _read_info(path.with_suffix(".run.json"))
    try:
        with h5py.File(path, "r") as file:
            arrays = {key: file[key][()] for key in file if isinstance(file[key], h5py.Dataset)}
    except FileNotFoundError:
        raise UsageError(f"there is no result file {path}") from None
    except (OSError, RuntimeError, KeyError, TypeError) as error:
        raise UsageError(f"{path} is not a readable result file ({error}); remove it and run again") from None
    if "algorithm" in info:
        return Run(path, arrays, info, info["dataset"], info["algorithm"], info["goal"], int(info["repeat"]))
    if not name:
        raise UsageError(f"{path} has no run.json and is not named <dataset>_<algorithm>_<goal>_<run>.h5")
    return Run(path, arrays, info, name[1], name[2], name[3], int(name[4]))


# ---------------------------------------------------------------------------------------------- PFLlib's functions


def average_data(algorithm: str = "", dataset: str = "", goal: str = "", times: int = 10) -> None:
    """Prints the mean and the population standard deviation over the repeats of each one's best test accuracy."""
    best = [np.nanmax(curve) for curve in get_all_results_for_one_algo(algorithm, dataset, goal, times) if len(curve)]
    print("std for best accuracy:", np.std(best) if best else float("nan"))
    print("mean for best accuracy:", np.mean(best) if best else float("nan"))


def get_all_results_for_one_algo(
    algorithm: str = "", dataset: str = "", goal: str = "", times: int = 10
) -> list[NDArray[np.float64]]:
    """The test accuracies over the rounds of repeats 0 to times-1, without those that have no result file.

    Raises:
        UsageError: no repeat has one.
    """
    names = [f"{dataset}_{algorithm}_{goal}_{repeat}" for repeat in range(times)]
    curves = [read_data_then_delete(name) for name in names if (RESULTS / f"{name}.h5").exists()]
    if not curves:
        raise UsageError(f"there is no result file {RESULTS / names[0]}.h5, nor of another of the {times} repeats")
    return curves


def read_data_then_delete(file_name: str, delete: bool = False) -> NDArray[np.float64]:
    """The test accuracies over the rounds in `<results>/<file_name>.h5`, which is removed if `delete`."""
    path = RESULTS / f"{file_name}.h5"
    curve = read_run(path).arrays.get("rs_test_acc", np.empty(0))
    if delete:
        path.unlink()
    print("Length: ", len(curve))
    return curve
