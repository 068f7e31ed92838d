"""FedProx, server half: as FedAvg."""

from flcore.clients.clientprox import clientProx
from flcore.servers.serverbase import Server


class FedProx(Server):
    rule = clientProx
