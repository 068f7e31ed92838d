"""From the -m flag and the shape of the data to a network.

Channels, image size and number of classes come from the data set, never from its name.
"""

from collections.abc import Callable, Sequence
from difflib import get_close_matches
from math import prod
from typing import Any

from torch import nn

from flcore.trainmodel.models import DNN, BaseHeadSplit, FedAvgCNN, FedAvgMLP, Mclr_Logistic
from flcore.utils.errors import UsageError


def _require_image(name: str, shape: tuple[int, ...]) -> None:
    if len(shape) != 3:
        raise UsageError(
            f"-m {name} takes images (channels, height, width), but a sample of this data set has shape {shape}: "
            "use -m DNN or -m MLR, which take any shape."
        )


def _cnn(shape: tuple[int, ...], num_classes: int, **args: Any) -> nn.Module:
    _require_image("CNN", shape)
    channels, *size = shape
    height, width = (((side - 4) // 2 - 4) // 2 for side in size)  # twice: 5x5 convolution, then halved
    if min(height, width) < 1:
        raise UsageError(
            f"-m CNN needs images of at least 16x16 pixels, but a sample of this data set has shape {shape}: "
            "use -m DNN, -m MLR or -m ResNet18, or larger images."
        )
    return FedAvgCNN(in_features=channels, num_classes=num_classes, dim=64 * height * width, **args)


def _resnet18(shape: tuple[int, ...], num_classes: int, **args: Any) -> nn.Module:
    _require_image("ResNet18", shape)
    from torchvision.models import resnet18  # here, since no other network needs torchvision's slow import

    return adapt_channels(resnet18(weights=None, num_classes=num_classes, **args), shape)


def adapt_channels(model: nn.Module, shape: tuple[int, ...]) -> nn.Module:
    """``model``, made for colour images, with another first convolution, in place, if a sample has other channels."""
    names = [name for name, module in model.named_modules() if isinstance(module, nn.Conv2d)]
    first: Any = model.get_submodule(names[0]) if names else None
    if first is not None and len(shape) == 3 and first.in_channels == 3 != shape[0] and first.groups == 1:
        rest = {name: getattr(first, name) for name in ("kernel_size", "stride", "padding", "dilation", "padding_mode")}
        new = nn.Conv2d(shape[0], first.out_channels, bias=first.bias is not None, **rest)
        nn.init.kaiming_normal_(new.weight, mode="fan_out", nonlinearity="relu")  # as torchvision does
        parent, _, own = names[0].rpartition(".")
        setattr(model.get_submodule(parent), own, new)
    return model


_BUILDERS: dict[str, Callable[..., nn.Module]] = {
    "CNN": _cnn,
    "DNN": lambda shape, num_classes, **args: DNN(prod(shape), num_classes=num_classes, **args),
    "MLR": lambda shape, num_classes, **args: Mclr_Logistic(prod(shape), num_classes, **args),
    "FedAvgMLP": lambda shape, num_classes, **args: FedAvgMLP(prod(shape), num_classes, **args),
    "ResNet18": _resnet18,
}
MODELS = tuple(_BUILDERS)  # PFLlib's -m strings
_CLASS_NAMES = {"FedAvgCNN": "CNN", "Mclr_Logistic": "MLR"}  # PFLlib's class names mean the same networks


def known_model(name: str) -> str:
    """PFLlib's -m string for `name`, which may be written in any case; UsageError with the nearest one and the list."""
    known = {known.lower(): known for known in (*_BUILDERS, *_CLASS_NAMES)}
    found = known.get(name.lower())
    if found is None:
        near = get_close_matches(name.lower(), known, n=1)
        hint = f"did you mean {known[near[0]]}? " if near else ""
        raise UsageError(
            f"-m {name}: no such model; {hint}Choose one of {', '.join(known.values())}, or your own: "
            "path/to/net.py:Net, torchvision:NAME."
        )
    return _CLASS_NAMES.get(found, found)


def build_model(name: str, shape: Sequence[int], num_classes: int, **args: Any) -> nn.Module:
    """The network that -m `name` asks for, with fresh weights from torch's global generator.

    name: one of PFLlib's -m strings (CNN, DNN, MLR, ResNet18) or class names, in any case. shape: one sample's shape,
    (C,H,W) for images, (D,) for vectors. args: further ones of the network's class. Raises UsageError for a name that
    is not known and for a shape that the network cannot take.
    """
    return _BUILDERS[known_model(name)](tuple(shape), num_classes, **args)


def split_head(model: nn.Module, name: str = "fc") -> BaseHeadSplit:
    """Take the last layer off `model`, in place, and return extractor and head as one network.

    Raises UsageError if the model has no layer of this name.
    """
    head = dict(model.named_modules()).get(name) if name else None
    if head is None:
        raise UsageError(f"{type(model).__name__} cannot be split into extractor and head: it has no layer `{name}`.")
    parent, _, own = name.rpartition(".")
    setattr(model.get_submodule(parent), own, nn.Identity())
    return BaseHeadSplit(model, head)
