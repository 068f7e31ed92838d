"""FedCRL, server half: a RECONSTRUCTION FROM THE ABSTRACT (see clients/clientcrl.py). Both the weights and the class
representations are averaged, the latter by the samples behind them; a class that nobody uploads keeps its last one.

v1 of the paper, of 2024, shares the whole model; ``--crl_share base`` shares the extractor only, as v2 and v3 do.
"""

from typing import Any

import numpy as np
import torch

from flcore.clients.clientcrl import clientCRL, mixing_weight
from flcore.servers.prototypes import PrototypeServer
from flcore.servers.serverbase import Server


class FedCRL(PrototypeServer, Server):
    rule = clientCRL
    weighting = "count"
    by_messages = False  # the rate of mixing is the clients' own

    def __init__(self, args: Any, times: int) -> None:
        super().__init__(args, times)
        self.shares = ("base.",) if self.hp.crl_share == "base" else ("",)

    def score_download(self) -> None:
        super().score_download()
        weights = [mixing_weight(client.shared, client.state, client.hp) for client in self.evaluation.clients]
        self.record(rs_crl_mix=np.array(torch.stack(weights).tolist()))
