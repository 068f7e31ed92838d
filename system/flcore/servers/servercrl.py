"""FedCRL, server half: a RECONSTRUCTION FROM THE ABSTRACT (see clients/clientcrl.py). Both the weights and the class
representations are averaged, the latter by the samples behind them; a class that nobody uploads keeps its last one.

v1 of the paper, of 2024, shares the whole model; ``--crl_share base`` shares the extractor only, as v2 and v3 do.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
import torch

from flcore.clients.clientcrl import clientCRL, mixing_weight
from flcore.servers.prototypes import PrototypeServer
from flcore.servers.serverbase import Server


class FedCRL(PrototypeServer, Server):
    reconstruction = True  # tables of results shall say so
    uses = {"lamda": 1.0, "tau": 0.5}
    weighting = "count"
    sends = "all weights (or the extractor), class representations"
    keeps = "all weights, contrastive loss"

    def __init__(self, args: Any, times: int) -> None:
        super().__init__(args, times)
        self.shares = ("base.",) if args.crl_share == "base" else ("",)
        self.set_clients(clientCRL)

    def score_download(self) -> None:
        super().score_download()
        weights = [mixing_weight(client.shared, client.state, client.hp) for client in self.clients]
        self._record(rs_crl_mix=np.array(torch.stack(weights).tolist()))

    @staticmethod
    def add_args(parser: argparse.ArgumentParser) -> None:
        """The flags that PFLlib lacks."""
        group = parser.add_argument_group("FedCRL (a reconstruction from the paper's abstract)")
        group.add_argument(
            "--crl_share",
            choices=("model", "base"),
            default="model",
            help="what is averaged and mixed: the whole model (paper's v1) or its extractor (v2); default: model",
        )
        group.add_argument(
            "--crl_mix",
            type=mix,
            default="loss",
            metavar="A",
            help="share of the global model at a download: 'loss' (by the contrastive loss; default) or fixed, 0 to 1",
        )


def mix(text: str) -> float | str:
    if text == "loss":
        return text
    value = float(text)
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"must be 'loss' or from 0 to 1, not '{text}'")
    return value
