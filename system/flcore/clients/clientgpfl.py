"""GPFL, client half. Zhang, Hua, Wang, Song, Xue, Ma, Cao, Guan, ICCV 2023, "GPFL: Simultaneously Learning Global and
Personalized Feature Information for Personalized Federated Learning".

Two shared modules beside the extractor f: class embeddings e_1 .. e_C ("gce") and a conditional valve ("cov"), which
turns features z into ReLU(z * (gamma(q) + 1) + beta(q)) for a condition q. With the embeddings e' received this round,

    z_P = CoV(z, sum_c freq_i(c) e'_c)         the client's own condition; a personal head predicts from it
    z_G = CoV(z, 1/C sum_c e'_c)               the condition that all share
    loss = CE(h(z_P), y) + CE(cos(z_G, e_.), y) + lam * ||z_G - e'_y||

The last norm is that of the whole batch (B, K), not averaged, as in the released code; gce and cov have weight decay mu
(that code's argument for it). One SGD step moves all, which is what the released code's three optimisers do.

Differences from the released code: both conditions come from the embeddings just received, by all clients, not from
the ones before; freq_i counts all training samples, so that no client below one batch divides 0 by 0; the norm is cut
off below, so that its gradient at 0 is 0. Evaluated after the download, as everything here.
lam 0.01, mu 0.1: the authors' for the CNN (0.0001 and 0 for ResNet-18); PFLlib's defaults are 1 and 0.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from flcore.clients.clientbase import Client
from flcore.hyperparams import Settings, setting
from flcore.trainmodel.forward import Forward, Tensors
from flcore.trainmodel.prototypes import unit

NORM_EPS = 1e-12  # smallest squared distance


class Valve(nn.Module):
    """The conditional valve: features z (B, K) and a condition q (K) -> (B, K)."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.gamma, self.beta = (nn.Sequential(nn.Linear(size, size), nn.ReLU(), nn.LayerNorm(size)) for _ in range(2))

    def forward(self, z: Tensor, q: Tensor) -> Tensor:
        return (z * (self.gamma(q) + 1) + self.beta(q)).relu()


@dataclass(frozen=True)
class GPFLSettings(Settings):
    lamda: float = setting(
        0.01, "weight of the distance to the class embeddings", least=0, source="the authors' for the CNN"
    )
    mu: float = setting(0.1, "weight decay of class embeddings and valve", least=0, source="the authors' for the CNN")


class clientGPFL(Client):
    settings = GPFLSettings
    corrects = True

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        counts = torch.bincount(self.data[1], minlength=self.num_classes).float()
        self.state = {"frequency": counts / counts.sum().clamp_min(1)}

    @staticmethod
    def local_modules(forward: Forward, hp: GPFLSettings) -> dict[str, nn.Module]:
        size = forward.size
        return {"gce": nn.Embedding(hp.num_classes, size), "cov": Valve(size)}

    @staticmethod
    def local_loss(
        forward: Forward, params: Tensors, x: Tensor, y: Tensor, shared: Tensors, state: Tensors, hp: GPFLSettings
    ) -> Tensor:
        z, _ = forward.features(params, x)
        received = shared["gce.weight"]
        personal = forward.call("cov", params, z, state["frequency"] @ received)
        generic = forward.call("cov", params, z, received.mean(0))
        cosines = unit(generic) @ unit(params["gce.weight"]).T
        distance = (generic - received[y]).square().sum().clamp_min(NORM_EPS).sqrt()
        logits = forward.call("head", params, personal)
        return F.cross_entropy(logits, y) + F.cross_entropy(cosines, y) + hp.lamda * distance

    @staticmethod
    def local_grad(grads: Tensors, params: Tensors, shared: Tensors, state: Tensors, hp: GPFLSettings) -> Tensors:
        return {
            name: grad + hp.mu * params[name] if name.startswith(("gce.", "cov.")) else grad
            for name, grad in grads.items()
        }

    @staticmethod
    def local_predict(
        forward: Forward, params: Tensors, x: Tensor, shared: Tensors, state: Tensors, hp: GPFLSettings
    ) -> Tensor:
        z, _ = forward.features(params, x)
        return forward.call("head", params, forward.call("cov", params, z, state["frequency"] @ shared["gce.weight"]))
