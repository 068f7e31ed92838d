"""FedCP, server half: extractor, mixed head and policy network are averaged by n_i, personal heads stay."""

from flcore.clients.clientcp import clientCP
from flcore.servers.serverbase import Server


class FedCP(Server):
    rule = clientCP
    shares = ("base.", "head.", "cpn.")
