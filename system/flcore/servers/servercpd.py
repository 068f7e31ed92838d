"""FedCPD, server half: FedRep's averaged extractor plus global class prototypes (see clients/clientcpd.py)."""

from __future__ import annotations

import argparse
import copy
import logging
from typing import Any

from torch import nn

from flcore.clients.clientcpd import CPDSettings, clientCPD
from flcore.servers.messages import CLASS_MEANS
from flcore.servers.prototypes import PrototypeServer
from flcore.servers.serverbase import Server
from flcore.trainmodel.models import BaseHeadSplit

log = logging.getLogger(__name__)


class FedCPD(PrototypeServer, Server):
    rule = clientCPD
    shares = ("base.",)

    def __init__(self, args: Any, times: int) -> None:
        super().__init__(args, times)
        if not self.clients:  # PFLlib's Server makes none
            self.set_slow_clients()
            self.set_clients(self.rule)
        self.hp = self.clients[0].hp
        self.weighting = self.hp.cpd_proto_weighting
        if self.hp.cpd_fd:
            if levels := self.clients[0].forward.levels:
                layers = ", ".join(f"{name} ({channels} channels)" for name, channels in levels)
                log.info(f"FedCPD: distils the feature maps of {layers}.")
            else:
                log.warning("FedCPD: this model has no feature maps, so feature distillation is off.")

    @property
    def needs(self) -> tuple[str, ...]:
        """What every upload must hold beside the weights: no class means if nothing is learnt from them."""
        return CLASS_MEANS if self.hp.cpd_align or self.hp.cpd_contrast else ()

    @staticmethod
    def split_head(model: Any) -> nn.Module:
        """The model as base and head; what `main.py` of PFLlib does for FedRep."""
        head = copy.deepcopy(model.fc)
        model.fc = nn.Identity()
        return BaseHeadSplit(model, head)

    @staticmethod
    def add_args(parser: argparse.ArgumentParser) -> None:
        """The flags that PFLlib lacks; its `main.py` asks for them."""
        CPDSettings.add_flags(parser, "FedCPD")
