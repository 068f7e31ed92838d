"""FedProto, server half: the mean of the clients' prototypes, class by class (see clients/clientproto.py).

The plain mean over the clients that hold a class is the default, as in the authors' code and PFLlib; ``count`` weighs
by samples. The paper's formula divides the weighted mean by the number of holders once more, which would shrink every
prototype: taken as a slip.
"""

from typing import Any

from flcore.clients.clientproto import clientProto
from flcore.servers.prototypes import PrototypeServer
from flcore.servers.serverbase import Server


class FedProto(PrototypeServer, Server):
    rule = clientProto
    shares = ()

    def __init__(self, args: Any, times: int) -> None:
        super().__init__(args, times)
        self.weighting = self.hp.proto_weighting
