"""Local training: nothing travels."""

from flcore.clients.clientlocal import clientLocal
from flcore.servers.serverbase import Server


class Local(Server):
    shares = ()
    uses = {}
    averages = False
    sends = "nothing"
    keeps = "all weights"

    def __init__(self, args, times):
        super().__init__(args, times)
        self.set_clients(clientLocal)
