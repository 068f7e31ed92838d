"""The weights of one participant."""

from __future__ import annotations

import copy
from collections.abc import MutableMapping

from torch import Tensor, nn

from flcore.trainmodel.forward import load_tensors, tensors_of

Kept = MutableMapping[str, dict[str, Tensor]]


class Weights:
    """The tensors of one network: a dict that shares memory with others, until somebody asks for a module.

    Rules are pure functions, so unchanged tensors can be the same objects for the server and a thousand clients.
    PFLlib's code wants ``client.model``, a module that it trains in place: asking for it makes a private copy, which
    holds the truth from then on.

    Args:
        net: the network; its values are the first ones.
        kept: where the tensors lie, under "weights"; None: in memory.
    """

    def __init__(self, net: nn.Module, kept: Kept | None = None) -> None:
        self._net = net
        self._kept: Kept = {} if kept is None else kept
        self._kept["weights"] = tensors_of(net)
        self._module: nn.Module | None = None

    @property
    def tensors(self) -> dict[str, Tensor]:
        return self._kept["weights"] if self._module is None else tensors_of(self._module)

    @tensors.setter
    def tensors(self, tensors: dict[str, Tensor]) -> None:
        if self._module is None:
            self._kept["weights"] = tensors
        else:
            load_tensors(self._module, tensors)

    def snapshot(self) -> dict[str, Tensor]:
        """The tensors as they are now, whatever is done to the module later."""
        if self._module is None:
            return self._kept["weights"]
        return {name: value.clone() for name, value in self.tensors.items()}

    @property
    def net(self) -> nn.Module:
        """The network's structure, to be looked at only: asking for it makes no copy."""
        return self._net if self._module is None else self._module

    @property
    def module(self) -> nn.Module:
        if self._module is None:
            module = copy.deepcopy(self._net)
            load_tensors(module, self._kept["weights"])
            self.module = module
        return self._module  # type: ignore[return-value]  # set just above

    @module.setter
    def module(self, module: nn.Module) -> None:
        self._module, self._kept["weights"] = module, {}
