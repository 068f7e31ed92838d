"""FedProc, client half. Mu, Shen, Cheng, Geng, Fu, Zhang, Zhang: "FedProc: Prototypical Contrastive Federated Learning
on Non-IID Data", Future Generation Computer Systems 143, 2023. The full text was not at hand; this follows the released
code.

One global model. Between extractor and classifier sits a projection z = normalise(Linear(ReLU(Linear(f(x))))) of
``--proc_dim`` (256) elements, and the classifier works on z: FedProc's own modules, which travel and are averaged
with the extractor; the head that other methods use is idle. With K = 512 and C classes this is K*K + K + 256*K + 256 +
257*C parameters instead of 513*C; for C = 10, 391,424 more. Keep that in mind in comparisons.

In round t of T all parameters minimise a*CE + (1 - a)*L, a = t/T, with

    L = mean of -log( exp(z . c_y) / sum over classes j of exp(z . c_j) ),  c the normalised class centres,

without a temperature: contrast first, cross-entropy later. The first round, without centres, is CE only.

Deviations: T is the planned number of rounds (``-gr``; the code fixes 100, its number of rounds); classes without a
centre are left out of the sum (the code's zero vectors count exp(0) there); centres come from a pass in evaluation mode
over all samples (the code drops the last batch and augments); they are first made after the first round, as those of
the initial network would not be used.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from flcore.clients.clientbase import Client
from flcore.clients.localrule import Data, Phase
from flcore.hyperparams import Settings, setting
from flcore.trainmodel.forward import Forward, Tensors
from flcore.trainmodel.prototypes import prototype_contrastive_loss, unit

MODEL = ("base.", "projection.", "classifier.")  # prefixes of the network that FedProc trains and shares


@dataclass(frozen=True)
class ProcSettings(Settings):
    proc_dim: int = setting(256, "size of the projected embedding", least=1, source="the released code")


class clientProc(Client):
    settings = ProcSettings

    @staticmethod
    def local_modules(forward: Forward, hp: ProcSettings) -> dict[str, nn.Module]:
        width, dim = forward.size, hp.proc_dim
        return {
            "projection": nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, dim)),
            "classifier": nn.Linear(dim, hp.num_classes),
        }

    @staticmethod
    def local_plan(hp: ProcSettings) -> list[Phase]:
        return [Phase(hp.local_epochs, MODEL)]

    @staticmethod
    def local_loss(
        forward: Forward, params: Tensors, x: Tensor, y: Tensor, shared: Tensors, state: Tensors, hp: ProcSettings
    ) -> Tensor:
        z = projected(forward, params, forward.features(params, x)[0])
        loss = F.cross_entropy(forward.call("classifier", params, z), y)
        if "prototypes" in shared:
            share = min(hp.round / hp.global_rounds, 1.0)
            contrast = prototype_contrastive_loss(z, y, shared["prototypes"], shared["seen"], temperature=1.0)
            loss = share * loss + (1 - share) * contrast
        return loss

    @staticmethod
    def local_end(
        forward: Forward, params: Tensors, data: Data, shared: Tensors, state: Tensors, hp: ProcSettings
    ) -> tuple[Tensors, Tensors]:
        with torch.no_grad():
            return state, {"embeddings": projected(forward, params, forward.in_batches(params, data[0]))}

    @staticmethod
    def local_predict(
        forward: Forward, params: Tensors, x: Tensor, shared: Tensors, state: Tensors, hp: ProcSettings
    ) -> Tensor:
        return forward.call("classifier", params, projected(forward, params, forward.features(params, x)[0]))


def projected(forward: Forward, params: Tensors, features: Tensor) -> Tensor:
    """The extractor's output (B,K) as unit vectors (B,dim)."""
    return unit(forward.call("projection", params, features))
