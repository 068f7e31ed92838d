"""Reading result files back, ours and PFLlib's."""

import operator
import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from flcore.utils.errors import UsageError
from flcore.utils.paths import file_name
from flcore.utils.runs.rounds import read_lines
from flcore.utils.runs.status import is_running, read_info
from flcore.utils.safe_load import most_unpacked


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
        return "interrupted" if status == "running" and not is_running(self.info, self.path) else status

    @property
    def accuracy(self) -> NDArray[np.float64]:
        """The test accuracy of every evaluation (rs_test_acc); empty if there was none."""
        return self.arrays.get("rs_test_acc", np.empty(0))


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
    info = read_info(path.with_suffix(".run.json"), of_arrays=True)
    try:
        arrays, lines = _read_arrays(path), read_lines(path)
        lengths = (sum(array.shape[0] for array in one.values() if array.shape) for one in (lines, arrays))
        if operator.gt(*lengths):  # of a run that goes on, or was killed
            arrays |= lines
    except FileNotFoundError:
        raise UsageError(f"there is no result file {path}") from None
    except Exception as error:  # a damaged file can make any operation fail in any way
        raise UsageError(f"{path} is not a readable result file ({error}); remove it and run again") from None
    if {"dataset", "algorithm", "goal", "repeat"} <= info.keys():
        return Run(path, arrays, info, info["dataset"], info["algorithm"], info["goal"], info["repeat"])
    if not name:
        raise UsageError(f"{path} has no run.json and is not named <dataset>_<algorithm>_<goal>_<run>.h5")
    return Run(path, arrays, info, name[1], name[2], name[3], int(name[4]))


def read_accuracies(folder: Path, dataset: str, algorithm: str, goal: str, times: int) -> list[NDArray[np.float64]]:
    """The test accuracies of repeats 0 to times-1, without those that have no result file; the names are the user's.

    Raises:
        UsageError: no repeat has one.
    """
    stem = "_".join(map(file_name, (dataset, algorithm, goal)))
    paths = [folder / f"{stem}_{repeat}.h5" for repeat in range(times)]
    curves = [read_run(path).accuracy for path in paths if path.exists()]
    if not curves:
        raise UsageError(f"there is no result file {paths[0]}, nor of another of the {times} repeats")
    return curves


def best_lines(curves: Iterable[NDArray[np.float64]]) -> list[str]:
    """PFLlib's two lines: standard deviation (population) and mean over repeats of each one's best accuracy.

    A repeat that has none, without an evaluation or with NaN only, does not count.
    """
    best = [np.nanmax(curve) for curve in curves if not np.isnan(curve).all()]
    std, mean = (np.std(best), np.mean(best)) if best else (float("nan"), float("nan"))
    return [f"std for best accuracy: {std}", f"mean for best accuracy: {mean}"]
