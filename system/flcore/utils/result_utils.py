"""Result files: their names, how they are written so that nothing is lost, how they are read back.

A run leaves `<dataset>_<algorithm>_<goal>_<repeat>.h5` (PFLlib's name and arrays, and ours) and beside it
`<same>.run.json`, which says how the arrays came about. Every file is written under another name and then renamed, so
that a reader never sees half of one.
"""

import argparse
import glob
import hashlib
import json
import math
import os
import platform
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import ArrayLike, NDArray

from flcore.utils.errors import RunError, UsageError
from flcore.utils.mem_utils import peak_memory
from flcore.utils.paths import REPO
from flcore.utils.safe_load import load_json, most_unpacked

try:
    import fcntl
except ImportError:  # Windows; there two runs started within the same instant may take one name
    fcntl = None  # type: ignore[assignment]


RESULTS = REPO / "results"  # main sets it from --results_dir

PACKAGES = ("torch", "torchvision", "numpy", "scikit-learn", "h5py")
# What says where and how often to run, not what to compute: two runs that differ only here have the same settings.
NOT_SETTINGS = {"data_dir", "results_dir", "goal", "overwrite", "reuse", "times", "prev", "num_threads", "given"}
NOT_SETTINGS |= {"executor", "stack_size", "state_dir", "state_cache", "checkpoint_every", "resume"}  # the same numbers

# In run.json always text; what a terminal would obey is not.
TEXTS = ("status", "dataset", "algorithm", "goal", "host", "settings_digest", "code_digest")

SILENCE = 6 * 3600  # seconds without a new file after which a run on another machine counts as dead


# ---------------------------------------------------------------------------------------------- writing


@contextmanager
def write_in_place(path: Path) -> Iterator[Path]:
    """A temporary name in the folder of `path`, renamed to `path` if the body succeeds and removed if it does not.

    Raises:
        RunError: the disk is full, or the folder cannot be written to; `path` is as it was.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield temporary
        os.replace(temporary, path)
    except OSError as error:
        raise RunError(f"{path} cannot be written ({error.strerror or error}); what was there is kept") from None
    finally:
        with suppress(OSError):
            temporary.unlink()


def write_h5(path: Path | str, arrays: Mapping[str, ArrayLike]) -> None:
    """Writes one data set per entry, float64 unless it holds integers, in one step.

    A model saved beside it (.pt) belongs to the arrays that are replaced, and goes with them.
    """
    with write_in_place(Path(path)) as temporary, h5py.File(temporary, "w") as file:
        for name, values in arrays.items():
            array = np.asarray(values)
            file.create_dataset(name, data=array if array.dtype.kind in "iu" else array.astype(np.float64))
    Path(path).with_suffix(".pt").unlink(missing_ok=True)


def write_json(path: Path | str, content: Any) -> None:
    """Writes `content` as indented JSON, in one step, and so that it survives a power failure."""
    with write_in_place(Path(path)) as temporary, open(temporary, "w") as file:
        file.write(json.dumps(content, indent=1) + "\n")
        file.flush()
        os.fsync(file.fileno())


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


def run_settings(args: argparse.Namespace, data_digest: str | None, ignored: Collection[str] = ()) -> dict[str, Any]:
    """All that decides a run's numbers: every argument but those in NOT_SETTINGS, and the digest of the data.

    ignored: further arguments to leave out, those without effect on the chosen algorithm.
    """
    left_out = NOT_SETTINGS.union(ignored)
    arguments = {name: _plain(value) for name, value in sorted(vars(args).items()) if name not in left_out}
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
    """The two files of one run, and the name of its folder of checkpoints. `goal` is the name that was free.

    `reused`: there is a finished run of the same. `resumed`: there is an unfinished one of the same settings.
    """

    h5: Path
    json: Path
    goal: str
    reused: bool
    info: dict[str, Any] = field(repr=False)
    earlier: dict[str, Any] = field(repr=False)  # the run.json of the result that this run replaces, if it does
    earlier_h5: list[int] | None  # and what tells that result's arrays from those that this run writes
    resumed: bool = False

    def update(self, **fields: Any) -> None:
        """Adds to run.json, or changes what it says."""
        self.info |= _plain(fields)
        write_json(self.json, self.info)

    def finish(self, status: str) -> None:
        """Notes the end of the run; `status` is finished, interrupted or failed.

        A run that ends before it has written anything leaves the result that it was to replace as it was.
        """
        self.info.pop("replaces", None)
        if self.earlier_h5 and self.earlier_h5 == _stamp(self.h5):
            if self.earlier:
                write_json(self.json, self.earlier)
            else:
                self.json.unlink()
            return
        wall_time = round(time.time() - self.info["start_time"], 3)
        self.update(status=status, end=_now(), wall_time_s=wall_time, peak_memory_bytes=peak_memory())

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Notes how the body ends, and tells the user what an interrupted run leaves."""
        status = "failed"
        try:
            yield
            status = "finished"
        except KeyboardInterrupt:
            status = "interrupted"
            kept = f"the rounds so far are in {self.h5}" if self.h5.exists() else "no result was written yet"
            more = "; the same command with --resume goes on" if checkpoint_folder(self.h5).exists() else ""
            print(f"interrupted; {kept}{more}", file=sys.stderr)
            raise
        finally:
            self.finish(status)
            if status != "finished" and not self.h5.exists():  # nothing to describe
                self.json.unlink(missing_ok=True)
            if status == "finished":
                shutil.rmtree(checkpoint_folder(self.h5), ignore_errors=True)


def checkpoint_folder(h5: Path) -> Path:
    """Where the checkpoints of a run lie (checkpoint.py)."""
    return h5.with_suffix(".ckpt")


def _stamp(path: Path) -> list[int] | None:
    """Changes when the file is replaced; None where there is none."""
    try:
        stat = path.stat()
    except OSError:
        return None
    return [stat.st_ino, stat.st_mtime_ns]


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


def _read_info(path: Path, of_arrays: bool = False) -> dict[str, Any]:
    """The content of a run.json; empty where there is none or it cannot be read.

    Until a run writes its first arrays, those beside its run.json are the ones that it replaces, and that result's own
    run.json is inside. It counts for whoever wants to know about the arrays (`of_arrays`), and once the run is dead.
    """
    try:
        content = _checked_info(load_json(path))
    except UsageError:
        return {}
    h5 = path.with_name(path.name.removesuffix(".run.json") + ".h5")
    replaced = content.pop("replaces", None)
    unchanged = isinstance(replaced, dict) and replaced.get("stamp") == _stamp(h5)
    if unchanged and (of_arrays or not _is_running(content, h5)):
        return _checked_info(replaced.get("info"))
    return content


def _checked_info(content: Any) -> dict[str, Any]:
    """What a run.json holds; empty if it is no mapping, or its fields are of other types."""
    if not isinstance(content, dict) or any(type(content.get(key, 0)) is not int for key in ("pid", "repeat")):
        return {}
    texts = [content.get(key, "") for key in TEXTS]
    return content if all(isinstance(text, str) and text.isprintable() for text in texts) else {}


def _is_here(info: Mapping[str, Any]) -> bool:
    return info.get("host") == socket.gethostname()


def _is_running(info: Mapping[str, Any], h5: Path) -> bool:
    """Whether the run that writes `h5`, with this run.json, is still going."""
    if info.get("status") != "running":
        return False
    if not _is_here(info):  # a machine that shares the folder and cannot be asked, but writes after every round
        stamps = [stamp[1] for path in (h5, h5.with_suffix(".run.json")) if (stamp := _stamp(path))]
        return time.time() - max(stamps, default=0) / 1e9 < SILENCE
    try:
        os.kill(info["pid"], 0)
    except (ProcessLookupError, KeyError, OverflowError):
        return False
    except PermissionError:  # somebody else's process
        pass
    return info.get("process") in (None, _process(info["pid"]))


def _process(pid: int) -> str | None:
    """What tells a process from a later one of the same number: the boot and when it started; None without /proc."""
    try:
        started = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
        return f"{Path('/proc/sys/kernel/random/boot_id').read_text().strip()} {started}"
    except (OSError, IndexError):
        return None


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
    resume: bool = False,
    say: Callable[[str], None] = print,
) -> RunFiles:
    """Takes a name for a run, so that it never destroys a finished result, nor what other settings or a run still
    going wrote.

    The name with the user's goal is free if no repeat under it was made with other settings, and this repeat is not
    there or not finished; otherwise the goal gets six digits of the settings' digest, then a number. `reuse`: a
    finished result of the same settings and the same code is kept in place of a new run. `overwrite`: any result of
    the name is replaced, unless a run on this machine is still writing it. What is replaced stays until the new run
    writes its first arrays. Give the returned `goal` to the claims of a run's further repeats. `resume`: the name of
    an unfinished run with these settings and checkpoints is taken, to go on with it; and `reuse` is implied.

    Raises:
        UsageError: the folder cannot be written to, or the run to be resumed is still going.
    """
    folder, goal, reuse = Path(results_dir), _safe(goal), reuse or resume
    digest, code = settings_digest(settings), code_digest()

    def h5_of(name: str) -> Path:
        return folder / f"{_safe(dataset)}_{_safe(algorithm)}_{name}_{repeat}.h5"

    def earlier(name: str) -> dict[int, dict[str, Any]]:
        """The run.json of every repeat with a file under this goal; empty for PFLlib's own files."""
        stem = f"{_safe(dataset)}_{_safe(algorithm)}_{name}_"
        found = (re.fullmatch(re.escape(stem) + r"(\d+)\.(h5|run\.json)", path.name) for path in folder.iterdir())
        return {int(match[1]): _read_info(folder / f"{stem}{match[1]}.run.json") for match in found if match}

    def is_finished(info: Mapping[str, Any], name: str) -> bool:
        return info.get("status") == "finished" and h5_of(name).exists()

    def is_reusable(info: Mapping[str, Any], name: str) -> bool:
        same = info.get("settings_digest") == digest and info.get("code_digest") == code
        return reuse and same and is_finished(info, name)

    def is_free(name: str) -> bool:
        runs = earlier(name)
        own = runs.get(repeat, {})
        if _is_running(own, h5_of(name)) and (_is_here(own) or not overwrite):
            return False
        alike = all(info.get("settings_digest") == digest for info in runs.values())
        return overwrite or (alike and (not is_finished(own, name) or is_reusable(own, name)))

    def started() -> str | None:
        """The name of the run that `resume` means, if there is one."""
        pattern = re.escape(checkpoint_folder(h5_of("*")).name).replace(re.escape("*"), "(.+)")
        found = (re.fullmatch(pattern, path.name) for path in sorted(folder.iterdir()))
        for name in (match[1] for match in found if match):
            info = _read_info(h5_of(name).with_suffix(".run.json"))
            ours = info.get("goal") == name and (name == goal or name.startswith(f"{goal}-{digest[:6]}"))
            if ours and info.get("settings_digest") == digest and not is_finished(info, name):
                if _is_running(info, h5_of(name)) and (_is_here(info) or not overwrite):
                    raise UsageError(f"--resume: {h5_of(name)} is still being written by process {info.get('pid')}")
                return name
        return None

    with _locked(folder):
        going_on = started() if resume else None
        name = going_on or next(name for name in _goals(goal, digest) if is_free(name))
        previous, h5 = earlier(name).get(repeat), h5_of(name)
        files = RunFiles(h5, h5.with_suffix(".run.json"), name, False, {}, previous or {}, _stamp(h5), bool(going_on))
        if is_reusable(files.earlier, name):
            say(f"results: {h5} is finished with the same settings and is reused")
            files.info, files.reused = files.earlier, True
            return files
        for partial in folder.glob(f".{glob.escape(h5.stem)}.*"):  # of a run that was killed while it wrote
            if partial.is_file():
                partial.unlink(missing_ok=True)
        if name != goal and not going_on:
            say(
                f"results: the name '{goal}' belongs to another run; this one is named '{name}' (--reuse keeps a "
                f"finished run of the same settings and code in its place, --overwrite replaces what has the name)"
            )
        if previous is not None and not going_on:
            same = previous.get("settings_digest") == digest
            say(f"results: {h5}, an earlier run with {'the same' if same else 'other'} settings, is replaced")
        files.update(
            status="running",
            dataset=dataset,
            algorithm=algorithm,
            goal=name,
            repeat=repeat,
            settings=settings,
            settings_digest=digest,
            code_digest=code,
            replaces={"info": previous, "stamp": files.earlier_h5} if files.earlier_h5 else None,
            pid=os.getpid(),
            process=_process(os.getpid()),
            host=socket.gethostname(),
            start=_now(),
            start_time=time.time(),
            **({"resumed": [*files.earlier.get("resumed", []), _now()]} if going_on else {}),
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
        return "interrupted" if status == "running" and not _is_running(self.info, self.path) else status


def _read_arrays(path: Path) -> dict[str, NDArray[Any]]:
    """The arrays of numbers in an HDF5 file itself, not those in other files that it points to."""
    arrays, left = {}, most_unpacked(path)
    with h5py.File(path, "r") as file:
        for key in file:
            item = file[key] if isinstance(file.get(key, getlink=True), h5py.HardLink) else None
            if not isinstance(item, h5py.Dataset) or item.dtype.kind not in "biuf":
                continue
            left -= item.size * item.dtype.itemsize  # item.nbytes would overflow
            if left < 0 or item.external or item.is_virtual:
                raise ValueError(f"{key} is larger than the file can hold, or lies outside")
            arrays[key] = item[()]
    return arrays


def read_run(path: Path | str, algorithms: Collection[str] = ()) -> Run:
    """Reads a result file's arrays of numbers and the run.json beside it.

    algorithms: known names. Without a run.json the file's name is split at the first of them, so that the data set's
    may hold underscores; without a known one, at the first two underscores.

    Raises:
        UsageError: the file is missing, damaged, or not named as a result.
    """
    path = Path(path)
    known = "|".join(map(re.escape, algorithms))
    name = re.fullmatch(rf"(.+?)_({known})_(.+)_(\d+)\.h5", path.name) if known else None
    name = name or re.fullmatch(r"([^_]+)_([^_]+)_(.+)_(\d+)\.h5", path.name)
    info = _read_info(path.with_suffix(".run.json"), of_arrays=True)
    try:
        arrays = _read_arrays(path)
    except FileNotFoundError:
        raise UsageError(f"there is no result file {path}") from None
    except Exception as error:  # a damaged file can make any operation fail in any way
        raise UsageError(f"{path} is not a readable result file ({error}); remove it and run again") from None
    if {"dataset", "algorithm", "goal", "repeat"} <= info.keys():
        return Run(path, arrays, info, info["dataset"], info["algorithm"], info["goal"], info["repeat"])
    if not name:
        raise UsageError(f"{path} has no run.json and is not named <dataset>_<algorithm>_<goal>_<run>.h5")
    return Run(path, arrays, info, name[1], name[2], name[3], int(name[4]))


# ---------------------------------------------------------------------------------------------- PFLlib's functions


def average_data(algorithm: str = "", dataset: str = "", goal: str = "", times: int = 10) -> None:
    """Prints the mean and the population standard deviation over the repeats of each one's best test accuracy.

    A repeat that has none, without an evaluation or with NaN only, does not count.
    """
    curves = get_all_results_for_one_algo(algorithm, dataset, goal, times)
    best = [np.nanmax(curve) for curve in curves if not np.isnan(curve).all()]
    print("std for best accuracy:", np.std(best) if best else float("nan"))
    print("mean for best accuracy:", np.mean(best) if best else float("nan"))


def get_all_results_for_one_algo(
    algorithm: str = "", dataset: str = "", goal: str = "", times: int = 10
) -> list[NDArray[np.float64]]:
    """The test accuracies over the rounds of repeats 0 to times-1, without those that have no result file.

    Raises:
        UsageError: no repeat has one.
    """
    paths = [RESULTS / f"{dataset}_{algorithm}_{goal}_{repeat}.h5" for repeat in range(times)]
    curves = [_test_accuracy(path) for path in paths if path.exists()]
    if not curves:
        raise UsageError(f"there is no result file {paths[0]}, nor of another of the {times} repeats")
    return curves


def _test_accuracy(path: Path) -> NDArray[np.float64]:
    return read_run(path).arrays.get("rs_test_acc", np.empty(0))


def read_data_then_delete(file_name: str, delete: bool = False) -> NDArray[np.float64]:
    """The test accuracies over the rounds in `<results>/<file_name>.h5`, which is removed if `delete`.

    Prints their number, as PFLlib does.
    """
    path = RESULTS / f"{file_name}.h5"
    curve = _test_accuracy(path)
    if delete:
        path.unlink()
    print("Length: ", len(curve))
    return curve
