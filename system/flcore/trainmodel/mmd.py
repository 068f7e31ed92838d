"""How far apart two sets of vectors lie as samples of distributions."""

import torch
from torch import Tensor

BANDWIDTHS = (10, 15, 20, 50)


def squared_mmd(a: Tensor, b: Tensor) -> Tensor:
    """Squared maximum mean discrepancy of two batches (B, K) and (B', K) -> scalar of at least 0 up to rounding.

    The biased estimate: pairs of a sample with itself count, so that a batch of one sample works.
    """

    def kernel(u: Tensor, v: Tensor) -> Tensor:
        squares = (u.square().sum(1)[:, None] + v.square().sum(1) - 2 * u @ v.T).clamp_min(0)
        return torch.stack([(-squares / (2 * width)).exp() for width in BANDWIDTHS]).sum(0).mean()

    return kernel(a, a) + kernel(b, b) - 2 * kernel(a, b)
