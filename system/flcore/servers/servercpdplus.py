"""FedCPD+, server half: FedCPD's (see clients/clientcpdplus.py)."""

from flcore.clients.clientcpdplus import clientCPDPlus
from flcore.servers.servercpd import FedCPD


class FedCPDPlus(FedCPD):
    rule = clientCPDPlus
