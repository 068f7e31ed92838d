"""MOON, client half. Li, He, Song, CVPR 2021, "Model-Contrastive Federated Learning".

Algorithm 1: the local objective is CE + mu * L_con with

    L_con = mean over the batch of -log( e^{cos(z, z_glob)/tau} / (e^{cos(z, z_glob)/tau} + e^{cos(z, z_prev)/tau}) )

z comes from the extractor in training, z_glob from the one received this round, z_prev from the client's own at the end
of its previous participation (before the first one: the initial one, where L_con has no gradient in round 0).

Variant: no projection head, z is the extractor's output, as in PFLlib; the authors contrast a 256-dimensional
projection. So that all methods share one network, numbers made here are those of this variant. Both references are
frozen and in evaluation mode (the authors' and PFLlib's move their BatchNorm statistics).
tau: 0.5, the authors' (PFLlib: 1.0). mu: 1, inside the authors' range of 0.001 to 10; their example of 5 for CIFAR-10
belongs to the projection, and without it the contrast pulls on the very features that the head reads. PFLlib's default
of 0 is FedAvg.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from flcore.clients.clientbase import Client
from flcore.clients.localrule import Data
from flcore.hyperparams import Settings, setting
from flcore.trainmodel.forward import Forward, Tensors, subset
from flcore.trainmodel.prototypes import unit


@dataclass(frozen=True)
class MOONSettings(Settings):
    mu: float = setting(1.0, "weight of the model-contrastive loss", least=0, source="inside the authors' 0.001 to 10")
    tau: float = setting(0.5, "temperature of the contrast", above=0, source="the authors'")


class clientMOON(Client):
    settings = MOONSettings

    @staticmethod
    def local_init(params: Tensors, hp: MOONSettings) -> Tensors:
        return previous_extractor(params)

    @staticmethod
    def local_loss(
        forward: Forward, params: Tensors, x: Tensor, y: Tensor, shared: Tensors, state: Tensors, hp: MOONSettings
    ) -> Tensor:
        logits, z, _ = forward(params, x)
        z_glob, _ = forward.features(shared, x, frozen=True)
        z_prev, _ = forward.features(subset(state, "previous."), x, frozen=True)
        return F.cross_entropy(logits, y) + hp.mu * model_contrast(z, z_glob, z_prev, hp.tau)

    @staticmethod
    def local_end(
        forward: Forward, params: Tensors, data: Data, shared: Tensors, state: Tensors, hp: MOONSettings
    ) -> tuple[Tensors, Tensors]:
        return previous_extractor(params), {}


def previous_extractor(params: Tensors) -> Tensors:
    return {f"previous.{name}": value for name, value in params.items() if name.startswith("base.")}


def model_contrast(z: Tensor, z_glob: Tensor, z_prev: Tensor, tau: float) -> Tensor:
    """L_con of features (B, K), with gradient in ``z`` only -> scalar. A feature of zeros has cosine 0 to all."""
    z, z_glob, z_prev = (unit(part) for part in (z, z_glob.detach(), z_prev.detach()))
    similarity = torch.stack([(z * z_glob).sum(1), (z * z_prev).sum(1)], dim=1) / tau
    return -F.log_softmax(similarity, dim=1)[:, 0].mean()
