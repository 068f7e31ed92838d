"""What FedCPD adds to FedRep: attention, cross-layer fusion, distillation and class prototypes.

Jin, Xu, Wang, Hsieh, Wu, Lin: FedCPD, IJCAI 2025, doi 10.24963/ijcai.2025/612. Where the paper leaves a choice open,
the docstring says what was chosen. Imports torch only, so the file also works inside a PFLlib checkout. Nothing here
branches on data, so everything runs under `torch.func.vmap` and `torch.func.grad`.

Shapes: B samples, C classes, K embedding size, N clients. Feature maps come as a list from shallow to deep, each
(B,C_l,H_l,W_l).
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

COSINE_EPS = 1e-8  # smallest norm a cosine divides by: a dead ReLU embedding has norm 0


class CBAM(nn.Module):
    """Channel attention, then spatial attention (Woo et al., ECCV 2018): F (B,C,H,W) -> the refined map, same shape.

    Chosen here: no batch normalisation in the spatial gate, because batches are small and clients differ.
    """

    def __init__(self, channels: int, reduction: int = 16) -> None:
        super().__init__()
        hidden = max(channels // reduction, 1)
        self.mlp = nn.Sequential(nn.Linear(channels, hidden), nn.ReLU(), nn.Linear(hidden, channels))
        self.spatial = nn.Conv2d(2, 1, kernel_size=7, padding=3)

    def forward(self, x: Tensor) -> Tensor:
        pooled = torch.stack([x.mean((2, 3)), x.amax((2, 3))])  # both go through the shared MLP in one call
        x = self.mlp(pooled).sum(0).sigmoid()[:, :, None, None] * x
        summary = torch.stack([x.mean(1), x.amax(1)], dim=1)
        return self.spatial(summary).sigmoid() * x


class LevelAttention(nn.ModuleList):
    """One CBAM a level: [F1..FL] -> [A1..AL], same shapes."""

    def __init__(self, channels: Sequence[int], reduction: int = 16) -> None:
        super().__init__(CBAM(count, reduction) for count in channels)

    def forward(self, maps: Sequence[Tensor]) -> list[Tensor]:
        return [cbam(x) for cbam, x in zip(self, maps, strict=True)]


class CrossLayerFusion(nn.Module):
    """Enrich shallow maps with deep ones: [X1..XL] -> [X1*..XL*], same shapes as the inputs.

    M_L = Cv1(X_L); M_l = Up(M_l+1) + Cv1(X_l) + Cv3(X_l); X_l* = Cv2(M_l). Cv1 is 1x1 (C_l -> width), Cv3 is 3x3
    (C_l -> width), Cv2 is 3x3 (width -> C_l), Up is bilinear. The paper names the three convolutions, the upsampling
    and the order; kernel sizes, width, biases and a top level without Cv3 are chosen here. Raises ValueError for
    another number of maps.
    """

    def __init__(self, channels: Sequence[int], width: int = 64) -> None:
        super().__init__()
        self.cv1 = nn.ModuleList(nn.Conv2d(count, width, kernel_size=1) for count in channels)
        self.cv2 = nn.ModuleList(nn.Conv2d(width, count, kernel_size=3, padding=1) for count in channels)
        self.cv3 = nn.ModuleList(nn.Conv2d(count, width, kernel_size=3, padding=1) for count in channels[:-1])

    def forward(self, maps: Sequence[Tensor]) -> list[Tensor]:
        if len(maps) != len(self.cv1):
            raise ValueError(f"expected {len(self.cv1)} feature maps, got {len(maps)}")
        merged = self.cv1[-1](maps[-1])
        fused = [self.cv2[-1](merged)]
        for level in reversed(range(len(self.cv3))):
            x = maps[level]
            up = F.interpolate(merged, size=x.shape[-2:], mode="bilinear", align_corners=False)
            merged = up + self.cv1[level](x) + self.cv3[level](x)
            fused.append(self.cv2[level](merged))
        return fused[::-1]


class HierarchicalDistiller(nn.Module):
    """Distillation from a client's own previous extractor, on every level and in two streams: features and attention.

    channels: C_l of each level, shallow to deep. Each stream has its own fusion (chosen here; the paper fuses both).
    `attention` can be called by itself, to make the teacher's side with the weights of the teacher's time.
    """

    def __init__(self, channels: Sequence[int], width: int = 64, reduction: int = 16) -> None:
        super().__init__()
        self.attention = LevelAttention(channels, reduction)
        self.attention_fusion = CrossLayerFusion(channels, width)
        self.feature_fusion = CrossLayerFusion(channels, width)

    def forward(
        self, student_maps: Sequence[Tensor], teacher_maps: Sequence[Tensor], teacher_attention: Sequence[Tensor]
    ) -> Tensor:
        """Sum over levels of MSE(A*_S, A_T) + MSE(F*_S, F_T): the fused student against the raw, constant teacher.

        MSE is the mean over all elements -> scalar (the paper's prose says MSE, its Algorithm 1 writes squared norms).
        Raises ValueError if the three lists differ in length.
        """
        streams = [
            (self.attention_fusion(self.attention(student_maps)), teacher_attention),
            (self.feature_fusion(student_maps), teacher_maps),
        ]
        pairs = [pair for fused, raw in streams for pair in zip(fused, raw, strict=True)]
        return torch.stack([F.mse_loss(student, teacher.detach()) for student, teacher in pairs]).sum()

    loss = forward


def prototype_alignment_loss(z: Tensor, y: Tensor, prototypes: Tensor, seen: Tensor, reduction: str = "mean") -> Tensor:
    """Squared distance of each embedding to its class's prototype, mean over the batch -> scalar.

    z (B,K), y (B,) int64 in [0,C), prototypes (C,K) constant, seen (C,) bool. A sample whose class has no prototype
    adds 0 to the sum and still counts in B. reduction: "mean" over the K elements of a distance (the default; a plain
    sum diverges at the paper's learning rate) or "sum", K times as large. Raises ValueError for another reduction.
    """
    if reduction not in ("mean", "sum"):
        raise ValueError(f"reduction must be 'mean' or 'sum', not {reduction!r}")
    # Without a prototype, a sample's target is a constant copy of itself: loss and gradient 0, whatever the row holds.
    targets = torch.where(seen[y, None], prototypes[y], z).detach()
    loss = F.mse_loss(z, targets)
    return loss if reduction == "mean" else loss * z.shape[1]


def prototype_contrastive_loss(z: Tensor, y: Tensor, prototypes: Tensor, seen: Tensor, temperature: float) -> Tensor:
    """InfoNCE of cosines: cross-entropy with logits cos(z, P_c) / temperature over the seen classes -> scalar.

    Shapes as in `prototype_alignment_loss`. All seen classes but the sample's own are negatives, also those the client
    lacks; unseen classes are not. Mean over the batch; a sample whose class has no prototype adds 0 and still counts.
    """
    known = torch.where(seen[:, None], prototypes, 0).detach()
    cosines = F.normalize(z, dim=1, eps=COSINE_EPS) @ F.normalize(known, dim=1, eps=COSINE_EPS).T
    # With no class seen, mask none: a softmax over nothing but -inf is NaN, and every sample is ignored anyway.
    logits = (cosines / temperature).masked_fill(~seen & seen.any(), -torch.inf)
    ignored = -100  # cross_entropy's label for "leave this sample out"
    return F.cross_entropy(logits, torch.where(seen[y], y, ignored), reduction="sum", ignore_index=ignored) / len(y)


def clip_lengths(z: Tensor, limit: float) -> Tensor:
    """The rows of z (n,K), longer ones shortened to the L2 norm ``limit``; 0: z as it is."""
    return z * (limit / z.norm(dim=1, keepdim=True).clamp_min(limit)) if limit else z


def class_prototypes(z: Tensor, y: Tensor, num_classes: int) -> tuple[Tensor, Tensor]:
    """Mean embedding and number of samples of each class: z (n,K), y (n,) -> (C,K) in at least float32, (C,) int64.

    Labels outside [0,C), such as a padding of -1, are left out. An absent class has count 0 and a row of zeros, which
    is no prototype: look at the count.
    """
    z = z.to(torch.promote_types(z.dtype, torch.float32))
    member = y[:, None] == torch.arange(num_classes, device=y.device)
    counts = member.sum(0)
    used = torch.where(member.any(1)[:, None], z, 0)  # 0 * NaN is NaN: what padding holds must not matter
    return member.to(z.dtype).T @ used / counts.clamp_min(1)[:, None], counts


def aggregate_prototypes(
    prototypes: Tensor,
    counts: Tensor,
    previous: Tensor | None,
    previous_seen: Tensor | None,
    weighting: str = "uniform",
) -> tuple[Tensor, Tensor]:
    """Global prototypes from the clients': (N,C,K) and counts (N,C) -> (C,K), seen (C,) bool.

    A client holds a class if its count is above 0. weighting: "uniform" over the holders (default; the paper uploads no
    counts) or "count", by their samples. A class that nobody holds this time keeps `previous` (C,K) and `previous_seen`
    (C,); both may be None in the first round. Raises ValueError for another weighting.
    """
    if weighting not in ("uniform", "count"):
        raise ValueError(f"weighting must be 'uniform' or 'count', not {weighting!r}")
    holds = counts > 0
    weights = (holds if weighting == "uniform" else counts).to(prototypes.dtype)
    held = holds.any(0)
    sums = (weights[..., None] * torch.where(holds[..., None], prototypes, 0)).sum(0)
    mean = sums / weights.sum(0)[:, None]  # 0 / 0 where nobody holds the class, replaced below
    if previous is None or previous_seen is None:
        previous, previous_seen = torch.zeros_like(mean), torch.zeros_like(held)
    return torch.where(held[:, None], mean, previous), previous_seen | held
