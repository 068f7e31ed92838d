"""A network run on given parameters: what a rule calls to compute logits, embeddings and feature maps.

This file is portable: it imports torch only, and is also copied into PFLlib checkouts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

Tensors = dict[str, Tensor]

PASS_BATCH = 512  # samples at a time where no gradient is needed: bounds the memory, never the result


class _EnoughError(Exception):
    """Ends a pass in which the last feature map has come about."""


class Forward:
    """Runs a `BaseHeadSplit`-like network on given parameters: ``forward(params, x) -> (logits, z, maps)``.

    z is the extractor's output (B, K); maps are its feature maps (B, C_l, H_l, W_l) from shallow to deep, found by
    hooks so that any network works, and empty where a network has none. The network only lends its structure: all
    values come from ``params`` (see `tensors_of`), and only what is frozen may be missing there.

    Args:
        net: module with children ``base`` and ``head``; personal extra modules may sit beside them. One that draws
            random numbers says so by an attribute ``draws`` (see `flcore.trainmodel.draws`).
        sample: one input (1, ...), for the dry run that finds the feature maps.

    Attributes:
        size: K.
        levels: the layers whose output are feature maps, with their channels C_l.

    Raises:
        ValueError: base and head have a parameter in common, or a stage that the network names is not there.
    """

    def __init__(self, net: nn.Module, sample: Tensor) -> None:
        second = second_names(net)
        if apart := [name for name, first in second.items() if name.split(".")[0] != first.split(".")[0]]:
            raise ValueError(
                f"{apart[0]} is also {second[apart[0]]}, but extractor and head are trained and sent apart: give each "
                "its own parameters"
            )
        self.net: Any = net
        base: Any = net.base
        self.draws = bool(getattr(net, "draws", False))
        self.answers: Callable[[], AbstractContextManager[Any]] = nullcontext  # while it draws: where numbers come from
        self._still = [module for module in net.modules() if _is_frozen(module)]
        self._maps: dict[str, Tensor] | None = None
        z, maps, calls = first_pass(base, sample)
        self.size: int = z.shape[-1]
        self.levels = feature_stages(base, maps)
        self._outputs = sum(calls[name] for name, _ in self.levels)  # of these layers in one pass
        self._awaited = 0  # of them, until a pass may end; 0: it runs to its end
        for name, _ in self.levels:
            base.get_submodule(name).register_forward_hook(partial(self._keep, name))

    @property
    def channels(self) -> list[int]:
        return [channels for _, channels in self.levels]

    def _keep(self, name: str, module: nn.Module, inputs: Any, output: Tensor) -> None:
        if self._maps is not None:
            self._maps.pop(name, None)  # a layer that is used twice: its last output counts, in the place of that
            self._maps[name] = output
            self._awaited -= 1
            if self._awaited == 0:
                raise _EnoughError

    def __call__(self, params: Tensors, x: Tensor) -> tuple[Tensor, Tensor, list[Tensor]]:
        z, maps = self.features(params, x)
        return self.call("head", params, z), z, maps

    def features(self, params: Tensors, x: Tensor, frozen: bool = False) -> tuple[Tensor, list[Tensor]]:
        """z and the feature maps of ``x``; ``frozen`` runs the extractor in evaluation mode (a teacher)."""
        with self._collecting(frozen) as maps:
            return self.call("base", params, x), list(maps.values())

    def maps(self, params: Tensors, x: Tensor) -> list[Tensor]:
        """The feature maps of ``x`` in evaluation mode (a teacher's); what comes after the last one is not computed."""
        with self._collecting(frozen=True) as maps, suppress(_EnoughError):
            self._awaited = self._outputs
            self.call("base", params, x)
        return list(maps.values())

    @contextmanager
    def _collecting(self, frozen: bool) -> Iterator[dict[str, Tensor]]:
        """Gives the feature maps of a pass of the extractor in the body, which is in evaluation mode if ``frozen``."""
        pause = frozen and self.net.base.training
        if pause:
            self.net.base.eval()
        self._maps, self._awaited = {}, 0
        try:
            yield self._maps
        finally:
            self._maps = None
            if pause:
                self._train(self.net.base, True)

    def _train(self, module: nn.Module, mode: bool) -> None:
        """As ``module.train(mode)``, but frozen layers never train."""
        module.train(mode)
        for layer in self._still:
            layer.training = False

    def call(self, name: str, params: Tensors, *args: Any) -> Any:
        """Runs the submodule ``name`` on its slice of ``params``."""
        prefix = name + "."
        own = subset(params, prefix)
        for second, first in self._ties.items():
            if second.startswith(prefix) and first in params:
                own[second.removeprefix(prefix)] = params[first]
        with self.answers():
            return functional_call(self.net.get_submodule(name), own, args, tie_weights=False)

    @cached_property
    def _ties(self) -> dict[str, str]:
        """Tied weights, as `second_names` but for a layer in two places, whose tensors have one place all the same.

        torch's own `tie_weights` would leave such a layer with the tensors of the call.
        """
        places = {
            f"{prefix}.{name}" if prefix else name
            for prefix, module in self.net.named_modules()  # a layer in two places comes once
            for name in (*module._parameters, *module._buffers)
        }
        return {second: first for second, first in second_names(self.net).items() if second in places}

    def set_training(self, moves: tuple[str, ...]) -> None:
        """Training mode for the parts that move, evaluation mode for the fixed ones (their BatchNorm stays still).

        A layer with nothing but frozen parameters (``requires_grad`` False) never moves.
        """
        for name, child in self.net.named_children():
            mode = any(f"{name}.".startswith(prefix) or prefix.startswith(f"{name}.") for prefix in moves)
            if child.training != mode:
                self._train(child, mode)

    def in_batches(self, params: Tensors, x: Tensor) -> Tensor:
        """z of all samples in ``x`` (n, ...) in evaluation mode, without gradient: (n, K)."""
        self.set_training(())
        with torch.no_grad():
            return torch.cat([self.features(params, part)[0] for part in x.split(PASS_BATCH)])


def first_pass(base: Any, sample: Tensor) -> tuple[Tensor, dict[str, int], Counter[str]]:
    """``base`` run once in evaluation mode: its output, and the channels of every layer whose (last) output is a map
    (B, C, H, W) of more than one pixel, in the order in which they come about; and how often every layer is used."""
    maps: dict[str, int] = {}
    calls = Counter[str]()

    def see(name: str, module: nn.Module, inputs: Any, output: Any) -> None:
        maps.pop(name, None)
        calls[name] += 1
        if isinstance(output, Tensor) and output.dim() == 4 and output[0, 0].numel() > 1:
            maps[name] = output.shape[1]

    hooks = [module.register_forward_hook(partial(see, name)) for name, module in base.named_modules() if name]
    training = base.training
    base.eval()
    try:
        with torch.no_grad():
            return base(sample), maps, calls
    finally:
        base.train(training)
        for hook in hooks:
            hook.remove()


def feature_stages(base: Any, maps: dict[str, int]) -> list[tuple[str, int]]:
    """The layers of ``base`` that give its feature maps, from shallow to deep, each with its number of channels.

    A model may name them itself (``base.feature_stages``). Otherwise they are the direct children built of several
    layers (FedAvgCNN's two convolution blocks, a ResNet's four layers) or, failing that, the convolutions among the
    direct children; where there are less than two, the same is asked of each child's children.

    Args:
        maps: what `first_pass` has found.

    Raises:
        ValueError: the model names a layer that it does not have.
    """
    declared = getattr(base, "feature_stages", None)
    layers = {name for name, _ in base.named_modules()}
    if unknown := [name for name in declared or () if name not in layers]:
        raise ValueError(f"its feature_stages name {unknown[0]}, which is none of its layers")
    groups = _groups(base) if declared is None else [declared]
    found = [[(name, channels) for name, channels in maps.items() if name in group] for group in groups]
    return next((levels for levels in found if len(levels) > 1), next(filter(None, found), []))


def _groups(module: nn.Module, prefix: str = "") -> Iterator[list[str]]:
    children = dict(module.named_children())
    deep = [name for name, child in children.items() if list(child.children())]
    yield [prefix + name for name in deep]
    yield [prefix + name for name, child in children.items() if isinstance(child, nn.Conv2d)]
    for name in deep:
        yield from _groups(children[name], f"{prefix}{name}.")


# ---- a network's tensors ---------------------------------------------------------------------------------------------


def second_names(net: nn.Module) -> dict[str, str]:
    """Of every tensor with several names (tied weights, a layer in two places) the others, each with the first one."""
    firsts: dict[int, str] = {}
    tensors = [*net.named_parameters(remove_duplicate=False), *net.named_buffers(remove_duplicate=False)]
    return {name: first for name, value in tensors if (first := firsts.setdefault(id(value), name)) != name}


def tensors_of(net: nn.Module) -> Tensors:
    """The network's parameters and buffers, each under one name; they share its memory."""
    second = second_names(net)
    return {name: value for name, value in net.state_dict().items() if name not in second}


def load_tensors(net: nn.Module, tensors: Tensors) -> None:
    """The opposite: copies ``tensors`` into the network; what is not among them stays."""
    state = net.state_dict()  # with its version, which some networks ask for
    state.update(tensors)
    state.update({name: tensors[first] for name, first in second_names(net).items() if first in tensors})
    net.load_state_dict(state)


def shared_part(tensors: Tensors, shares: tuple[str, ...], frozen: Collection[str]) -> Tensors:
    """Those under the prefixes ``shares``, without frozen ones, which are everywhere the same; all, if ``shares`` says
    all."""
    return {
        name: value
        for name, value in tensors.items()
        if name.startswith(shares) and ("" in shares or name not in frozen)
    }


def _is_frozen(module: nn.Module) -> bool:
    """Whether its own parameters, without those of its parts, all stay as they are."""
    own = list(module.parameters(recurse=False))
    return bool(own) and not any(value.requires_grad for value in own)


def subset(tensors: Tensors, prefix: str) -> Tensors:
    """The entries under ``prefix``, with the prefix taken off."""
    return {name[len(prefix) :]: value for name, value in tensors.items() if name.startswith(prefix)}
