"""FedALA, server half: FedAvg; how the download is merged is the clients' part."""

from flcore.clients.clientala import clientALA
from flcore.servers.serverbase import Server


class FedALA(Server):
    uses = {"eta": 1.0, "rand_percent": 80, "layer_idx": 2}
    keeps = "all weights, aggregation weights of the top layers"

    def __init__(self, args, times):
        super().__init__(args, times)
        self.set_clients(clientALA)
