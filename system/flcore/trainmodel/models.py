"""The networks, under PFLlib's class, argument and parameter names.

Every network returns logits, and its last linear layer is called `fc`, so that a head split can take it off
(`flcore.trainmodel.build.split_head`). Weights start from PyTorch's default initialisation.
"""

import torch
from torch import Tensor, nn

EMBEDDING = 512  # width of FedAvgCNN's embedding, K in the papers that use this network


class BaseHeadSplit(nn.Module):
    """A network cut in two: `head(base(x))`, so that its parameters are called `base.…` and `head.…`."""

    def __init__(self, base: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.base = base
        self.head = head

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.base(x))


def _conv_stage(in_channels: int, out_channels: int) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(in_channels, out_channels, kernel_size=5), nn.ReLU(), nn.MaxPool2d(2))


class FedAvgCNN(nn.Module):
    """The network of McMahan et al. (2017) as PFLlib builds it: two 5x5 convolution stages and two linear layers.

    in_features: channels of the images; dim: size of the flattened output of `conv2`, 64 * h * w with
    h = ((H - 4) // 2 - 4) // 2 (1024 for 28x28, 1600 for 32x32). x (B,in_features,H,W) -> logits (B,num_classes).
    """

    layout = torch.channels_last  # of the images, on a CPU: measured, a step takes 0.84 and evaluation 0.58 of the time

    def __init__(self, in_features: int = 1, num_classes: int = 10, dim: int = 1024) -> None:
        super().__init__()
        self.conv1 = _conv_stage(in_features, 32)
        self.conv2 = _conv_stage(32, 64)
        self.fc1 = nn.Sequential(nn.Linear(dim, EMBEDDING), nn.ReLU())
        self.fc = nn.Linear(EMBEDDING, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.fc1(self.conv2(self.conv1(x)).flatten(1)))


class FedAvgMLP(nn.Module):
    """One hidden layer of `hidden_dim` ReLU units on flattened inputs: x (B,...) -> logits (B,num_classes)."""

    def __init__(self, in_features: int = 784, num_classes: int = 10, hidden_dim: int = 200) -> None:
        super().__init__()
        self.fc1 = nn.Linear(in_features, hidden_dim)
        self.fc = nn.Linear(hidden_dim, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.fc1(x.flatten(1)).relu())


class DNN(nn.Module):
    """PFLlib's `-m DNN`: one hidden layer of `mid_dim` ReLU units on flattened inputs."""

    def __init__(self, input_dim: int = 784, mid_dim: int = 100, num_classes: int = 10) -> None:
        super().__init__()
        self.fc1 = nn.Linear(input_dim, mid_dim)
        self.fc = nn.Linear(mid_dim, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.fc1(x.flatten(1)).relu())


class Mclr_Logistic(nn.Module):
    """PFLlib's `-m MLR`: multinomial logistic regression on flattened inputs."""

    def __init__(self, input_dim: int = 784, num_classes: int = 10) -> None:
        super().__init__()
        self.fc = nn.Linear(input_dim, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(x.flatten(1))
