"""FedProx, server half: as FedAvg."""

from flcore.clients.clientprox import clientProx
from flcore.servers.serverbase import Server


class FedProx(Server):
    uses = {"mu": 0.1}

    def __init__(self, args, times):
        super().__init__(args, times)
        self.set_clients(clientProx)
