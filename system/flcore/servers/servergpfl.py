"""GPFL, server half: extractor, class embeddings and conditional valve are averaged by n_i, heads stay."""

from flcore.clients.clientgpfl import clientGPFL
from flcore.servers.serverbase import Server


class GPFL(Server):
    rule = clientGPFL
    shares = ("base.", "gce.", "cov.")
