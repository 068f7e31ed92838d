"""FedHKD, server half: averaged weights, and hyper-knowledge weighted by samples (see clients/clienthkd.py)."""

from flcore.clients.clienthkd import clientHKD
from flcore.servers.prototypes import PrototypeServer
from flcore.servers.serverbase import Server


class FedHKD(PrototypeServer, Server):
    rule = clientHKD
    weighting = "count"
