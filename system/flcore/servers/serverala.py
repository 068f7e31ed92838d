"""FedALA, server half: FedAvg; how the download is merged is the clients' part."""

from flcore.clients.clientala import clientALA
from flcore.servers.serverbase import Server


class FedALA(Server):
    rule = clientALA
