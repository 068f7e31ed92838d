"""FedProto, server half: the mean of the clients' prototypes, class by class (see clients/clientproto.py).

The plain mean over the clients that hold a class is the default, as in the authors' code and PFLlib; ``count`` weighs
by samples. The paper's formula divides the weighted mean by the number of holders once more, which would shrink every
prototype: taken as a slip.
"""

from flcore.clients.clientproto import clientProto
from flcore.servers.prototypes import PrototypeServer
from flcore.servers.serverbase import Server


class FedProto(PrototypeServer, Server):
    shares = ()
    uses = {"lamda": 10.0}
    sends = "class prototypes"
    keeps = "all weights"

    def __init__(self, args, times):
        super().__init__(args, times)
        self.weighting = args.proto_weighting
        self.set_clients(clientProto)

    @staticmethod
    def add_args(parser):
        parser.add_argument_group("FedProto").add_argument(
            "--proto_weighting",
            choices=("uniform", "count"),
            default="uniform",
            help="global prototype: plain mean over the clients that hold a class, or by their counts",
        )
