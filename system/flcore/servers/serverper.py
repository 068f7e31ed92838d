"""FedPer, server half: the extractor travels and is averaged by n_i, heads stay."""

from flcore.clients.clientper import clientPer
from flcore.servers.serverbase import Server


class FedPer(Server):
    rule = clientPer
    shares = ("base.",)
