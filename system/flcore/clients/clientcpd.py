"""FedCPD, client half. Jin, Xu, Wang, Hsieh, Wu, Lin: "FedCPD", IJCAI 2025, doi 10.24963/ijcai.2025/612.

FedRep's two phases; in the second one the extractor f minimises

    L = CE + fd * L_fd + align * L_align + contrast * L_pcl                                     (Algorithm 1, line 14)

L_fd pulls the feature and attention maps of f, fused from deep to shallow, to those of the client's own extractor at
the end of its previous participation; L_align and L_pcl use the global class prototypes of this round's download.
After training the client uploads f and the mean embedding of each class it holds (line 18).

No official code and no published values for the three weights exist. Read as follows (reasons: docs/fedcpd.md):
* head and extractor train one after the other, as in FedRep; with f fixed only CE has a gradient in the head;
* L_fd is a mean over elements, summed over levels and both streams; attention and fusion modules are private, persist,
  and move with the extractor; the teacher's attention is a snapshot taken together with the teacher;
* before a client has finished a round it has no teacher, and L_fd counts 0; before there are prototypes, L_align and
  L_pcl count 0;
* a weight of 0 switches its part off entirely; all three at 0 is FedRep bit for bit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from flcore.clients.clientbase import Client
from flcore.clients.localrule import Data, LocalRule, Phase, head_loss
from flcore.hyperparams import Settings, setting
from flcore.trainmodel.cpd import HierarchicalDistiller
from flcore.trainmodel.forward import Forward, Tensors, subset
from flcore.trainmodel.prototypes import prototype_alignment_loss, prototype_contrastive_loss

OURS = "chosen here: none is published"  # where a default comes from


@dataclass(frozen=True)
class CPDSettings(Settings):
    plocal_epochs: int = setting(1, "epochs of the head, before those of the extractor", least=0, source="as FedRep")
    cpd_fd: float = setting(1.0, "weight of the feature distillation; 0: off", least=0, source=OURS)
    cpd_align: float = setting(1.0, "weight alpha of the prototype alignment; 0: off", least=0, source=OURS)
    cpd_contrast: float = setting(1.0, "weight beta of the prototype contrast; 0: off", least=0, source=OURS)
    cpd_tau: float = setting(0.1, "temperature of the prototype contrast", above=0, source=OURS)
    cpd_width: int = setting(16, "channels of the cross-layer fusion", least=1, source=OURS)
    cpd_reduction: int = setting(16, "CBAM's channel reduction", least=1, source="CBAM's paper")
    cpd_proto_weighting: str = setting(
        "uniform",
        "global prototype: plain mean over the clients that hold a class, or by their counts",
        choices=("uniform", "count"),
        source="chosen here",
    )


class clientCPD(Client, LocalRule):
    settings = CPDSettings

    def __init__(self, args: Any, id: int, train_samples: int, test_samples: int, **kwargs: Any) -> None:
        super().__init__(args, id, train_samples, test_samples, **kwargs)
        self.setup_rule(args)  # PFLlib's Client does not

    @staticmethod
    def local_modules(forward: Forward, hp: CPDSettings) -> dict[str, nn.Module]:
        if hp.cpd_fd == 0 or not forward.channels:
            return {}
        return {"distiller": HierarchicalDistiller(forward.channels, hp.cpd_width, hp.cpd_reduction)}

    @staticmethod
    def local_init(params: Tensors, hp: CPDSettings) -> Tensors:
        return teacher_state(params, taught=False)

    @staticmethod
    def local_plan(hp: CPDSettings) -> list[Phase]:
        return [
            Phase(hp.plocal_epochs, ("head.",), loss=head_loss, on_features=True),
            Phase(hp.local_epochs, ("base.", "distiller.")),
        ]

    @staticmethod
    def local_loss(
        forward: Forward, params: Tensors, x: Tensor, y: Tensor, shared: Tensors, state: Tensors, hp: CPDSettings
    ) -> Tensor:
        logits, z, maps = forward(params, x)
        loss = F.cross_entropy(logits, y)
        if state:
            teacher = subset(state, "teacher.")
            teacher_maps = forward.maps(teacher, x)
            teacher_attention = forward.call("distiller.attention", teacher, teacher_maps)
            distance = forward.call("distiller", params, maps, teacher_maps, teacher_attention)
            loss = loss + hp.cpd_fd * state["taught"] * distance
        if "prototypes" in shared:
            known = shared["prototypes"], shared["seen"]
            if hp.cpd_align:
                loss = loss + hp.cpd_align * prototype_alignment_loss(z, y, *known)
            if hp.cpd_contrast:
                loss = loss + hp.cpd_contrast * prototype_contrastive_loss(z, y, *known, hp.cpd_tau)
        return loss

    @staticmethod
    def local_end(
        forward: Forward, params: Tensors, data: Data, shared: Tensors, state: Tensors, hp: CPDSettings
    ) -> tuple[Tensors, Tensors]:
        used = hp.cpd_align or hp.cpd_contrast
        return teacher_state(params, taught=True), {"embeddings": forward.in_batches(params, data[0])} if used else {}

    def announce(self, prototypes: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
        return prototypes, counts if self.hp.cpd_proto_weighting == "count" else counts.clamp(max=1)


def teacher_state(params: dict[str, Tensor], taught: bool) -> dict[str, Tensor]:
    """The frozen extractor and attention under ``teacher.``; ``taught`` is 0 until they stem from a finished round.

    Empty without a distiller, and then L_fd is off.
    """
    if not any(name.startswith("distiller.") for name in params):
        return {}
    parts = ("base.", "distiller.attention.")
    teacher = {f"teacher.{name}": value for name, value in params.items() if name.startswith(parts)}
    return {**teacher, "taught": torch.full((), float(taught), device=next(iter(params.values())).device)}
