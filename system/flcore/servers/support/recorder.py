"""What a run leaves: records, the result file, the model file."""

import logging
from pathlib import Path
from typing import Any

import numpy as np

from flcore.clients.support.items import load_item, save_item
from flcore.utils.records import row
from flcore.utils.runs.rounds import GrowingFile

log = logging.getLogger(__name__)

CURVES = ("rs_test_acc", "rs_test_auc", "rs_train_loss")  # PFLlib's lists


class Recorder:
    """Keeps a server's records in its files and tells them to its observers."""

    def __init__(self, server: Any) -> None:
        self.server = server
        self.stopped = False  # by an observer
        self.file: GrowingFile | None = None

    def add(self, **values: Any) -> None:
        """Adds one value to each of the named lists of records."""
        for name, value in values.items():
            self.server.records.setdefault(name, []).append(value)

    def add_clients(self, name: str, ids: list[int]) -> None:
        """Adds who of all clients is meant, as (clients,) of 0 and 1; where few of many are scored as (round, client)
        pairs under ``<name>_clients``, so that a round's record does not grow with the clients.
        """
        server = self.server
        if server.evaluation.sample is None:
            self.add(**{name: np.isin(np.arange(server.num_clients), ids).astype(np.int8)})
            return
        for i in ids:
            self.add(**{f"{name}_clients": (server.current_round, i)})

    # ---- rounds ------------------------------------------------------------------------------------------------------

    def client_done(self, number: int, participants: int) -> None:
        """``number`` of the round's participants have trained."""
        for observer in self.server.observers:
            observer.on_client(number, participants)

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
        joined = [client.id for client in server.selected_clients]
        log.debug(f"round {server.current_round}: clients {joined}, left out {sorted(uploads.left_out)}")
        for i in sorted(uploads.left_out):
            self.add(rs_left_out_clients=(server.current_round, i))
        if server.client_drop_rate:
            lost = [client.id for client in server.selected_clients if client.id not in uploads.arriving]
            self.add_clients("rs_lost", lost)
        self.save()
        record = row(self.lists(), server.current_round)  # see `flcore.utils.records`
        wishes = [observer.on_round(record) for observer in server.observers]  # each hears of it
        self.stopped = any(wishes)
        return self.stopped

    def lists(self) -> dict[str, list[Any]]:
        """All that was recorded, under its names in the result file."""
        return {name: getattr(self.server, name) for name in CURVES} | self.server.records

    # ---- files -------------------------------------------------------------------------------------------------------

    @property
    def path(self) -> Path | None:
        """The run's .h5 file; None: nothing is written."""
        found = getattr(self.server.args, "result_path", None)
        return found and Path(found)

    def save(self) -> None:
        """Keeps everything recorded so far in the run's files, see `GrowingFile`."""
        if self.path:
            self.file = self.file or GrowingFile(self.path)
            self.file.save(self.lists())

    def close(self) -> None:
        """Leaves everything recorded in the .h5 file, if anything was ever saved."""
        if self.file:
            self.file.close(self.lists())

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
