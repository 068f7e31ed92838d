"""FedPA, client half. Jiang, Wang, Yang, Shu, Lin, Yi: "FedPA: Generator-Based Heterogeneous Federated Prototype
Adversarial Learning", IEEE TDSC 2024, doi 10.1109/TDSC.2024.3419211. Not federated posterior averaging.

FedAvg plus a pull of real features to the global prototypes and features from the server's generator G, which are hard
for the head. With t the round, features f, head g and generated labels y' of the classes that have a prototype:

    L = CE(g(f(x)), y) + alpha_t * CE(g(G(y')), y') + beta_t * MSE(f(x), P_y)
    alpha_t = max(1e-4, 25 * 0.98^t),    beta_t = max(0.15, 5 * 0.98^t);    CE alone until there are prototypes

The text was not at hand, so all this follows the authors' code. As there: a round of ``--pa_steps`` mini-batches, not
of epochs (``-ls`` has no effect), and in each step as many generated samples as real ones; G is frozen and evaluated
with its running statistics.

Different here: prototypes are class means of a pass in evaluation mode after training, not of the features met while
the weights still moved, and count as many samples as were met of the class in this round (a class that is held but was
not met is not sent, where the code sends zeros with full weight). The code's learning rate falls by 0.99 a round:
``-ld``. ``--pa_alpha 0 --pa_beta 0 --pa_beta_min 0`` is FedAvg with steps.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from flcore.clients.clientbase import Client
from flcore.clients.localrule import Phase, send_embeddings
from flcore.hyperparams import Settings, setting
from flcore.trainmodel.forward import Forward, Tensors
from flcore.trainmodel.pa import FeatureGenerator, choose
from flcore.trainmodel.prototypes import prototype_alignment_loss

DECAY, LEAST_ALPHA = 0.98, 1e-4


@dataclass(frozen=True)
class PASettings(Settings):
    pa_steps: int = setting(20, "mini-batches a round, instead of epochs", least=1, source="the authors' code")
    pa_gen_steps: int = setting(50, "the generator's steps a round", least=1, source="the authors' code")
    pa_alpha: float = setting(25.0, "weight of generated samples in round 0", least=0, source="the authors' code")
    pa_beta: float = setting(5.0, "weight of the pull to prototypes in round 0", least=0, source="the authors' code")
    pa_beta_min: float = setting(
        0.15, "lower limit of that pull's weight, which falls by 0.98 a round", least=0, source="the authors' code"
    )
    noise_dim: int = setting(32, "size of the generator's noise", least=1, source="the authors' for MNIST")
    hidden_dim: int = setting(256, "hidden units of the generator", least=1, source="the authors' for MNIST")
    generator_learning_rate: float = setting(
        3e-4, "learning rate of the generator in round 0", above=0, source="the authors' for MNIST"
    )


class clientPA(Client):
    settings = PASettings
    local_end = staticmethod(send_embeddings)

    @property
    def has_BatchNorm(self) -> bool:  # noqa: N802  (PFLlib's name)
        """Of the network that trains: the generator's does not."""
        return any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in self.forward.net.base.modules())

    @staticmethod
    def local_modules(forward: Forward, hp: PASettings) -> dict[str, nn.Module]:
        size = forward.size
        return {"generator": FeatureGenerator(hp.noise_dim, hp.hidden_dim, hp.num_classes, size)}

    @staticmethod
    def local_plan(hp: PASettings) -> list[Phase]:
        return [Phase(0, ("base.", "head."), steps=hp.pa_steps)]

    @staticmethod
    def local_draw(generator: torch.Generator, forward: Forward, size: int, hp: PASettings) -> Tensors:
        return {
            "noise": torch.rand(size, hp.noise_dim, generator=generator),
            "uniform": torch.rand(size, generator=generator),
        }

    @staticmethod
    def local_loss(
        forward: Forward, params: Tensors, x: Tensor, y: Tensor, shared: Tensors, state: Tensors, hp: PASettings
    ) -> Tensor:
        logits, z, _ = forward(params, x)
        loss = F.cross_entropy(logits, y)
        if "prototypes" not in shared:
            return loss
        labels = choose(state["uniform"], shared["seen"])
        hard = forward.call("head", params, forward.call("generator", params, state["noise"], labels))
        pull = prototype_alignment_loss(z, y, shared["prototypes"], shared["seen"])
        return loss + alpha(hp) * F.cross_entropy(hard, labels) + beta(hp) * pull

    def announce(self, prototypes: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
        """As numbers of samples the labels met in this round, by going through its mini-batches again."""
        met = torch.zeros_like(counts)
        for _, y in self.local_plan(self.hp)[0].take(self.load_train_data()):
            met += F.one_hot(y, self.num_classes).sum(0)
        met = torch.where(counts > 0, met, 0)
        return torch.where(met[:, None] > 0, prototypes, 0), met


def alpha(hp: PASettings) -> float:
    """The weight of generated samples in round ``hp.round``, for clients and generator; 0 stays 0."""
    return max(LEAST_ALPHA, hp.pa_alpha * DECAY**hp.round) if hp.pa_alpha else 0.0


def beta(hp: PASettings) -> float:
    return max(hp.pa_beta_min, hp.pa_beta * DECAY**hp.round)
