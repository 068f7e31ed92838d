"""FedCP, server half: extractor, mixed head and policy network are averaged by n_i, personal heads stay."""

from flcore.clients.clientcp import clientCP
from flcore.servers.serverbase import Server


class FedCP(Server):
    shares = ("base.", "head.", "cpn.")
    uses = {"lamda": 5.0}
    sends = "extractor, mixed head, policy network"
    keeps = "head"

    def __init__(self, args, times):
        super().__init__(args, times)
        self.set_clients(clientCP)
