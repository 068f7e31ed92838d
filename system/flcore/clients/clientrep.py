"""FedRep, client half. Collins et al. 2021, "Exploiting Shared Representations for Personalized Federated Learning".

Algorithm 1: first the personal head is fitted to the received extractor, then the extractor to the head.

Deviations: ``-pls`` head epochs and ``-ls`` extractor epochs default to 1 and 1 (PFLlib, the FedCPD paper) where the
authors' scripts use 10 and 1 or 5; while the head trains, the extractor is in evaluation mode, so that BatchNorm
statistics of the "frozen" part do not move.
"""

from dataclasses import dataclass

from flcore.clients.clientbase import Client
from flcore.clients.localrule import Phase, head_loss
from flcore.hyperparams import Settings, setting


@dataclass(frozen=True)
class RepSettings(Settings):
    plocal_epochs: int = setting(1, "epochs of the head, before those of the extractor", least=0, source="PFLlib")


class clientRep(Client):
    settings = RepSettings

    @staticmethod
    def local_plan(hp: RepSettings) -> list[Phase]:
        return [
            Phase(hp.plocal_epochs, ("head.",), loss=head_loss, on_features=True),
            Phase(hp.local_epochs, ("base.",)),
        ]
