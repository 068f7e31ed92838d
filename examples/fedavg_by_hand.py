"""FedAvg by hand: the round loop of the whole program, on one page, without any of its parts.

    python examples/fedavg_by_hand.py

McMahan et al. 2017, Algorithm 1. It draws the same random numbers as the program does, so its accuracies are those of
`python main.py -algo FedAvg -data Digits -nc 20 -ex loop`; a test compares them.
"""

import torch
from torch.nn.functional import cross_entropy

from flcore.data.ensure import ensure_dataset
from flcore.data.reading import DataSet
from flcore.trainmodel.build import build_model
from flcore.utils.seeds import numpy_generator, seed_everything, torch_generator


def fedavg(data: DataSet, rounds: int, lr: float = 0.01, batch_size: int = 10, seed: int = 0) -> list[float]:
    """The accuracy at evaluation point A (every client, after the download) in rounds 0 to ``rounds``."""
    config = data.config()
    train = [data.tensors(i, is_train=True) for i in range(config["num_clients"])]
    test = [data.tensors(i, is_train=False) for i in range(config["num_clients"])]
    samples = sum(len(y) for _, y in train)

    seed_everything(int(numpy_generator(seed, 0, "initial model").integers(2**31)))
    model = build_model("CNN", data.shape(), config["num_classes"])
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    accuracies = []
    for round in range(rounds + 1):
        # The server sends the global weights, and everybody is scored with them.
        model.load_state_dict(weights)
        accuracies.append(accuracy(model, test))
        if round == rounds:
            break
        # Each client trains for one epoch, and the server takes the mean of what comes back, weighted by samples.
        mean = {name: torch.zeros_like(value) for name, value in weights.items()}
        for i, (x, y) in enumerate(train):
            model.load_state_dict(weights)
            order = torch_generator(seed, 0, round, i, "train", 0)
            train_one_epoch(model, x, y, lr, min(batch_size, len(y)), order)
            for name, value in model.state_dict().items():
                mean[name].add_(value, alpha=len(y) / samples)
        weights = mean
    return accuracies


def train_one_epoch(
    model: torch.nn.Module, x: torch.Tensor, y: torch.Tensor, lr: float, batch_size: int, order: torch.Generator
) -> None:
    """Plain SGD on shuffled mini-batches; an incomplete last one is dropped, as in PFLlib."""
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    steps = len(y) // batch_size
    for batch in torch.randperm(len(y), generator=order)[: steps * batch_size].view(steps, batch_size):
        optimizer.zero_grad()
        cross_entropy(model(x[batch]), y[batch]).backward()
        optimizer.step()


def accuracy(model: torch.nn.Module, clients: list[tuple[torch.Tensor, torch.Tensor]]) -> float:
    """The share of correct predictions over the test images of all clients."""
    with torch.no_grad():
        correct = sum(int((model(x).argmax(1) == y).sum()) for x, y in clients)
    return correct / sum(len(y) for _, y in clients)


if __name__ == "__main__":
    for number, value in enumerate(fedavg(ensure_dataset("Digits", 20), rounds=5)):
        print(f"round {number}: accuracy {value:.4f}")
