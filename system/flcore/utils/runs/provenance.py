"""Where a result comes from: a run's settings and their digest, the code's digest, versions, commit, platform."""

import hashlib
import json
import math
import os
import platform
import subprocess
from collections.abc import Mapping
from importlib import metadata
from typing import Any

import numpy as np

from flcore.utils.paths import REPO

PACKAGES = ("torch", "torchvision", "numpy", "scikit-learn", "h5py")
# What says where and how often to run, not what to compute: two runs that differ only here have the same settings.
NOT_SETTINGS = {"config", "data_dir", "results_dir", "goal", "overwrite", "reuse", "times", "prev", "num_threads"}
NOT_SETTINGS |= {"executor", "stack_size", "state_dir", "state_cache", "checkpoint_every", "resume"}  # the same numbers
NOT_SETTINGS |= {
    "ray_address",
    "ray_actors",
    "ray_sums",
    "keep_checkpoint",
    "save_models",
    "tensorboard",
    "wandb",
    "mlflow",
}
NOT_SETTINGS |= {"device_id", "quiet", "verbose", "log"}  # the first is told by the device
NOT_SETTINGS |= {"given", "method"}  # not values


def plain(value: Any) -> Any:
    """`value` as JSON can hold it; what has no short text, such as a model, becomes the name of its class."""
    if isinstance(value, (np.generic, np.ndarray)):
        value = value.tolist()
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)  # JSON has no word for it
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, (set, frozenset)):
        return sorted(plain(item) for item in value)
    if isinstance(value, os.PathLike):
        return os.path.abspath(value)  # whatever folder the run was started in
    text = str(value)
    return text if len(text) < 200 and "\n" not in text else type(value).__name__


def run_settings(values: Mapping[str, Any], data_digest: str | None) -> dict[str, Any]:
    """All that decides a run's numbers: the values but for those in NOT_SETTINGS, and the digest of the data."""
    settings = {name: plain(value) for name, value in sorted(values.items()) if name not in NOT_SETTINGS}
    return settings | {"data_digest": data_digest}


def settings_digest(settings: Mapping[str, Any]) -> str:
    """Hex digest of the settings, whatever their order."""
    return hashlib.sha256(json.dumps(plain(settings), sort_keys=True).encode()).hexdigest()


def but_rounds(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings without the number of rounds, which a longer run of the same may have otherwise."""
    return {name: plain(value) for name, value in settings.items() if name != "global_rounds"}


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


def run_info(extra: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """What run.json says of a run beside its settings and its state: versions, commit, platform.

    `commit` and `dirty` are None outside a git checkout of this code. `extra` is added as it is: the point of
    evaluation, the data set's description, whatever else a reader should know.
    """
    ours = _git("rev-parse", "--show-toplevel") == str(REPO)  # and not a repository that this folder was copied into
    commit = _git("rev-parse", "HEAD") if ours else None
    changes = _git("status", "--porcelain", "--untracked-files=no") if commit else None
    info: dict[str, Any] = {
        "versions": {"python": platform.python_version()} | {package: _version(package) for package in PACKAGES},
        "commit": commit,
        "dirty": None if changes is None else bool(changes),
        "platform": platform.platform(),
    }
    info.update(plain(extra or {}))
    return info
