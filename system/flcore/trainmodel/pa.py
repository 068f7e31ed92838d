"""FedPA's feature generator and what it is trained by. B samples, C classes, K embedding size, M participants."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from flcore.trainmodel.prototypes import prototype_alignment_loss

FARTHEST = 10.0  # mean squares of the prototypes


class FeatureGenerator(nn.Module):
    """Embeddings of given classes: noise (B, noise_dim), uniform in [0, 1), and labels (B,) -> (B, K).

    Linear, BatchNorm, ReLU, Linear as in the authors' code, and a last ReLU: the embeddings of the networks here are
    behind one, where the authors' are not.
    """

    def __init__(self, noise_dim: int, hidden_dim: int, num_classes: int, size: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(noise_dim + num_classes, hidden_dim),
            nn.BatchNorm1d(hidden_dim),
            nn.ReLU(),
            nn.Linear(hidden_dim, size),
            nn.ReLU(),
        )
        self.num_classes = num_classes

    def forward(self, noise: Tensor, labels: Tensor) -> Tensor:
        hot = labels[:, None] == torch.arange(self.num_classes, device=labels.device)
        return self.layers(torch.cat([noise, hot.to(noise.dtype)], dim=1))


def choose(uniform: Tensor, allowed: Tensor) -> Tensor:
    """Labels (B,), each of the ``allowed`` (C,) bool equally likely, from numbers ``uniform`` (B,) in [0, 1)."""
    reached = allowed.cumsum(0)
    place = (uniform * reached[-1]).long().clamp(max=reached[-1] - 1)
    return (reached <= place[:, None]).sum(1)


def fidelity(logits: Tensor, labels: Tensor, counts: Tensor) -> Tensor:
    """Sum over participants of mean(w * CE) of their heads' logits (M, B, C) -> scalar.

    w[i, y] = (1 + counts[i, y]) / sum over j of (1 + counts[j, y]), with the labels that each met, ``counts`` (M, C).
    Each sample's cross-entropy is multiplied by its own weight; the authors' code multiplies (B,) by (B, 1), which
    makes (B, B) and loses the weights.
    """
    losses = F.cross_entropy(logits.transpose(1, 2), labels.expand(len(logits), -1), reduction="none")
    weights = (1 + counts) / (1 + counts).sum(0)
    return (weights[:, labels] * losses).mean(1).sum()


def diversity(noise: Tensor, features: Tensor, labels: Tensor) -> Tensor:
    """exp(-mean over all pairs of D(noise) * D(features)), 0 for pairs of one class: small where classes differ.

    D(noise) is the mean squared difference, D(features) the mean absolute one.
    """
    apart = (labels[:, None] != labels).to(features.dtype)
    of_noise = torch.cdist(noise, noise).square() / noise.shape[1]
    of_features = torch.cdist(features, features, p=1) / features.shape[1]
    return torch.exp(-(apart * of_noise * of_features).mean())


def distance_to_prototypes(features: Tensor, labels: Tensor, prototypes: Tensor, seen: Tensor) -> Tensor:
    """Mean squared error of features (B, K) to the prototypes (C, K) of their labels, limited -> scalar.

    To be made large, it needs an end: beyond 10 times the mean square of the prototypes it is constant. At least one
    class must be ``seen`` (C,); a feature of a class that is not adds 0.
    """
    limit = FARTHEST * prototypes[seen].square().mean()
    return prototype_alignment_loss(features, labels, prototypes, seen).clamp(max=limit)
