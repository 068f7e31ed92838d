"""What a client keeps for itself from round to round, in a folder of its own: it outlives the process.

For each of the last two versions that may still be asked for there is a folder with JSON and safetensors, which is
written beside and renamed, so that it is there whole or not at all. Each holds the client before and after a round's
training: a training whose reply was lost or refused can be taken back.
"""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from flcore.federation.letters import INITIAL, Version
from flcore.servers.support.faults import Snapshot
from flcore.utils.errors import RunError
from flcore.utils.runs.files import sync_folder, write_bytes
from flcore.utils.runs.run_state import Reader, UnusableError, Writer, remembered, set_value

STATE = "state.json"


class PersonalState:
    """The versions of one client's tensors in ``folder``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def restore(self, client: Any, version: Version) -> bool:
        """Makes a new ``client`` what it was in ``version``; False if that is not there, or damaged."""
        if version == INITIAL:
            return True
        folder = self._at(version.round)
        try:
            state = json.loads((folder / STATE).read_bytes())
            reader = Reader(folder, state["files"], state["common_files"], client.device)
            for name in remembered(client):
                set_value(client, name, reader.decode(state["after"][name]))
            if not version.trained:
                client.params, client.state = (reader.decode(state["before"][name]) for name in ("params", "state"))
        except (
            OSError, ValueError, TypeError, KeyError, IndexError, AttributeError, UnusableError, SafetensorError
        ):  # fmt: skip
            return False
        return True

    def save(self, client: Any, before: Snapshot, base: Version) -> None:
        """Keeps the client as it is after its round, and as it was ``before`` it trained; and the version ``base``.

        Raises:
            RunError: there is no room, or the folder cannot be written.
        """
        path, temporary = self._at(client.round), self.folder / ".writing"
        try:
            shutil.rmtree(temporary, ignore_errors=True)
            temporary.mkdir(parents=True)
            writer = Writer(temporary)
            state: dict[str, Any] = {
                "before": {"params": writer.encode(before.params), "state": writer.encode(before.state)},
                "after": {name: writer.encode(getattr(client, name)) for name in remembered(client)},
            }
            state["common_files"] = writer.end_of_common()
            state["files"] = writer.files
            write_bytes(temporary / STATE, json.dumps(state).encode(), sync=True)
            shutil.rmtree(path, ignore_errors=True)  # of a reply that was lost
            temporary.rename(path)
            sync_folder(self.folder)
        except OSError as error:
            raise RunError(f"{path} cannot be written: {error.strerror}; make room or name another folder") from None
        for other in self.folder.iterdir():
            if re.fullmatch(r"round-\d+", other.name) and other not in (path, self._at(base.round)):
                shutil.rmtree(other, ignore_errors=True)

    def _at(self, number: int) -> Path:
        return self.folder / f"round-{number:06d}"
