"""Readings of FedCPD's feature distillation that the paper leaves open, each as a method of its own.

    python experiments/readings.py                      lists them
    python experiments/readings.py -algo FedCPD-direct -data Cifar100val -nc 20 -gr 100 --cpd_fd 10

The flags are those of `main.py` and of FedCPD. Only what wins here enters the product's `clientcpd.py`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from flcore import registry
from flcore.clients.clientcpd import CPDSettings, clientCPD
from flcore.experiment import Experiment
from flcore.observers import Terminal
from flcore.servers.servercpd import FedCPD
from flcore.trainmodel.cpd import CBAM, HierarchicalDistiller
from flcore.trainmodel.forward import Forward, Tensors, feature_stages, first_pass, subset
from flcore.utils import console, interrupt
from flcore.utils.errors import report

Maps = Sequence[Tensor]


# ---- distances between a student's maps and its teacher's ------------------------------------------------------------


def mean_square(student: Tensor, teacher: Tensor) -> Tensor:
    """The product's distance: mean over all elements."""
    return F.mse_loss(student, teacher)


def squared_norm(student: Tensor, teacher: Tensor) -> Tensor:
    """Algorithm 1 as it is written: the squared norm of a sample's difference, mean over the batch."""
    return (student - teacher).square().sum() / len(student)


def normalised(student: Tensor, teacher: Tensor) -> Tensor:
    """The squared norm between maps of length 1, mean over the batch: direction alone counts, between 0 and 4."""
    return squared_norm(F.normalize(student.flatten(1)), F.normalize(teacher.flatten(1)))


def attention_transfer(student: Tensor, teacher: Tensor) -> Tensor:
    """As `normalised`, between the maps' mean squares over the channels (Zagoruyko and Komodakis, ICLR 2017)."""
    return normalised(student.square().mean(1), teacher.square().mean(1))


class Distiller(HierarchicalDistiller):
    """FedCPD's distiller with parts replaced.

    distance: between one student's map and the teacher's.
    fused: whether the student's maps go through the cross-layer fusion.
    fused_teacher: whether the teacher's do too, through the same weights, as a constant.
    attention_stream: whether attention maps are compared beside feature maps.
    """

    def __init__(
        self,
        channels: Sequence[int],
        width: int,
        reduction: int,
        distance: Callable[[Tensor, Tensor], Tensor] = mean_square,
        fused: bool = True,
        fused_teacher: bool = False,
        attention_stream: bool = True,
    ) -> None:
        super().__init__(channels, width, reduction)
        self.distance, self.fused, self.fused_teacher = distance, fused, fused_teacher
        self.attention_stream = attention_stream

    def forward(self, student_maps: Maps, teacher_maps: Maps, teacher_attention: Maps) -> Tensor:
        """The sum over levels and streams of `distance`, a scalar."""
        streams = [(self.feature_fusion, student_maps, teacher_maps)]
        if self.attention_stream:
            streams.append((self.attention_fusion, self.attention(student_maps), teacher_attention))
        terms = []
        for fusion, student, teacher in streams:
            student = fusion(student) if self.fused else student
            teacher = fusion(teacher) if self.fused_teacher else teacher
            terms += [self.distance(s, t.detach()) for s, t in zip(student, teacher, strict=True)]
        return torch.stack(terms).sum()


# ---- the readings ----------------------------------------------------------------------------------------------------


def reading(name: str, about: str, **options: Any) -> type[FedCPD]:
    """FedCPD with a `Distiller` of these options."""

    class Client(clientCPD):
        @staticmethod
        def local_modules(forward: Forward, hp: CPDSettings) -> dict[str, nn.Module]:
            made = clientCPD.local_modules(forward, hp)
            return {part: Distiller(forward.channels, hp.cpd_width, hp.cpd_reduction, **options) for part in made}

    return type(name, (FedCPD,), {"rule": Client, "__doc__": about})


Direct = reading("Direct", "same layer, features only: no attention and no fusion", fused=False, attention_stream=False)
SameLayer = reading("SameLayer", "same layer, features and attention: no fusion", fused=False)
Transfer = reading(
    *("Transfer", "attention transfer at the same layer"),
    distance=attention_transfer,
    fused=False,
    attention_stream=False,
)
Normalised = reading("Normalised", "fused, maps brought to length 1 before they are compared", distance=normalised)
Squared = reading("Squared", "fused, squared norms instead of means over elements", distance=squared_norm)
BothFused = reading("BothFused", "fused student against fused teacher", fused_teacher=True)


class Shared(FedCPD):
    """attention and fusion are averaged with the extractor"""

    shares = ("base.", "distiller.")


class Embedding(FedCPD):
    """the embedding as one more level, compared directly"""

    class rule(clientCPD):  # noqa: N801 - the field of a server that names its client's half
        @staticmethod
        def local_loss(
            forward: Forward, params: Tensors, x: Tensor, y: Tensor, shared: Tensors, state: Tensors, hp: CPDSettings
        ) -> Tensor:
            loss = clientCPD.local_loss(forward, params, x, y, shared, state, hp)
            if state:
                student, _ = forward.features(params, x)
                teacher, _ = forward.features(subset(state, "teacher."), x, frozen=True)
                loss = loss + hp.cpd_fd * state["taught"] * F.mse_loss(student, teacher.detach())
            return loss


class InPath(FedCPD):
    """attention in the network's forward path, behind every stage, and so averaged; maps are compared fused"""

    rule = Normalised.rule

    def __init__(self, args: Any, times: int) -> None:
        super().__init__(replace(args, model=with_attention(args.model, args.shape, args.cpd_reduction)), times)


def with_attention(model: nn.Module, shape: Sequence[int], reduction: int) -> nn.Module:
    """``model`` with a CBAM behind every stage that gives feature maps (inputs of ``shape``), in place."""
    base: Any = model.base
    like = next(base.parameters())
    _, maps, _ = first_pass(base, like.new_zeros(1, *shape))
    for name, channels in feature_stages(base, maps):
        stage = base.get_submodule(name)
        base.set_submodule(name, nn.Sequential(stage, CBAM(channels, reduction).to(like.device)))
    return model


READINGS = {
    "direct": Direct,
    "samelayer": SameLayer,
    "transfer": Transfer,
    "normalised": Normalised,
    "squared": Squared,
    "bothfused": BothFused,
    "shared": Shared,
    "embedding": Embedding,
    "inpath": InPath,
}


def register() -> None:
    """Makes the readings known under ``-algo FedCPD-<reading>``, in this process."""
    card = partial(replace, registry.find("FedCPD"))
    known = {method.name for method in registry.METHODS}
    for name, server in READINGS.items():
        if f"FedCPD-{name}" not in known:
            registry.METHODS.append(
                card(name=f"FedCPD-{name}", server=f"{__name__}:{server.__name__}", paper=str(server.__doc__))
            )


def run(argv: list[str]) -> int:
    """Runs what the command line means, with the readings beside the registry's methods; the exit code."""
    register()
    if not argv:
        print("\n".join(f"FedCPD-{name:12}{server.__doc__}" for name, server in READINGS.items()))
        return 0
    with console.messages(), interrupt.handled():
        try:
            Experiment.from_argv(argv).run([Terminal()])
        except KeyboardInterrupt:
            return 130
        except Exception as error:
            return report(error)
    return 0


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
