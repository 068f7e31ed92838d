"""From a user's module to a network that every method and every executor can run, or one line that says why not.

What is looked at is what would otherwise go wrong in the middle of a run, or without a word: where the head is, the
shapes, what a single sample gives, whether the numbers follow the given weights and come out the same again, and where
random numbers come from. All of it on copies: the module keeps its weights.
"""

import copy
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from flcore.trainmodel.build import split_head
from flcore.trainmodel.draws import Answers
from flcore.trainmodel.forward import Forward, Tensors, load_tensors, tensors_of
from flcore.trainmodel.models import BaseHeadSplit
from flcore.trainmodel.pretrained import load_pretrained
from flcore.trainmodel.sources import explained
from flcore.utils.errors import UsageError, did_you_mean

SAMPLES = 2


@dataclass(frozen=True)
class Wanted:
    """What a network is to be made for.

    Args:
        label: what it is called in messages.
        shape, num_classes: of the data.
        head: the name of its last layer; empty: to be found.
        pretrained: a file of weights.
        split: whether it is split into extractor and head.
    """

    label: str
    shape: tuple[int, ...]
    num_classes: int
    head: str = ""
    pretrained: Path | None = None
    split: bool = True

    def no(self, reason: str) -> UsageError:
        return UsageError(f"-m {self.label}: {reason}")


class Pick:
    """A hook that gives one of a module's several outputs."""

    def __init__(self, keys: Mapping[bool, Any]) -> None:
        self.keys = keys  # in evaluation and in training, where the outputs may differ

    def __call__(self, module: nn.Module, inputs: Any, output: Any) -> Any:
        return output if isinstance(output, Tensor) else output[self.keys[module.training]]


def prepare(model: nn.Module, wanted: Wanted) -> tuple[nn.Module, list[str]]:
    """The network for a run, and what is worth saying of it.

    Raises:
        UsageError: it cannot be trained here; the message says why, and mostly what to do.
    """
    lines = []
    x = torch.linspace(-1, 1, SAMPLES * int(np.prod(wanted.shape))).reshape(SAMPLES, *wanted.shape)
    size = "x".join(map(str, wanted.shape))
    with explained(wanted.label, f"cannot take samples of {size}"):
        model.eval()
        with torch.no_grad():
            model(x)  # lazy layers get their sizes
    if any(not isinstance(value, Tensor) for value in model.state_dict().values()):
        raise wanted.no("its state_dict holds more than tensors, which cannot be sent")
    if not any(value.requires_grad for value in model.parameters()):
        raise wanted.no("it has no parameter that is not frozen (requires_grad), so there is nothing to train")
    with explained(wanted.label, "cannot be copied"):
        copies = {mode: copy.deepcopy(model).train(mode) for mode in (False, True)}
    with explained(wanted.label, f"cannot take samples of {size} in training"):
        before = x.clone()
        passes = {mode: _traced(each, x) for mode, each in copies.items()}
    if not torch.equal(x, before):
        raise wanted.no("it changes its input in place, and the samples would change with it")
    scores = _scores(passes[False], wanted)
    head = _head(model, passes, scores, wanted) if wanted.split or wanted.head else None
    if wanted.pretrained:
        lines.append(load_pretrained(model, wanted.pretrained, head))
    if not isinstance(passes[False].output, Tensor):
        lines.append(f"{wanted.label}: of its {len(_tensors(passes[False].output))} outputs number {scores} is used.")
    keys = {mode: _place_of(head, one, _scores(one, wanted)) for mode, one in passes.items()}
    whole = copy.deepcopy(model)
    whole.register_forward_hook(Pick(keys))
    if head is None:
        return whole.train(), lines
    net = split_head(model, head)
    net.base.register_forward_hook(Pick(keys))
    lines.append(f"{wanted.label}: the head is {head}, {_in_words(net.head)}; everything before it is the extractor.")
    _check_evaluation(net, whole, x, wanted)
    net.draws = _check_training(net, whole, x, wanted)  # type: ignore[assignment]
    if frozen := sum(value.numel() for value in net.parameters() if not value.requires_grad):
        lines.append(
            f"{wanted.label}: {frozen:,} of {sum(p.numel() for p in net.parameters()):,} parameters are frozen."
        )
    return net.train(), lines


# ---- a pass, and where the head is in it -----------------------------------------------------------------------------


class Call(NamedTuple):
    name: str
    module: nn.Module
    inputs: tuple[Any, ...]
    output: Any


class Traced(NamedTuple):
    output: Any
    calls: list[Call]  # of all layers, in the order in which they end


def _traced(model: nn.Module, x: Tensor) -> Traced:
    calls: list[Call] = []

    def see(name: str, module: nn.Module, inputs: Any, output: Any) -> None:
        calls.append(Call(name, module, inputs, output))

    hooks = [module.register_forward_hook(partial(see, name)) for name, module in model.named_modules() if name]
    with torch.no_grad():
        output = model(x)
    for hook in hooks:
        hook.remove()
    return Traced(output, calls)


def _tensors(output: Any) -> dict[Any, Tensor]:
    """The tensors among a module's outputs by their place; one alone has the place None."""
    if isinstance(output, Tensor):
        return {None: output}
    items = output.items() if isinstance(output, Mapping) else enumerate(output) if isinstance(output, Sequence) else ()
    return {key: value for key, value in items if isinstance(value, Tensor)}


def _scores(traced: Traced, wanted: Wanted) -> Any:
    """The place of the scores among the outputs."""
    outputs = _tensors(traced.output)
    if not outputs:
        raise wanted.no(
            f"its output is neither a tensor nor a tuple, list or dict of some, but {type(traced.output).__name__}"
        )
    fits = [key for key, value in outputs.items() if value.shape == (SAMPLES, wanted.num_classes)]
    made = {id(call.output) for call in traced.calls if isinstance(call.module, nn.Linear) or call.name == wanted.head}
    fits.sort(key=lambda key: id(outputs[key]) not in made)  # of several the first that a linear layer gives
    if not fits:
        shapes = ", ".join(str(tuple(value.shape[1:])) for value in outputs.values())
        raise wanted.no(
            f"it gives a sample {shapes} scores, and the data have {wanted.num_classes} classes: take num_classes as "
            "an argument of the network, or say it with --model_args"
        )
    return fits[0]


def _head(model: nn.Module, passes: Mapping[bool, Traced], scores: Any, wanted: Wanted) -> str:
    """The name of the head: the layer whose output the scores are."""
    layers = [name for name, _ in model.named_modules() if name]
    calls = passes[False].calls
    logits = _tensors(passes[False].output)[scores]
    last = [call.name for call in calls if call.output is logits and isinstance(call.module, nn.Linear)]
    head = wanted.head or (last[-1] if last else "")
    named = [call.name for call in calls if call.output is logits and list(call.module.parameters())]
    if not head:
        raise wanted.no(
            "its scores are not the output of a linear layer, so no head can be split off. Let it end with one, "
            f"without softmax, or name the last layer{f': --head {named[-1]}' if named else ''}"
        )
    if head not in layers:
        raise UsageError(f"--head {head}: {wanted.label} has no such layer.{did_you_mean(head, layers)}")
    own = [call for call in calls if call.name == head]
    if len(own) != 1 or len(own[0].inputs) != 1 or not isinstance(own[0].inputs[0], Tensor):
        how = f"is used {len(own)} times" if len(own) != 1 else "takes more than one tensor"
        raise UsageError(f"--head {head}: in {wanted.label} this layer {how}; the head is used once, on the embedding")
    if not list(own[0].module.parameters()):
        raise UsageError(f"--head {head}: in {wanted.label} this layer has no parameters")
    if own[0].output is not logits:
        raise UsageError(
            f"--head {head}: it is not the last layer of {wanted.label}, and what comes after it would be lost. Its "
            f"output must be the network's, without softmax"
        )
    if own[0].inputs[0].dim() != 2:
        raise UsageError(
            f"--head {head}: in {wanted.label} it gets {tuple(own[0].inputs[0].shape[1:])} of a sample; the "
            "embedding is one row of numbers"
        )
    return head


def _place_of(head: str | None, traced: Traced, otherwise: Any) -> Any:
    """The place of the head's output among the outputs."""
    made = {id(call.output) for call in traced.calls if call.name == head}
    return next((key for key, value in _tensors(traced.output).items() if id(value) in made), otherwise)


def _in_words(head: nn.Module) -> str:
    if isinstance(head, nn.Linear):
        return f"{head.in_features} -> {head.out_features}"
    return type(head).__name__


# ---- the network as it will be run -----------------------------------------------------------------------------------


def _check_evaluation(net: BaseHeadSplit, whole: nn.Module, x: Tensor, wanted: Wanted) -> None:
    """In evaluation mode: head after extractor is the network; a sample alone, and a second time, gives the same."""
    with explained(wanted.label, "does not run in evaluation"), torch.no_grad():
        net = copy.deepcopy(net).eval()
        before = _global_state()
        once, again, alone = net(x), net(x), net(x[:1])
        if not torch.equal(again, once) or _global_state() != before:
            raise wanted.no(
                "in evaluation it gives other scores the second time: it draws random numbers or counts calls"
            )
        _check_split(once, whole.eval()(x), wanted)
        if alone.shape != (1, wanted.num_classes) or not torch.allclose(alone, once[:1], rtol=1e-3, atol=1e-4):
            raise wanted.no(
                "in evaluation the scores of a sample depend on the others in its batch (BatchNorm without running "
                "statistics?)"
            )
        changed = {name: value * 1.1 if value.is_floating_point() else value for name, value in tensors_of(net).items()}
        forward = Forward(copy.deepcopy(net), x[:1])
        forward.set_training(())
        loaded = copy.deepcopy(net)
        load_tensors(loaded, changed)
        if not torch.allclose(forward(changed, x)[0], loaded(x), rtol=1e-4, atol=1e-5, equal_nan=True):
            raise wanted.no("its scores do not follow its parameters: a layer keeps a copy of them")


def _check_split(scores: Tensor, expected: Tensor, wanted: Wanted) -> None:
    """Head after extractor gives what the whole network did."""
    if scores.shape != expected.shape or not torch.allclose(scores, expected, rtol=1e-4, atol=1e-5):
        raise wanted.no(
            "its scores are not those of its head on what comes before; let the head come last, in training too"
        )


def _check_training(net: BaseHeadSplit, whole: nn.Module, x: Tensor, wanted: Wanted) -> bool:
    """In training mode: a gradient reaches the parameters, and random numbers can be keyed. Whether it draws any."""
    drawn: list[int] = []

    def take(shape: Sequence[int]) -> Tensor:
        drawn.append(0)
        return torch.rand(shape, generator=torch.Generator().manual_seed(len(drawn)))

    def step() -> tuple[Tensor, list[Tensor | None]]:
        drawn.clear()
        own = copy.deepcopy(net).train()
        params: Tensors = {name: value.clone() for name, value in tensors_of(own).items()}
        moving = [params[name].requires_grad_() for name, value in own.named_parameters() if value.requires_grad]
        with Answers(take):
            logits: Tensor = functional_call(own, params, (x,), tie_weights=True)
        loss = F.cross_entropy(logits, torch.zeros(SAMPLES, dtype=torch.long))
        return logits.detach(), list(torch.autograd.grad(loss, moving, allow_unused=True))

    with explained(wanted.label, "cannot be trained"):
        before = _global_state()
        logits, grads = step()
        if _global_state() != before:
            raise wanted.no(
                "it draws random numbers in a way that cannot be repeated for each client (dropout inside attention or "
                "a recurrent layer, numpy, random): switch it off, or use nn.Dropout, torch.rand or torch.bernoulli"
            )
        if not torch.equal(step()[0], logits):
            raise wanted.no("in training it gives other scores the second time with the same weights and samples")
        if all(grad is None for grad in grads):
            raise wanted.no("no gradient reaches its parameters")
        drawn.clear()
        with Answers(take), torch.no_grad():
            _check_split(logits, whole.train()(x), wanted)
    return bool(drawn)


def _global_state() -> tuple[Any, ...]:
    """Of all generators that somebody might draw from without saying so."""
    numbers: Any = np.random.get_state()
    return torch.get_rng_state().numpy().tobytes(), random.getstate(), numbers[1].tobytes(), numbers[2]
