"""FedDBE, client half. Zhang, Hua, Cao, Wang, Song, Xue, Ma, Guan, NeurIPS 2023, "Eliminating Domain Bias for Federated
Learning in Representation Space" (the domain bias eliminator, DBE).

FedAvg with two parts, K the size of the features:
* personalised representation bias memory: logits h(f(x) + v_i) with a trainable v_i in R^K that starts at 0, stays at
  the client and trains along;
* mean regularisation: CE + kappa * mean over the K elements of 1/2 * (m_i - m)^2. m_i is a running mean of f(x) over
  the batches of this round, with gradient through the present batch; m is the clients' consensus, agreed once before
  the first round (see servers/serverdbe.py).

Differences from the released code: m_i is divided by the total weight of its batches, since a running mean that starts
from 0 is too small for momentum < 1 (at momentum 1, the authors' value, both are the batch's mean); the consensus is
made of exact means over all samples, not of the last batches while training, which serves clients below one batch too.
kappa (-klw) 50 and momentum (-mo) 1: the authors' for the CNN; PFLlib's default of kappa, 0, has no regulariser.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from flcore.clients.clientbase import Client
from flcore.clients.localrule import Data
from flcore.hyperparams import Settings, setting
from flcore.trainmodel.forward import Forward, Tensors


class Bias(nn.Module):
    """v_i, and the running mean of the features: z (B, K) -> z + v_i (B, K), m_i (K).

    As in BatchNorm the running mean is a buffer, and only training moves it.
    """

    total: torch.Tensor
    weight: torch.Tensor

    def __init__(self, size: int, momentum: float) -> None:
        super().__init__()
        self.momentum = momentum
        self.bias = nn.Parameter(torch.zeros(size))
        self.register_buffer("total", torch.zeros(size))  # weighted sum of batch means
        self.register_buffer("weight", torch.zeros(()))  # sum of the weights

    def forward(self, z: Tensor) -> tuple[Tensor, Tensor]:
        total = (1 - self.momentum) * self.total + self.momentum * z.mean(0)
        weight = (1 - self.momentum) * self.weight + self.momentum
        if self.training:
            with torch.no_grad():
                self.total.copy_(total)
                self.weight.copy_(weight)
        return z + self.bias, total / weight


@dataclass(frozen=True)
class DBESettings(Settings):
    kl_weight: float = setting(
        50.0, "weight kappa of the mean regularisation", least=0, source="the authors' for the CNN"
    )
    momentum: float = setting(1.0, "momentum of the running mean of features", above=0, most=1, source="the authors'")


class clientDBE(Client):
    settings = DBESettings
    replaced = ("",)

    @staticmethod
    def local_modules(forward: Forward, hp: DBESettings) -> dict[str, nn.Module]:
        return {"memory": Bias(forward.size, hp.momentum)}

    @staticmethod
    def local_begin(
        forward: Forward,
        params: Tensors,
        received: Tensors,
        data: Data,
        shared: Tensors,
        state: Tensors,
        hp: DBESettings,
    ) -> Tensors:
        fresh = {name: torch.zeros_like(params[name]) for name in ("memory.total", "memory.weight")}
        return {**params, **received, **fresh}

    @staticmethod
    def local_loss(
        forward: Forward, params: Tensors, x: Tensor, y: Tensor, shared: Tensors, state: Tensors, hp: DBESettings
    ) -> Tensor:
        if "consensus" not in shared:  # the round before the first one: plain training
            return F.cross_entropy(forward(params, x)[0], y)
        shifted, mean = forward.call("memory", params, forward.features(params, x)[0])
        regulariser = (mean - shared["consensus"]).square().mean() / 2
        return F.cross_entropy(forward.call("head", params, shifted), y) + hp.kl_weight * regulariser

    @staticmethod
    def local_end(
        forward: Forward, params: Tensors, data: Data, shared: Tensors, state: Tensors, hp: DBESettings
    ) -> tuple[Tensors, Tensors]:
        if "consensus" in shared:
            return state, {}
        return state, {"mean": forward.in_batches(params, data[0]).mean(0)}

    @staticmethod
    def local_predict(
        forward: Forward, params: Tensors, x: Tensor, shared: Tensors, state: Tensors, hp: DBESettings
    ) -> Tensor:
        return forward.call("head", params, forward.features(params, x)[0] + params["memory.bias"])
