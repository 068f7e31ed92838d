"""What FedCPD adds to FedRep: attention, cross-layer fusion and distillation here, class prototypes in prototypes.py.

Jin, Xu, Wang, Hsieh, Wu, Lin: FedCPD, IJCAI 2025, doi 10.24963/ijcai.2025/612. Where the paper leaves a choice open,
the docstring says what was chosen. Portable, so the file also works inside a PFLlib checkout. Nothing here branches on
data, so everything runs under `torch.func.vmap` and `torch.func.grad`.

Shapes: B samples. Feature maps come as a list from shallow to deep, each (B,C_l,H_l,W_l).
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from flcore.trainmodel.prototypes import (
    aggregate_prototypes,
    class_prototypes,
    prototype_alignment_loss,
    prototype_contrastive_loss,
)

__all__ = [
    "CBAM",
    "CrossLayerFusion",
    "HierarchicalDistiller",
    "LevelAttention",
    "aggregate_prototypes",
    "class_prototypes",
    "prototype_alignment_loss",
    "prototype_contrastive_loss",
]


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
        # max, whose gradient goes to one of equal values; amax would compare all of them in its backward pass
        pooled = torch.stack([x.mean((2, 3)), x.flatten(2).max(2).values])  # through the shared MLP in one call
        x = self.mlp(pooled).sum(0).sigmoid()[:, :, None, None] * x
        summary = torch.stack([x.mean(1), x.max(1).values], dim=1)
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

    def __init__(self, channels: Sequence[int], width: int = 16) -> None:
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

    def __init__(self, channels: Sequence[int], width: int = 16, reduction: int = 16) -> None:
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
