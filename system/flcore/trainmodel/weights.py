"""The weights of one participant."""

from __future__ import annotations

import copy

from torch import Tensor, nn


class Weights:
    """The tensors of one network: a dict that shares memory with others, until somebody asks for a module.

    Rules are pure functions, so unchanged tensors can be the same objects for the server and a thousand clients.
    PFLlib's code wants ``client.model``, a module that it trains in place: asking for it makes a private copy, which
    holds the truth from then on.
    """

    def __init__(self, net: nn.Module) -> None:
        self._net = net
        self._tensors: dict[str, Tensor] = dict(net.state_dict())
        self._module: nn.Module | None = None

    @property
    def tensors(self) -> dict[str, Tensor]:
        return self._tensors if self._module is None else dict(self._module.state_dict())

    @tensors.setter
    def tensors(self, tensors: dict[str, Tensor]) -> None:
        if self._module is None:
            self._tensors = tensors
        else:
            self._module.load_state_dict(tensors)

    def snapshot(self) -> dict[str, Tensor]:
        """The tensors as they are now, whatever is done to the module later."""
        if self._module is None:
            return self._tensors
        return {name: value.clone() for name, value in self.tensors.items()}

    @property
    def module(self) -> nn.Module:
        if self._module is None:
            module = copy.deepcopy(self._net)
            module.load_state_dict(self._tensors)
            self.module = module
        return self._module  # type: ignore[return-value]  # set just above

    @module.setter
    def module(self, module: nn.Module) -> None:
        self._module, self._tensors = module, {}
