"""FedAvg, server half: all weights travel and are averaged by n_i. That is `Server` as it is."""

from flcore.clients.clientavg import clientAVG
from flcore.servers.serverbase import Server


class FedAvg(Server):
    rule = clientAVG
