"""MOON, server half: as FedAvg."""

from flcore.clients.clientmoon import clientMOON
from flcore.servers.serverbase import Server


class MOON(Server):
    rule = clientMOON
