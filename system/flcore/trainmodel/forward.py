"""A network run on given parameters: what a rule calls to compute logits, embeddings and feature maps.

This file is portable: it imports torch only, and is also copied into PFLlib checkouts.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

Tensors = dict[str, Tensor]

PASS_BATCH = 512  # samples at a time where no gradient is needed: bounds the memory, never the result


class Forward:
    """Runs a `BaseHeadSplit`-like network on given parameters: ``forward(params, x) -> (logits, z, maps)``.

    z is the extractor's output (B, K); maps are its feature maps (B, C_l, H_l, W_l) from shallow to deep, found by
    hooks so that any network works, and empty where a network has none. The network only lends its structure: all
    values come from ``params``.

    Args:
        net: module with children ``base`` and ``head``; personal extra modules may sit beside them.
        sample: one input (1, ...), for the dry run that finds the feature maps.

    Raises:
        ValueError: a parameter has two names, so that training one of them would leave the other behind.
    """

    def __init__(self, net: nn.Module, sample: Tensor) -> None:
        names = [name for name, _ in net.named_parameters(remove_duplicate=False)]
        if tied := set(names).difference(name for name, _ in net.named_parameters()):
            raise ValueError(
                f"the network's {', '.join(sorted(tied))} are tied to other parameters; give them their own"
            )
        self.net: Any = net
        self._maps: list[Tensor] | None = None
        self.channels: list[int] = []
        for stage, channels in feature_stages(net.base, sample):
            stage.register_forward_hook(self._keep)
            self.channels.append(channels)

    def _keep(self, module: nn.Module, inputs: Any, output: Tensor) -> None:
        if self._maps is not None:
            self._maps.append(output)

    def __call__(self, params: Tensors, x: Tensor) -> tuple[Tensor, Tensor, list[Tensor]]:
        z, maps = self.features(params, x)
        return self.call("head", params, z), z, maps

    def features(self, params: Tensors, x: Tensor, frozen: bool = False) -> tuple[Tensor, list[Tensor]]:
        """z and the feature maps of ``x``; ``frozen`` runs the extractor in evaluation mode (a teacher)."""
        base = self.net.base
        pause = frozen and base.training
        if pause:
            base.eval()
        self._maps = []
        try:
            return self.call("base", params, x), self._maps
        finally:
            self._maps = None
            if pause:
                base.train()

    def call(self, name: str, params: Tensors, *args: Any) -> Any:
        """Runs the submodule ``name`` on its slice of ``params``."""
        return functional_call(self.net.get_submodule(name), subset(params, name + "."), args, tie_weights=False)

    def set_training(self, moves: tuple[str, ...]) -> None:
        """Training mode for the parts that move, evaluation mode for the fixed ones (their BatchNorm stays still)."""
        for name, child in self.net.named_children():
            mode = any(f"{name}.".startswith(prefix) or prefix.startswith(f"{name}.") for prefix in moves)
            if child.training != mode:
                child.train(mode)

    def in_batches(self, params: Tensors, x: Tensor) -> Tensor:
        """z of all samples in ``x`` (n, ...) in evaluation mode, without gradient: (n, K)."""
        self.set_training(())
        with torch.no_grad():
            return torch.cat([self.features(params, part)[0] for part in x.split(PASS_BATCH)])


def feature_stages(base: Any, sample: Tensor) -> list[tuple[nn.Module, int]]:
    """The modules of ``base`` that give its feature maps, from shallow to deep, each with its number of channels.

    A model may name them itself (``base.feature_stages``). Otherwise they are the direct children built of several
    layers (FedAvgCNN's two convolution blocks, a ResNet's four layers) or, failing that, the convolutions among the
    direct children; only those count whose output is a map (B, C, H, W) of more than one pixel.
    """
    declared = getattr(base, "feature_stages", None)
    children = list(base.children())
    groups = [
        [base.get_submodule(name) for name in declared or ()],
        [child for child in children if list(child.children())],
        [child for child in children if isinstance(child, nn.Conv2d)],
    ]
    for group in groups if declared is None else groups[:1]:
        found: dict[nn.Module, int] = {}

        def see(module: nn.Module, inputs: Any, output: Any, found: dict[nn.Module, int] = found) -> None:
            if isinstance(output, Tensor) and output.dim() == 4 and output[0, 0].numel() > 1:
                found[module] = output.shape[1]

        hooks = [module.register_forward_hook(see) for module in group]
        training = base.training
        base.eval()
        try:
            with torch.no_grad():
                base(sample)
        finally:
            base.train(training)
            for hook in hooks:
                hook.remove()
        if found:
            return list(found.items())
    return []


def subset(tensors: Tensors, prefix: str) -> Tensors:
    """The entries under ``prefix``, with the prefix taken off."""
    return {name[len(prefix) :]: value for name, value in tensors.items() if name.startswith(prefix)}
