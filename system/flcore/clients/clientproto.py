"""FedProto, client half. Tan, Long, Liu, Zhou, Lu, Jiang, Zhang: "FedProto: Federated Prototype Learning across
Heterogeneous Clients", AAAI 2022.

No weight ever travels. All parameters minimise CE + lamda * R, R pulling each embedding to the global prototype of its
class; then the mean embedding of each class held goes up. Prediction: the nearest global prototype, head unused.

Where paper and released code differ:
* R is the code's: the mean squared error over batch and features between embeddings and prototypes, where a sample
  whose class has no global prototype adds 0 and still counts. The paper compares local with global prototypes.
* lamda is 10 here. A mean over K features is 1/K of the squared distance, so the papers' 0.1 to 1 for a distance would
  hardly be felt; 10 is what PFLlib's author uses with this form. PFLlib's own default of 1 is a placeholder.
* Prototypes come from a pass of their own after training, in evaluation mode. Both code bases add up features while
  training, of weights that still move.
* Prediction is over all classes with a global prototype; the authors' script offers each client only its own classes.
* Before there are prototypes the head predicts; PFLlib scores 0 there.
"""

from dataclasses import dataclass

from torch import Tensor
from torch.nn import functional as F

from flcore.clients.clientbase import Client
from flcore.clients.localrule import send_embeddings
from flcore.hyperparams import Settings, setting
from flcore.trainmodel.forward import Forward, Tensors
from flcore.trainmodel.prototypes import nearest_prototype, prototype_alignment_loss


@dataclass(frozen=True)
class ProtoSettings(Settings):
    lamda: float = setting(10.0, "weight of the pull to the global prototypes", least=0, source="PFLlib's author")
    proto_weighting: str = setting(
        "uniform",
        "global prototype: plain mean over the clients that hold a class, or by their counts",
        choices=("uniform", "count"),
        source="the authors' code",
    )


class clientProto(Client):
    settings = ProtoSettings
    local_end = staticmethod(send_embeddings)

    @staticmethod
    def local_loss(
        forward: Forward, params: Tensors, x: Tensor, y: Tensor, shared: Tensors, state: Tensors, hp: ProtoSettings
    ) -> Tensor:
        logits, z, _ = forward(params, x)
        loss = F.cross_entropy(logits, y)
        if "prototypes" in shared:
            loss = loss + hp.lamda * prototype_alignment_loss(z, y, shared["prototypes"], shared["seen"])
        return loss

    def announce(self, prototypes: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
        return prototypes, counts if self.hp.proto_weighting == "count" else counts.clamp(max=1)

    @staticmethod
    def local_predict(
        forward: Forward, params: Tensors, x: Tensor, shared: Tensors, state: Tensors, hp: ProtoSettings
    ) -> Tensor:
        logits, z, _ = forward(params, x)
        return nearest_prototype(z, shared["prototypes"], shared["seen"]) if "prototypes" in shared else logits
