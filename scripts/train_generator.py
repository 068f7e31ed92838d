"""Trains a small image generator on scikit-learn's digits, for trying FedKTL: the decoder of a variational autoencoder.

python scripts/train_generator.py                       makes system/items/digits_generator.pt in seconds
cd system && python main.py -algo FedKTL -data Digits --generator items/digits_generator.pt -nd 16

The method wants a generator that was trained on other data than the clients' (its paper takes StyleGAN-XL on ImageNet);
results with this one say nothing about it. A file name that ends in .pt2 is written by torch.export instead.
"""

import argparse
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from flcore.data.sources import load
from flcore.hyperparams import user_path
from flcore.utils import console
from flcore.utils.errors import report
from flcore.utils.paths import REPO
from flcore.utils.runs.files import whole_file
from flcore.utils.seeds import seed_everything, torch_generator

SIDE, HIDDEN, BATCH, LEARNING_RATE = 28, 256, 128, 2e-3


class Autoencoder(nn.Module):
    """Images (n, 1, 28, 28) -> mean and log variance (n, W) each -> images. Kingma, Welling, ICLR 2014."""

    def __init__(self, latent_dim: int) -> None:
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Flatten(), nn.Linear(SIDE * SIDE, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, 2 * latent_dim)
        )
        self.decoder = nn.Sequential(
            nn.Linear(latent_dim, HIDDEN),
            nn.ReLU(),
            nn.Linear(HIDDEN, SIDE * SIDE),
            nn.Tanh(),
            nn.Unflatten(1, (1, SIDE, SIDE)),
        )

    def loss(self, x: Tensor, noise: Tensor) -> Tensor:
        """Negative evidence bound per pixel, up to a constant, for pixels of standard deviation 0.3."""
        mean, log_variance = self.encoder(x).chunk(2, dim=1)
        made = self.decoder(mean + (log_variance / 2).exp() * noise)
        divergence = (mean.square() + log_variance.exp() - 1 - log_variance).sum(1).mean() / 2
        return F.mse_loss(made, x) / (2 * 0.3**2) + divergence / x[0].numel()


def train(latent_dim: int, epochs: int, seed: int) -> nn.Module:
    """The trained decoder: latent vectors (n, latent_dim), standard normal -> digits (n, 1, 28, 28) in [-1, 1]."""
    x = torch.from_numpy(load("Digits", None, REPO / "dataset").x).float() / 127.5 - 1
    seed_everything(seed)
    net, draw = Autoencoder(latent_dim), torch_generator(seed, "train_generator")
    optimizer = torch.optim.Adam(net.parameters(), lr=LEARNING_RATE)
    for _ in range(epochs):
        for part in torch.randperm(len(x), generator=draw).split(BATCH):
            optimizer.zero_grad()
            net.loss(x[part], torch.randn(len(part), latent_dim, generator=draw)).backward()
            optimizer.step()
    return net.decoder.eval()


def save(net: nn.Module, latent_dim: int, out: Path) -> None:
    """Writes ``net`` to ``out`` in one step, as TorchScript or, for .pt2, as a program of torch.export."""
    example = torch.zeros(1, latent_dim)
    with whole_file(out) as temporary, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # newer versions of torch advise against TorchScript
        if out.suffix == ".pt2":
            with open(temporary, "wb") as file:
                torch.export.save(torch.export.export(net, (example,)), file)
        else:
            torch.jit.trace(net, example).save(str(temporary))


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0] if __doc__ else "",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument(
        "--out", type=user_path, default=REPO / "system" / "items" / "digits_generator.pt", help="the file"
    )
    parser.add_argument("--latent_dim", type=int, default=16, help="size of a latent vector, -nd of main.py")
    parser.add_argument("--epochs", type=int, default=30, help="passes over the 1,797 digits")
    parser.add_argument("--seed", type=int, default=0, help="seed of all randomness")
    args = parser.parse_args(argv)
    if args.latent_dim < 1 or args.epochs < 1:
        parser.error("--latent_dim and --epochs must be 1 or more")
    torch.set_num_threads(1)  # faster for layers this small
    try:
        net = train(args.latent_dim, args.epochs, args.seed)
        save(net, args.latent_dim, args.out)
    except Exception as error:
        return report(error)
    print(f"wrote {args.out}")
    trust = " --trust_generator" if args.out.suffix == ".pt2" else ""
    print(f"use it: python main.py -algo FedKTL -data Digits --generator {args.out} -nd {args.latent_dim}{trust}")
    return 0


if __name__ == "__main__":
    console.prepare()
    sys.exit(main())
