"""The server half of methods that keep global class prototypes. Portable, as `roundloop` is."""

from __future__ import annotations

from torch import Tensor

from flcore.servers.roundloop import RoundLoop
from flcore.trainmodel.forward import Tensors
from flcore.trainmodel.prototypes import aggregate_prototypes, stack_uploads


class PrototypeServer(RoundLoop):
    """Sends global class prototypes beside the shared weights, as ``prototypes`` (C, ...) and ``seen`` (C,) bool.

    Clients upload ``prototypes`` (C, ...) and ``counts`` (C,). A class that nobody uploads keeps its last prototype, so
    none vanishes with the participants of a round; nothing is sent before some class has one.

    To be named before the host's server: ``class FedX(PrototypeServer, Server)``.
    """

    remembers: tuple[str, ...] = ("prototypes", "seen")
    weighting = "uniform"  # over the clients that hold a class; or "count", by their samples of it
    prototypes: Tensor | None = None
    seen: Tensor | None = None

    def known(self) -> Tensors:
        """The global prototypes (C, ...) and which of them there are (C,); nothing before the first."""
        if self.prototypes is None or self.seen is None or not self.seen.any():
            return {}
        return {"prototypes": self.prototypes, "seen": self.seen}

    def send_models(self) -> None:
        self.broadcast(self.shared_weights() | self.known())

    def aggregate_parameters(self) -> None:
        self.average_shared()
        if "prototypes" in self.uploaded_models[0]:  # a method may have switched off what they are for
            prototypes, counts = stack_uploads(self.uploaded_models)
            self.prototypes, self.seen = aggregate_prototypes(
                *self.filter_prototypes(prototypes, counts), self.prototypes, self.seen, self.weighting
            )
