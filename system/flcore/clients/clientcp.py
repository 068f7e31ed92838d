"""FedCP, client half. Zhang, Hua, Wang, Song, Xue, Ma, Guan, KDD 2023, "FedCP: Separating Feature Information for
Personalized Federated Learning via Conditional Policy".

A policy network ("cpn") splits each feature of a sample in a personal share r and a global share s = 1 - r:

    (r, s) = Gumbel-softmax of cpn(z * v), temperature 1, soft;  logits = h_p(z * r) + h_g(z * s)
    loss = CE + lam * MMD^2(z, f_g(x)), kernel sum over a in 10, 15, 20, 50 of exp(-distance^2 / (2 a))

h_p is the personal head; h_g and f_g are head and extractor as received this round, frozen (f_g in evaluation mode). v
is the column sum of h_p's weights, scaled to length 1. Extractor, h_p and cpn train together. Up go the extractor, the
mixed head (h_p + h_g) / 2 and cpn. Read from the released code.

Differences from it: v is taken once, from the initial head. That code takes it anew every round, to the same end: the
gradients of a cross-entropy cancel over the classes, so that the column sums never move. All clients get head and cpn,
not participants alone, so that absent ones are not scored with parts of different rounds. Gumbel noise acts in
training only, keyed by (seed, repeat, round, client): the released code draws it in evaluation as well, so that scores
change from one call to the next. Here evaluation leaves it out; the share is then the median of what training draws,
because the difference of two Gumbel numbers is symmetric around 0.
lam 5: the authors'; PFLlib's default is 1.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from flcore.clients.clientbase import Client
from flcore.clients.localrule import Data
from flcore.hyperparams import Settings, setting
from flcore.trainmodel.forward import Forward, Tensors
from flcore.trainmodel.mmd import squared_mmd
from flcore.trainmodel.prototypes import COSINE_EPS
from flcore.utils.errors import UsageError


@dataclass(frozen=True)
class CPSettings(Settings):
    lamda: float = setting(
        5.0, "weight of the distance (MMD) between personal and global features", least=0, source="the authors'"
    )


class clientCP(Client):
    settings = CPSettings
    replaced = ("base.", "cpn.")

    @staticmethod
    def local_modules(forward: Forward, hp: CPSettings) -> dict[str, nn.Module]:
        size = forward.size
        if not isinstance(forward.net.head, nn.Linear):
            raise UsageError("FedCP reads the weights of the head, which must be one linear layer: --head NAME")
        return {"cpn": nn.Sequential(nn.Linear(size, 2 * size), nn.LayerNorm(2 * size), nn.ReLU())}

    @staticmethod
    def local_init(params: Tensors, hp: CPSettings) -> Tensors:
        return context(params)

    @staticmethod
    def local_begin(
        forward: Forward,
        params: Tensors,
        received: Tensors,
        data: Data,
        shared: Tensors,
        state: Tensors,
        hp: CPSettings,
    ) -> Tensors:
        return {**params, **{name: value for name, value in received.items() if not name.startswith("head.")}}

    @staticmethod
    def local_draw(generator: torch.Generator, forward: Forward, size: int, hp: CPSettings) -> Tensors:
        shape = (size, 2, forward.size)
        return {"gumbel": -torch.empty(shape).exponential_(generator=generator).log()}

    @staticmethod
    def local_loss(
        forward: Forward, params: Tensors, x: Tensor, y: Tensor, shared: Tensors, state: Tensors, hp: CPSettings
    ) -> Tensor:
        z, _ = forward.features(params, x)
        reference, _ = forward.features(shared, x, frozen=True)
        loss = F.cross_entropy(split_logits(forward, params, z, shared, state, state["gumbel"]), y)
        return loss + hp.lamda * squared_mmd(z, reference)

    @staticmethod
    def local_end(
        forward: Forward, params: Tensors, data: Data, shared: Tensors, state: Tensors, hp: CPSettings
    ) -> tuple[Tensors, Tensors]:
        mixed = {name: (params[name] + value) / 2 for name, value in shared.items() if name.startswith("head.")}
        return state, mixed

    @staticmethod
    def local_predict(
        forward: Forward, params: Tensors, x: Tensor, shared: Tensors, state: Tensors, hp: CPSettings
    ) -> Tensor:
        return split_logits(forward, params, forward.features(params, x)[0], shared, state, 0.0)


def context(params: Tensors) -> Tensors:
    """v: what the personal head reads of each feature, summed over the classes, at length 1."""
    return {"context": F.normalize(params["head.weight"].sum(0), dim=0, eps=COSINE_EPS)}


def split_logits(
    forward: Forward, params: Tensors, z: Tensor, shared: Tensors, state: Tensors, noise: Tensor | float
) -> Tensor:
    """h_p(z * r) + h_g(z * s) for features z (B, K) and Gumbel noise (B, 2, K)."""
    scores = forward.call("cpn", params, z * state["context"]).unflatten(1, (2, -1))
    r, s = (scores + noise).softmax(1).unbind(1)
    return forward.call("head", params, z * r) + forward.call("head", shared, z * s)
