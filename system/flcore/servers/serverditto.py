"""Ditto, server half: as FedAvg for the global copies; personal models stay."""

from flcore.clients.clientditto import clientDitto
from flcore.servers.serverbase import Server


class Ditto(Server):
    shares = ("base.", "head.")
    uses = {"mu": 1.0, "plocal_epochs": 1}
    keeps = "personal model"

    def __init__(self, args, times):
        super().__init__(args, times)
        self.set_clients(clientDitto)
