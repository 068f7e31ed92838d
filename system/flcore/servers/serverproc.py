"""FedProc, server half: averaged weights, and class centres weighted by samples (see clients/clientproc.py)."""

from flcore.clients.clientproc import MODEL, clientProc
from flcore.servers.prototypes import PrototypeServer
from flcore.servers.serverbase import Server
from flcore.servers.servercpd import positive


class FedProc(PrototypeServer, Server):
    shares = MODEL
    weighting = "count"
    uses = {}
    sends = "extractor, projection, classifier, class centres"

    def __init__(self, args, times):
        super().__init__(args, times)
        self.set_clients(clientProc)
        extra = sum(v.numel() for name, v in self.global_params.items() if name.startswith(MODEL[1:]))
        head = sum(v.numel() for name, v in self.global_params.items() if name.startswith("head."))
        print(f"FedProc: projection and classifier of {extra:,} parameters in place of the head's {head:,}.")

    @staticmethod
    def add_args(parser):
        parser.add_argument_group("FedProc").add_argument(
            "--proc_dim", type=positive(int), default=256, help="size of the projected embedding"
        )
