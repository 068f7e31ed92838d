"""FedHKD, server half: averaged weights, and hyper-knowledge weighted by samples (see clients/clienthkd.py)."""

from flcore.clients.clienthkd import clientHKD
from flcore.servers.prototypes import PrototypeServer
from flcore.servers.serverbase import Server
from flcore.servers.servercpd import weight


class FedHKD(PrototypeServer, Server):
    weighting = "count"
    uses = {"lamda": 0.05, "tau": 0.5}
    noise_refusal = "it uploads mean predictions as well, which with noise are no probabilities any more."
    sends = "all weights, mean embedding and prediction of each class"

    def __init__(self, args, times):
        super().__init__(args, times)
        self.set_clients(clientHKD)

    @staticmethod
    def add_args(parser):
        group = parser.add_argument_group("FedHKD")
        group.add_argument("--hkd_gamma", type=weight, default=0.05, help="weight of the pull to the mean embeddings")
        group.add_argument(
            "--hkd_nu",
            type=weight,
            help="share of its data from which a client speaks of a class (default: 0.25, above ten classes 2.5 / C)",
        )
        group.add_argument(
            "--hkd_form", choices=("kl", "l2"), default="kl", help="distances as in the official code or in the paper"
        )
