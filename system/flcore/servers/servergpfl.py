"""GPFL, server half: extractor, class embeddings and conditional valve are averaged by n_i, heads stay."""

from flcore.clients.clientgpfl import clientGPFL
from flcore.servers.serverbase import Server


class GPFL(Server):
    shares = ("base.", "gce.", "cov.")
    uses = {"lamda": 0.01, "mu": 0.1}
    sends = "extractor, class embeddings, conditional valve"
    keeps = "head"

    def __init__(self, args, times):
        super().__init__(args, times)
        self.set_clients(clientGPFL)
