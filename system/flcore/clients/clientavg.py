"""FedAvg, client half. McMahan et al., AISTATS 2017, "Communication-Efficient Learning of Deep Networks from
Decentralized Data".

Algorithm 1: the download replaces all weights, then E epochs of SGD on the cross-entropy. That is `LocalRule` itself.
"""

from flcore.clients.clientbase import Client


class clientAVG(Client):
    pass
