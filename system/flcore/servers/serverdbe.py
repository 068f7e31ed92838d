"""FedDBE, server half: as FedAvg, with a consensus on the mean of the features before the first round."""

from __future__ import annotations

from typing import Any

import torch

from flcore.clients.clientdbe import clientDBE
from flcore.servers.messages import message_bytes
from flcore.servers.serverbase import Server
from flcore.utils.errors import UsageError


class FedDBE(Server):
    shares = ("base.", "head.")
    uses = {"kl_weight": 50.0, "momentum": 1.0}
    sends = "all weights; once: mean embedding"
    keeps = "bias of the embedding"
    remembers = ("consensus",)
    means_only = ("",)

    def __init__(self, args: Any, times: int) -> None:
        super().__init__(args, times)
        if args.momentum == 0:
            raise UsageError("-mo 0: FedDBE's running mean would never move; give a value above 0, 1 is the authors'.")
        self.consensus: torch.Tensor | None = None  # (K,)
        self.set_clients(clientDBE)

    def send_models(self) -> None:
        if self.consensus is None:
            self.consensus = self.agree()
        told = {"consensus": self.consensus}
        self.broadcast({**self.shared_weights(), **told})
        # The consensus is in every message here, but travels once: each client sends its mean and is told the result.
        self.bytes_once = len(self.clients) * message_bytes(told) if self.current_round == 0 else 0
        self.bytes_down += self.bytes_once - len(self.selected_clients) * message_bytes(told)

    def receive_models(self) -> None:
        self.collect()
        self.bytes_up += self.bytes_once

    def agree(self) -> torch.Tensor:
        """Mean of the clients' mean features by n_i, after one round of plain training by all from the initial weights.

        These are common to all, so nothing is sent for it; what was trained is overwritten by the first download.
        """
        sound = self.round_uploads.train(self.clients, lambda: None)
        holders = [client for client in sound if client.train_samples]
        if not holders:
            raise self.diverged("no participant with samples is left")
        total = sum(client.train_samples for client in holders)
        weights = [client.train_samples / total for client in holders]
        means = [self.round_uploads.upload_of(client)["mean"] for client in holders]
        if self.args.aggregate != "mean":
            return self.combine(["mean"], [{"mean": mean} for mean in means], weights)["mean"]
        return torch.stack([weight * mean for weight, mean in zip(weights, means, strict=True)]).sum(0)
