"""FedCRL, client half: a RECONSTRUCTION FROM THE ABSTRACT. Huang, Chen, Zhang, Wang: "FedCRL: Personalized Federated
Learning with Contrastive Shared Representations for Label Heterogeneity in Non-IID Data", arXiv 2404.17916, v1 of 2024
(from v2 on FedCoSR, IEEE Trans. Cybernetics 55(12), 2025).

No public code exists and the text was not at hand. The abstract says: clients share weights and class-averaged
representations, which the server averages; a contrastive loss between local and global representations; a client mixes
its own previous model with the global one; the mixing follows the client's contrastive loss, so that clients short of
data take more of the global model. Everything below is one way to do that, and its results are those of "our variant":

    own weights <- (1 - a) * own + a * global,    a = clip(l / log C', 0, 1)
    loss = CE + lam * L_con,  L_con = mean of -log(exp(cos(z, P_y) / tau) / sum over known c of exp(cos(z, P_c) / tau))

with the global representations P of the download, the number C' of classes that have one, and the client's own weights
and mean L_con l at the end of its previous participation (an absent client is mixed anew from these for each scoring,
never twice). log C' is what features without information give. a = 1 (take the
global model) until l was measured, or while C' < 2; classes without a representation are left out everywhere, and a
sample of such a class adds 0 to L_con. Representations are the class means of a pass in evaluation mode after training.

``--crl_mix A`` fixes a, for the ablation that the direction of the weighting needs; ``-lam 0 --crl_mix 1`` is FedAvg.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from flcore.clients.clientbase import Client
from flcore.clients.localrule import Data
from flcore.hyperparams import Settings, setting
from flcore.trainmodel.forward import Forward, Tensors
from flcore.trainmodel.prototypes import prototype_contrastive_loss


@dataclass(frozen=True)
class CRLSettings(Settings):
    lamda: float = setting(1.0, "weight of the contrastive loss", least=0, source="chosen here")
    tau: float = setting(0.5, "temperature of the contrastive loss", above=0, source="chosen here")
    crl_share: str = setting(
        "model",
        "what is averaged and mixed: the whole model or its extractor",
        choices=("model", "base"),
        source="the paper's v1; v2 and v3: base",
    )
    crl_mix: float | str = setting(
        "loss",
        "share of the global model at a download; loss: by the contrastive loss",
        type=float,
        least=0,
        most=1,
        also=("loss",),
        source="the abstract; the form is chosen here",
    )


class clientCRL(Client):
    settings = CRLSettings
    replaced = ("",)  # the own weights for the next mixture are in the state

    @staticmethod
    def local_init(params: Tensors, hp: CRLSettings) -> Tensors:
        zero = torch.zeros((), device=next(iter(params.values())).device)
        return {"loss": zero, "measured": zero, **own_weights(params, hp)}

    @staticmethod
    def local_begin(
        forward: Forward,
        params: Tensors,
        received: Tensors,
        data: Data,
        shared: Tensors,
        state: Tensors,
        hp: CRLSettings,
    ) -> Tensors:
        share = mixing_weight(shared, state, hp)
        mixed = {
            name: torch.lerp(state[f"own.{name}"], value, share) if f"own.{name}" in state else value
            for name, value in received.items()
        }
        return {**params, **mixed}

    @staticmethod
    def local_loss(
        forward: Forward, params: Tensors, x: Tensor, y: Tensor, shared: Tensors, state: Tensors, hp: CRLSettings
    ) -> Tensor:
        logits, z, _ = forward(params, x)
        loss = F.cross_entropy(logits, y)
        if hp.lamda and "prototypes" in shared:
            loss = loss + hp.lamda * prototype_contrastive_loss(z, y, shared["prototypes"], shared["seen"], hp.tau)
        return loss

    @staticmethod
    def local_end(
        forward: Forward, params: Tensors, data: Data, shared: Tensors, state: Tensors, hp: CRLSettings
    ) -> tuple[Tensors, Tensors]:
        x, y = data
        z = forward.in_batches(params, x)
        if "prototypes" in shared:
            seen = shared["seen"]
            known = seen[y].sum()  # the samples that L_con is about
            total = prototype_contrastive_loss(z, y, shared["prototypes"], seen, hp.tau) * len(y)
            measured = ((known > 0) & (seen.sum() > 1)).to(total.dtype)  # with one class L_con is 0 and says nothing
            loss = torch.where(measured > 0, total / known.clamp_min(1), state["loss"])
            state = {**state, "loss": loss, "measured": torch.maximum(state["measured"], measured)}
        return {**state, **own_weights(params, hp)}, {"embeddings": z}


def own_weights(params: Tensors, hp: CRLSettings) -> Tensors:
    """What a download is mixed with, under ``own.``; whole numbers (BatchNorm's counter) are not mixed."""
    shared = "" if hp.crl_share == "model" else "base."
    return {
        f"own.{name}": value for name, value in params.items() if name.startswith(shared) and value.is_floating_point()
    }


def mixing_weight(shared: Tensors, state: Tensors, hp: CRLSettings) -> torch.Tensor:
    """a, a scalar: how much of the global model the client takes at this download."""
    if hp.crl_mix != "loss":
        return torch.full_like(state["loss"], float(hp.crl_mix))
    if "prototypes" not in shared:
        return torch.ones_like(state["loss"])
    classes = shared["seen"].sum()
    share = (state["loss"] / classes.clamp_min(2).log()).clamp(0, 1)
    return torch.where((state["measured"] > 0) & (classes > 1), share, 1)
