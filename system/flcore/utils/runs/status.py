"""What a run.json says of its run, and whether that run is still going."""

import os
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flcore.utils.errors import UsageError
from flcore.utils.safe_load import load_json

# In run.json always text; what a terminal would obey is not.
TEXTS = ("status", "dataset", "algorithm", "goal", "host", "settings_digest", "code_digest")

SILENCE = 6 * 3600  # seconds without a new file after which a run on another machine counts as dead


def read_info(path: Path, of_arrays: bool = False) -> dict[str, Any]:
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
    unchanged = isinstance(replaced, dict) and replaced.get("stamp") == file_stamp(h5)
    if unchanged and (of_arrays or not is_running(content, h5)):
        return _checked_info(replaced.get("info"))
    return content


def _checked_info(content: Any) -> dict[str, Any]:
    """What a run.json holds; empty if it is no mapping, or its fields are of other types."""
    if not isinstance(content, dict) or any(type(content.get(key, 0)) is not int for key in ("pid", "repeat")):
        return {}
    texts = [content.get(key, "") for key in TEXTS]
    return content if all(isinstance(text, str) and text.isprintable() for text in texts) else {}


def is_here(info: Mapping[str, Any]) -> bool:
    return info.get("host") == socket.gethostname()


def is_running(info: Mapping[str, Any], h5: Path) -> bool:
    """Whether the run that writes `h5`, with this run.json, is still going."""
    if info.get("status") != "running":
        return False
    if not is_here(info):  # a machine that shares the folder and cannot be asked, but writes after every round
        files = h5, h5.with_suffix(".run.json"), h5.with_suffix(".rounds.jsonl")
        stamps = [stamp[1] for path in files if (stamp := file_stamp(path))]
        return time.time() - max(stamps, default=0) / 1e9 < SILENCE
    try:
        os.kill(info["pid"], 0)
    except (ProcessLookupError, KeyError, OverflowError):
        return False
    except PermissionError:  # somebody else's process
        pass
    return info.get("process") in (None, process_of(info["pid"]))


def process_of(pid: int) -> str | None:
    """What tells a process from a later one of the same number: the boot and when it started; None without /proc."""
    try:
        started = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
        return f"{Path('/proc/sys/kernel/random/boot_id').read_text().strip()} {started}"
    except (OSError, IndexError):
        return None


def file_stamp(path: Path) -> list[int] | None:
    """Changes when the file is replaced; None where there is none."""
    try:
        stat = path.stat()
    except OSError:
        return None
    return [stat.st_ino, stat.st_mtime_ns]
