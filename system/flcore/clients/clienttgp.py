"""FedTGP, client half. Zhang, Liu, Hua, Cao: "FedTGP: Trainable Global Prototypes with Adaptive-Margin-Enhanced
Contrastive Learning for Data and Model Heterogeneity in Federated Learning", AAAI 2024.

At the client FedProto (which see: same loss, same pass for the prototypes, same prediction) with the prototypes that
the server has trained. lamda is the released code's 10 for a mean squared error; the paper's 0.1 is for a distance.
"""

from dataclasses import dataclass

from flcore.clients.clientproto import ProtoSettings, clientProto
from flcore.hyperparams import setting

SCRIPTS = "the authors' scripts"


@dataclass(frozen=True)
class TGPSettings(ProtoSettings):
    proto_weighting: str = "uniform"  # nothing to choose: the server does not average
    server_epochs: int = setting(100, "passes of the server over the uploaded prototypes", least=0, source=SCRIPTS)
    server_learning_rate: float = setting(0.01, "learning rate of the server's training", above=0, source=SCRIPTS)
    tgp_margin: float = setting(100.0, "upper bound of the margin between prototypes", above=0, source=SCRIPTS)


class clientTGP(clientProto):
    settings = TGPSettings
