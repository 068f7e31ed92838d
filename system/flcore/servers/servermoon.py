"""MOON, server half: as FedAvg."""

from flcore.clients.clientmoon import clientMOON
from flcore.servers.serverbase import Server


class MOON(Server):
    uses = {"mu": 1.0, "tau": 0.5}
    keeps = "previous extractor"

    def __init__(self, args, times):
        super().__init__(args, times)
        self.set_clients(clientMOON)
