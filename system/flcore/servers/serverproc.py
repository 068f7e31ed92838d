"""FedProc, server half: averaged weights, and class centres weighted by samples (see clients/clientproc.py)."""

import logging
from typing import Any

from flcore.clients.clientproc import MODEL, clientProc
from flcore.servers.prototypes import PrototypeServer
from flcore.servers.serverbase import Server

log = logging.getLogger(__name__)


class FedProc(PrototypeServer, Server):
    rule = clientProc
    shares = MODEL
    weighting = "count"

    def __init__(self, args: Any, times: int) -> None:
        super().__init__(args, times)
        extra = sum(v.numel() for name, v in self.global_params.items() if name.startswith(MODEL[1:]))
        head = sum(v.numel() for name, v in self.global_params.items() if name.startswith("head."))
        log.info(f"FedProc: projection and classifier of {extra:,} parameters in place of the head's {head:,}.")
