"""What is known of a run before its first round."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch
from torch import nn

from flcore.data.reading import DataSet
from flcore.registry import Method


@dataclass(frozen=True)
class RunContext:
    """One repeat of an experiment, all decided and nothing begun.

    Servers and clients get it as ``args``: besides its own fields it has the value of every flag under the flag's long
    name (``args.join_ratio``). PFLlib-style pairs get a plain namespace of the same instead, see `namespace`.
    """

    method: Method
    algorithm: str  # its name
    dataset: DataSet
    data_digest: str
    num_clients: int  # without those held back for the end
    num_classes: int
    shape: tuple[int, ...]  # of one sample
    device: torch.device
    executor: str
    model: nn.Module  # the common initial network, on the device
    model_name: str
    seed: int
    repeat: int
    model_seed: int  # of the initial weights of `model`
    module_seed: int  # of the initial weights of personal modules
    result_path: Path | None  # of the .h5 file; None: nothing is written
    given: frozenset[str]  # names of the flags that the user set
    values: Mapping[str, Any]  # of all flags, with the method's own defaults
    settings: Mapping[str, Any]  # what decides this run's numbers, as run.json holds it

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "values":  # asked for by copy and pickle before there are any
            raise AttributeError(name)
        try:
            return self.values[name]
        except KeyError:
            raise AttributeError(f"neither the run nor a flag has the name {name}") from None

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "values": dict(self.values)}  # pickle knows no read-only views

    def __deepcopy__(self, memo: dict[int, Any]) -> RunContext:
        return self  # nothing in it changes: a copied client keeps its run

    def namespace(self) -> argparse.Namespace:
        """PFLlib's ``args``: all of it as attributes of one object, which whoever gets it may add to."""
        own = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "values"}
        return argparse.Namespace(**{**self.values, **own})
