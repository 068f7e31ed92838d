"""FedGH, client half. Yi, Wang, Liu, Shi, Yu: "FedGH: Heterogeneous Federated Learning with Generalized Global
Header", ACM MM 2023.

The head comes from the server in every round, the first included (PFLlib; the authors' code begins with the second).
Extractor and head train together on cross-entropy; then the mean embedding of each class held goes up, from a pass in
evaluation mode, and the locally tuned head is forgotten. The mean is over samples: the authors' code averages means of
batches, which gives a small last batch too much weight.

Scored after the download this is the extractor under the server's fresh head (PFLlib), scored after training the
extractor under the tuned head (the authors).
"""

from dataclasses import dataclass

from torch import Tensor

from flcore.clients.clientbase import Client
from flcore.clients.localrule import send_embeddings
from flcore.hyperparams import Settings, setting


@dataclass(frozen=True)
class GHSettings(Settings):
    server_epochs: int = setting(
        100, "passes of the server over the class means, to train the head", least=0, source="HtFLlib"
    )
    server_learning_rate: float = setting(0.01, "learning rate of the server's training", above=0, source="HtFLlib")


class clientGH(Client):
    settings = GHSettings

    local_end = staticmethod(send_embeddings)

    def announce(self, prototypes: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
        return prototypes, counts.clamp(max=1)
