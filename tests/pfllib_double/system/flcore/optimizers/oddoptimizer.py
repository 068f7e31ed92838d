# Test double, not PFLlib's code: an optimiser that a pair brings along.
from torch.optim import SGD


class HalfSGD(SGD):
    """Steps of half the length."""

    def __init__(self, params, lr):
        super().__init__(params, lr=lr / 2)
