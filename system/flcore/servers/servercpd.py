"""FedCPD, server half: FedRep's averaged extractor plus global class prototypes (see clients/clientcpd.py)."""

from __future__ import annotations

import argparse
import copy
import math
from typing import Any

from torch import nn

from flcore.clients.clientcpd import clientCPD
from flcore.servers.prototypes import PrototypeServer
from flcore.servers.serverbase import Server
from flcore.trainmodel.models import BaseHeadSplit


class FedCPD(PrototypeServer, Server):
    shares = ("base.",)
    uses = {"plocal_epochs": 1}
    sends = "extractor, class prototypes"
    keeps = "head, attention and fusion modules, previous extractor"

    def __init__(self, args: Any, times: int) -> None:
        super().__init__(args, times)
        self.weighting = args.cpd_proto_weighting
        self.set_slow_clients()
        self.set_clients(clientCPD)
        if args.cpd_fd:
            channels = self.clients[0].forward.channels
            print(
                f"FedCPD: distils {len(channels)} levels of feature maps with {channels} channels."
                if channels
                else "FedCPD: this model has no feature maps, so feature distillation is off."
            )

    @staticmethod
    def split_head(model: Any) -> nn.Module:
        """The model as base and head; what `main.py` of PFLlib does for FedRep."""
        head = copy.deepcopy(model.fc)
        model.fc = nn.Identity()
        return BaseHeadSplit(model, head)

    @staticmethod
    def add_args(parser: argparse.ArgumentParser) -> None:
        """The flags that PFLlib lacks."""
        group = parser.add_argument_group("FedCPD")
        group.add_argument(
            "--cpd_fd", type=weight, default=1.0, help="weight of the feature distillation; 0 switches a part off"
        )
        group.add_argument("--cpd_align", type=weight, default=1.0, help="weight alpha of the prototype alignment")
        group.add_argument("--cpd_contrast", type=weight, default=1.0, help="weight beta of the prototype contrast")
        group.add_argument("--cpd_tau", type=positive(float), default=0.1, help="temperature of the prototype contrast")
        group.add_argument("--cpd_width", type=positive(int), default=64, help="channels of the cross-layer fusion")
        group.add_argument("--cpd_reduction", type=positive(int), default=16, help="CBAM's channel reduction")
        group.add_argument(
            "--cpd_proto_weighting",
            choices=("uniform", "count"),
            default="uniform",
            help="global prototype: plain mean over the clients that hold a class, or by their counts",
        )


def weight(text: str) -> float:
    value = float(text)
    if not (value >= 0 and math.isfinite(value)):
        raise argparse.ArgumentTypeError(f"{text} is not a finite number of at least 0")
    return value


def positive(kind: type) -> Any:
    def parse(text: str) -> Any:
        value = kind(text)
        if not (value > 0 and math.isfinite(value)):
            raise argparse.ArgumentTypeError(f"{text} is not a finite number above 0")
        return value

    parse.__name__ = kind.__name__
    return parse
