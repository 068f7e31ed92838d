"""FedRep, server half: the extractor travels and is averaged by n_i, heads stay."""

from flcore.clients.clientrep import clientRep
from flcore.servers.serverbase import Server


class FedRep(Server):
    rule = clientRep
    shares = ("base.",)
