"""Where a network comes from: one of ours, torchvision's, a class in a user's file, or an object in Python."""

import ast
import copy
import hashlib
import importlib
import importlib.util
import inspect
import sys
import tomllib
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from flcore.hyperparams import user_path
from flcore.trainmodel.build import adapt_channels, build_model, known_model
from flcore.trainmodel.forward import tensors_of
from flcore.utils.errors import UsageError, did_you_mean, lacks_memory

Build = Callable[[tuple[int, ...], int], nn.Module]  # (a sample's shape, number of classes) -> a network
TORCHVISION = "torchvision:"


@dataclass(frozen=True)
class Source:
    """
    Args:
        label: what the network is called in messages and in run.json; without the folder of a file.
        build: makes one; its weights come from torch's global generator.
        digest: of what it is made of that is not this framework's code, which has a digest of its own; None: nothing.
        place: of a file's network what -m finds it by, whatever the working folder.
    """

    label: str
    build: Build
    digest: str | None = None
    place: str = ""


def source_of(model: str | nn.Module | Callable[..., Any], args: Mapping[str, Any]) -> Source:
    """What ``-m`` or the keyword ``model`` means.

    Args:
        model: a name of ours, ``torchvision:resnet18``, ``path/to/net.py:Net``, a module, whose weights are taken as
            the initial ones, or what makes one: called with ``args``, and with those of ``num_classes``,
            ``in_channels`` and ``shape`` (of a sample) that it has as parameters.

    Raises:
        UsageError: there is no such network, or the file cannot be imported.
    """
    if isinstance(model, nn.Module):
        if args:
            raise UsageError("model_args: the model is there already; give its class to have it made with arguments")
        digest = hashlib.sha256(f"{model}\0{_code(type(model))}".encode())
        for name, value in tensors_of(model).items():
            digest.update(f"\0{name}\0{value.dtype}\0".encode())
            if not nn.parameter.is_lazy(value):
                digest.update(value.detach().cpu().reshape(-1).view(torch.uint8).numpy().tobytes())
        return Source(type(model).__name__, lambda shape, classes: copy.deepcopy(model), digest.hexdigest())
    if not isinstance(model, str):
        label = getattr(model, "__name__", type(model).__name__)
        return Source(label, partial(_call, model, label, args), hashlib.sha256(_code(model).encode()).hexdigest())
    if model.startswith(TORCHVISION):
        return _of_torchvision(model, args)
    file, found, name = model.rpartition(":")
    if not found and model.endswith(".py"):
        raise UsageError(f"-m {model}: say which class of the file it is: -m {model}:Net")
    if not found:
        return Source(known_model(model), partial(_ours, model, args))
    path = user_path(file)
    label = f"{path.name}:{name}"
    code = list(_files(path, label))
    make = getattr(_imported(path, label, code), name, None)
    if not callable(make):
        public = [other for other, value in vars(sys.modules[_module_name(path)]).items() if inspect.isclass(value)]
        raise UsageError(f"-m {label}: {path} has no class {name}.{did_you_mean(name, public)}")
    digest = hashlib.sha256()
    for other in code:
        digest.update(f"{other.relative_to(path.parent)}\0".encode() + other.read_bytes() + b"\0")
    return Source(label, partial(_call, make, label, args), digest.hexdigest(), f"{path.absolute()}:{name}")


def read_arguments(text: str) -> dict[str, Any]:
    """--model_args: ``width=32, act="relu"`` as in TOML, or a JSON object.

    Raises:
        UsageError: it is neither.
    """
    text = " ".join(text.split())
    try:
        return dict(tomllib.loads(f"args = {{{text}}}")["args"] if text[:1] != "{" else _json(text))
    except ValueError as error:
        raise UsageError(
            f"--model_args {text}: {error}; write it as 'width=32, act=\"relu\"' or as JSON '{{\"width\": 32}}'"
        ) from None


def _json(text: str) -> Any:
    import json

    return json.loads(text)


@contextmanager
def explained(label: str, doing: str) -> Iterator[None]:
    """Turns whatever a user's code raises in the body into one line that says where."""
    try:
        yield
    except UsageError:
        raise
    except Exception as error:
        if lacks_memory(error):
            raise
        last = traceback.extract_tb(error.__traceback__)[-1]
        for frame in traceback.extract_tb(error.__traceback__):
            if "site-packages" not in frame.filename and "flcore" not in frame.filename:
                last = frame
        text = " ".join(str(error).split())[:300]
        where = f"{Path(last.filename).name}, line {last.lineno}"
        raise UsageError(f"-m {label} {doing}: {type(error).__name__}: {text} ({where})") from error


# ---- the sources -----------------------------------------------------------------------------------------------------


def _ours(name: str, args: Mapping[str, Any], shape: tuple[int, ...], num_classes: int) -> nn.Module:
    with explained(name, "cannot be made with these --model_args"):
        return build_model(name, shape, num_classes, **args)


def _call(
    make: Callable[..., Any], label: str, args: Mapping[str, Any], shape: tuple[int, ...], num_classes: int
) -> nn.Module:
    offered = {"num_classes": num_classes, "in_channels": shape[0], "shape": shape}
    with explained(label, "cannot be made (its arguments: --model_args)"):
        takes = inspect.signature(make).parameters
        model = make(**{name: value for name, value in offered.items() if name in takes} | dict(args))
    if not isinstance(model, nn.Module):
        raise UsageError(f"-m {label}: gives no torch.nn.Module but {type(model).__name__}")
    return model


def _of_torchvision(spec: str, args: Mapping[str, Any]) -> Source:
    import torchvision  # here, since it is slow to import

    name = spec.removeprefix(TORCHVISION)
    names = torchvision.models.list_models(module=torchvision.models)
    if name not in names:
        raise UsageError(f"-m {spec}: torchvision has no such classification model.{did_you_mean(name, names)}")

    def build(shape: tuple[int, ...], num_classes: int) -> nn.Module:
        with explained(spec, "cannot be made (its arguments: --model_args)"):
            model: nn.Module = torchvision.models.get_model(
                name, **{"weights": None, "num_classes": num_classes, **args}
            )
        return adapt_channels(model, shape)

    return Source(spec, build, f"torchvision {torchvision.__version__}")


# ---- a user's file ---------------------------------------------------------------------------------------------------


def _module_name(path: Path) -> str:
    return f"user_network_{hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:8]}"


def _imported(path: Path, label: str, code: list[Path]) -> Any:
    """The file as a module, run anew, with the files beside it that it imports; those of ours with the same names stay
    what they are for us."""
    folder = str(path.resolve().parent)
    names = {other.relative_to(path.parent).with_suffix("").parts[0] for other in code}
    ours = {name: module for name, module in sys.modules.items() if name.split(".")[0] in names}
    for name in ours:
        del sys.modules[name]
    sys.path.insert(0, folder)
    importlib.invalidate_caches()
    try:
        with explained(label, "cannot be imported"):
            spec = importlib.util.spec_from_file_location(_module_name(path), path)
            assert spec and spec.loader  # a .py file has them
            module = importlib.util.module_from_spec(spec)
            sys.modules[spec.name] = module  # where dataclasses and pickle look for it
            # not through the loader, whose cached bytecode is as old as a second
            exec(compile(path.read_bytes(), path, "exec"), module.__dict__)
            return module
    finally:
        sys.path.remove(folder)
        for name in [name for name in sys.modules if name.split(".")[0] in names]:
            del sys.modules[name]
        sys.modules.update(ours)


def _files(path: Path, label: str) -> Iterator[Path]:
    """The file, and those in its folder that it imports, and those that they import."""
    if not path.is_file():
        raise UsageError(f"-m {label}: there is no file {path}")
    folder, waiting, seen = path.parent, [path], {path}
    while waiting:
        file = waiting.pop()
        yield file
        with explained(label, "cannot be read"):
            tree = ast.parse(file.read_bytes(), file)
        for node in ast.walk(tree):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                inside = [f"{node.module}.{alias.name}" if node.module else alias.name for alias in node.names]
                names = [*inside, *([node.module] if node.module else [])]
            for name in names:
                for start in {folder, file.parent}:
                    place = start.joinpath(*name.split("."))
                    for found in (place.with_suffix(".py"), place / "__init__.py"):
                        if found.is_file() and found not in seen:
                            seen.add(found)
                            waiting.append(found)


def _code(made: Any) -> str:
    """The source of what a notebook or script has defined, where it is known."""
    try:
        return inspect.getsource(made)
    except (OSError, TypeError):
        return str(getattr(made, "__qualname__", type(made)))
