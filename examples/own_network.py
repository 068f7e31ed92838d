"""Trains a network of one's own: a fixed edge filter in front, dropout before the head, AdamW at the clients.

python examples/own_network.py
python system/main.py -algo FedCPD -data Digits -m examples/own_network.py:EdgeNet --optimizer adamw -lr 0.003
"""

import torch
from torch import Tensor, nn

from flcore.experiment import Experiment


class EdgeNet(nn.Module):
    """in_channels and num_classes come from the data; the layers' other sizes from the first sample."""

    feature_stages = ("block1", "block2")  # whose outputs FedCPD distils; without it they are found

    def __init__(self, in_channels: int, num_classes: int, width: int = 16) -> None:
        super().__init__()
        self.edges = nn.Conv2d(in_channels, 2, kernel_size=3, padding=1, bias=False)
        sobel = torch.tensor([[1.0, 0.0, -1.0], [2.0, 0.0, -2.0], [1.0, 0.0, -1.0]]) / 8
        self.edges.weight = nn.Parameter(
            torch.stack([sobel, sobel.T])[:, None].repeat(1, in_channels, 1, 1), requires_grad=False
        )
        self.block1 = nn.Sequential(nn.LazyConv2d(width, 3), nn.GroupNorm(4, width), nn.ReLU(), nn.MaxPool2d(2))
        self.block2 = nn.Sequential(nn.LazyConv2d(width, 3), nn.GroupNorm(4, width), nn.ReLU(), nn.MaxPool2d(2))
        self.dropout = nn.Dropout(0.2)
        self.classifier = nn.LazyLinear(num_classes)

    def forward(self, x: Tensor) -> Tensor:
        maps = self.block2(self.block1(torch.cat([x, self.edges(x)], dim=1)))
        return self.classifier(self.dropout(maps.flatten(1)))


def main(rounds: int = 5) -> None:
    common = {"dataset": "Digits", "num_clients": 20, "global_rounds": rounds, "results_dir": None}
    for algorithm in ("FedRep", "FedCPD"):
        result = Experiment(
            algorithm=algorithm, model=EdgeNet, optimizer="adamw", local_learning_rate=0.003, **common
        ).run()
        print(f"{algorithm} with EdgeNet: A {result.accuracy:.4f} after {rounds} rounds")


if __name__ == "__main__":
    main()
