"""FedHKD, client half. Chen, Wang, Vikalo: "The Best of Both Worlds: Accurate Global and Personalized Models through
Federated Learning with Data-Free Hyper-Knowledge Distillation", ICLR 2023.

FedAvg plus hyper-knowledge: of each class c the mean embedding H^c and the mean softened prediction Q^c over a client's
samples, averaged by the server. The client minimises

    CE + lamda * mean over classes of D(Q^c, softmax(head(H^c) / tau)) + gamma * R(f(x), H^y);

the second term moves the head, the third the extractor; classes without hyper-knowledge add nothing.

Which variant: ``--hkd_form kl``, the default, is the official code: D the Kullback-Leibler divergence divided by the
number of classes (a mean over elements), R the mean squared error. ``l2`` is the paper: both Euclidean norms. The
aggregation is the paper's, weighted by samples, where a client speaks of a class only if it is at least a share nu of
its data: the official code never aggregates and lets the last client overwrite the others, within the round. nu is the
paper's 0.25 on up to ten classes and 2.5/C beyond, since with a hundred classes hardly any client has a quarter of its
data in one and FedHKD would be FedAvg. Not included: the optional noise on H for differential privacy, the variant
without weights (FedHKD*), and the authors' Adam (all methods here use SGD).

H and Q travel as one tensor (C, K + C), H first.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from flcore.clients.clientbase import Client
from flcore.clients.localrule import Data
from flcore.hyperparams import Settings, setting
from flcore.trainmodel.forward import Forward, Tensors
from flcore.trainmodel.prototypes import prototype_alignment_loss

SMALLEST_SQUARE = 1e-12  # below it a distance counts as constant: the root has no gradient at 0


@dataclass(frozen=True)
class HKDSettings(Settings):
    lamda: float = setting(0.05, "weight of the distilled predictions", least=0, source="the official code")
    tau: float = setting(0.5, "temperature of the predictions", above=0, source="the official code")
    hkd_gamma: float = setting(0.05, "weight of the pull to the mean embeddings", least=0, source="the official code")
    hkd_nu: float | None = setting(
        None,
        "share of its data from which a client speaks of a class; if not given, 0.25, above ten classes 2.5 / C",
        type=float,
        least=0,
        source="the paper's 0.25",
    )
    hkd_form: str = setting(
        "kl",
        "distances as in the official code (kl) or in the paper (l2)",
        choices=("kl", "l2"),
        source="the official code",
    )

    @property
    def nu(self) -> float:
        return min(0.25, 2.5 / self.num_classes) if self.hkd_nu is None else self.hkd_nu


class clientHKD(Client):
    settings = HKDSettings

    @staticmethod
    def local_loss(
        forward: Forward, params: Tensors, x: Tensor, y: Tensor, shared: Tensors, state: Tensors, hp: HKDSettings
    ) -> Tensor:
        logits, z, _ = forward(params, x)
        loss = F.cross_entropy(logits, y)
        if "prototypes" not in shared:
            return loss
        seen, features = shared["seen"], shared["prototypes"][:, : z.shape[1]]
        predictions = shared["prototypes"][:, z.shape[1] :].clamp_min(0)  # only an attack makes one negative
        log_probabilities = F.log_softmax(forward.call("head", params, features) / hp.tau, dim=1)
        if hp.hkd_form == "l2":
            by_class = distance(predictions, log_probabilities.exp())
            towards = torch.where(seen[y], distance(z, features[y]), 0).mean()
        else:
            by_class = (torch.xlogy(predictions, predictions) - predictions * log_probabilities).mean(1)
            towards = prototype_alignment_loss(z, y, features, seen)
        distilled = torch.where(seen, by_class, 0).sum() / seen.sum()
        return loss + hp.lamda * distilled + hp.hkd_gamma * towards

    @staticmethod
    def local_end(
        forward: Forward, params: Tensors, data: Data, shared: Tensors, state: Tensors, hp: HKDSettings
    ) -> tuple[Tensors, Tensors]:
        z = forward.in_batches(params, data[0])
        with torch.no_grad():
            soft = F.softmax(forward.call("head", params, z) / hp.tau, dim=1)
        return state, {"embeddings": torch.cat([z, soft], dim=1)}

    def announce(self, prototypes: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
        return prototypes, torch.where(counts >= self.hp.nu * self.train_samples, counts, 0)


def distance(a: Tensor, b: Tensor) -> Tensor:
    """Euclidean distance of the rows of a and b, (n,K) each -> (n,)."""
    return (a - b).square().sum(1).clamp_min(SMALLEST_SQUARE).sqrt()
