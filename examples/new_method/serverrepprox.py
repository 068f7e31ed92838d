"""FedRepProx, server half: as FedRep."""

from flcore.clients.clientrepprox import clientRepProx
from flcore.servers.serverbase import Server


class FedRepProx(Server):
    rule = clientRepProx
    shares = ("base.",)  # what travels
