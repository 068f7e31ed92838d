"""FedRep, server half: the extractor travels and is averaged by n_i, heads stay."""

from flcore.clients.clientrep import clientRep
from flcore.servers.serverbase import Server


class FedRep(Server):
    shares = ("base.",)
    uses = {"plocal_epochs": 1}
    sends = "extractor"
    keeps = "head"

    def __init__(self, args, times):
        super().__init__(args, times)
        self.set_clients(clientRep)
