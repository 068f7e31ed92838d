"""FedDBE, server half: as FedAvg, with a consensus on the mean of the features before the first round."""

from typing import Any

import torch

from flcore.clients.clientdbe import clientDBE
from flcore.servers.messages import message_bytes
from flcore.servers.serverbase import Server


class FedDBE(Server):
    rule = clientDBE
    shares = ("base.", "head.")
    by_messages = False  # all train before the first message
    remembers = ("consensus",)

    def __init__(self, args: Any, times: int) -> None:
        super().__init__(args, times)
        self.consensus: torch.Tensor | None = None  # (K,)

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
        trained = self.round_uploads.train(self.clients, lambda: None)
        holders = [client for client in trained if client.train_samples]
        usable = self.round_uploads.usable(holders, ("mean",))
        if not usable:
            raise self.diverged("no participant with samples is left")
        total = sum(client.train_samples for client, _ in usable)
        weights = [client.train_samples / total for client, _ in usable]
        if self.args.aggregate != "mean":
            return self.combine(["mean"], [{"mean": upload["mean"]} for _, upload in usable], weights)["mean"]
        return torch.stack([w * upload["mean"] for w, (_, upload) in zip(weights, usable, strict=True)]).sum(0)
