"""Ditto, server half: as FedAvg for the global copies; personal models stay."""

from flcore.clients.clientditto import clientDitto
from flcore.servers.serverbase import Server


class Ditto(Server):
    rule = clientDitto
    shares = ("base.", "head.")
