"""For servers that keep global class prototypes."""

from __future__ import annotations

from torch import Tensor

from flcore.servers.serverbase import Server
from flcore.trainmodel.prototypes import aggregate_prototypes, stack_uploads


class PrototypeServer(Server):
    """Sends global class prototypes beside the shared weights, as ``prototypes`` (C, ...) and ``seen`` (C,) bool.

    Clients upload ``prototypes`` (C, ...) and ``counts`` (C,). A class that nobody uploads keeps its last prototype, so
    none vanishes with the participants of a round; nothing is sent before some class has one.
    """

    uploads_prototypes = True
    remembers: tuple[str, ...] = ("prototypes", "seen")
    means_only = ("",)
    weighting = "uniform"  # over the clients that hold a class; or "count", by their samples of it
    prototypes: Tensor | None = None
    seen: Tensor | None = None

    def send_models(self) -> None:
        message = self.shared_weights()
        if self.prototypes is not None and self.seen is not None and self.seen.any():
            message |= {"prototypes": self.prototypes, "seen": self.seen}
        self.broadcast(message)

    def aggregate_parameters(self) -> None:
        self.average_shared()
        prototypes, counts = stack_uploads(self.uploaded_models)
        self.prototypes, self.seen = aggregate_prototypes(
            *self.filter_prototypes(prototypes, counts), self.prototypes, self.seen, self.weighting
        )
