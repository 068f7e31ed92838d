"""The files of one run: its run.json is kept up to date, and says at the end how the run ended."""

import logging
import os
import shutil
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from flcore.utils.mem_utils import peak_memory
from flcore.utils.runs.files import write_json
from flcore.utils.runs.provenance import plain
from flcore.utils.runs.status import file_stamp, process_of

log = logging.getLogger(__name__)


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
    continued: Path | None = None  # the result of the run with fewer rounds whose checkpoint this one goes on from
    stopped: bool = False  # whether an observer has ended the run before its last round

    def begin(self, **fields: Any) -> None:
        """Writes the first run.json, which says that the run is going on and in which process."""
        resumed: dict[str, Any] = {}
        if self.resumed:
            resumed["resumed"] = [*self.earlier.get("resumed", []), _now()]
        if self.continued:
            resumed["continued"] = str(self.continued)
        self.update(
            status="running",
            **fields,
            replaces={"info": self.earlier or None, "stamp": self.earlier_h5} if self.earlier_h5 else None,
            pid=os.getpid(),
            process=process_of(os.getpid()),
            host=socket.gethostname(),
            start=_now(),
            start_time=time.time(),
            **resumed,
        )

    def update(self, **fields: Any) -> None:
        """Adds to run.json, or changes what it says."""
        self.info |= plain(fields)
        write_json(self.json, self.info)

    def finish(self, status: str) -> None:
        """Notes the end of the run; `status` is finished, stopped, interrupted or failed.

        A run that ends before it has written anything leaves the result that it was to replace as it was.
        """
        self.info.pop("replaces", None)
        if self.earlier_h5 and self.earlier_h5 == file_stamp(self.h5):
            if self.earlier:
                write_json(self.json, self.earlier)
            else:
                self.json.unlink()
            return
        wall_time = round(time.time() - self.info["start_time"], 3)
        self.update(status=status, end=_now(), wall_time_s=wall_time, peak_memory_bytes=peak_memory())

    @contextmanager
    def recording(self, keep_checkpoint: bool) -> Iterator[None]:
        """Notes how the body ends, and tells the user what an interrupted run leaves."""
        status = "failed"
        try:
            yield
            status = "stopped" if self.stopped else "finished"
        except KeyboardInterrupt:
            status = "interrupted"
            kept = f"the rounds so far are in {self.h5}" if self.h5.exists() else "no result was written yet"
            more = "; the same command with --resume goes on" if checkpoint_folder(self.h5).exists() else ""
            log.warning(f"interrupted; {kept}{more}")
            raise
        finally:
            self.finish(status)
            if status in ("finished", "stopped") and not keep_checkpoint:
                shutil.rmtree(checkpoint_folder(self.h5), ignore_errors=True)
            if not self.h5.exists():  # nothing to describe
                self.json.unlink(missing_ok=True)


def checkpoint_folder(h5: Path) -> Path:
    """Where the checkpoints of a run lie (checkpoint.py)."""
    return h5.with_suffix(".ckpt")


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
