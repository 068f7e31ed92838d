"""FedPer, server half: the extractor travels and is averaged by n_i, heads stay."""

from flcore.clients.clientper import clientPer
from flcore.servers.serverbase import Server


class FedPer(Server):
    shares = ("base.",)
    uses = {}
    sends = "extractor"
    keeps = "head"

    def __init__(self, args, times):
        super().__init__(args, times)
        self.set_clients(clientPer)
