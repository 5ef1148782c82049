"""What a model's tensors are for, and which module each belongs to."""

from __future__ import annotations

from typing import TYPE_CHECKING

from oomdoctor.probing.profile.addresses import addresses
from oomdoctor.probing.profile.marks import Label
from oomdoctor.results import Category
from oomdoctor.targets.placement import tensors_in

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import torch
    from torch import nn


class Owners:
    """Knows the modules' tensors.

    Args:
        modules: Every module of the model; a module is named by its position here.
    """

    def __init__(self, modules: Sequence[nn.Module]) -> None:
        self._modules = modules
        self._owner_of: dict[int, int] = {}
        self.parameters: list[nn.Parameter] = []
        for index, module in enumerate(modules):
            for parameter in module.parameters(recurse=False):
                if id(parameter) not in self._owner_of:
                    self._owner_of[id(parameter)] = index
                    self.parameters.append(parameter)

    def weights(self) -> list[Label]:
        """Parameters and buffers, as they are now."""
        found: list[Label] = []
        for index, module in enumerate(self._modules):
            own = (*module._parameters.values(), *module._buffers.values())  # noqa: SLF001 - the public way takes long
            tensors = (tensor for tensor in own if tensor is not None)
            found.extend(Label(address, Category.WEIGHTS, index) for address in addresses(tensors))
        return found

    def gradients(self, parameters: Iterable[torch.Tensor] | None = None) -> list[Label]:
        """The gradients that exist now, of all parameters or of some."""
        found: list[Label] = []
        for parameter in self.parameters if parameters is None else parameters:
            if parameter.grad is not None:
                owner = self._owner_of.get(id(parameter))
                found.extend(Label(address, Category.GRADIENTS, owner) for address in addresses((parameter.grad,)))
        return found

    def optimizer_state(self, optimizer: torch.optim.Optimizer) -> list[Label]:
        """What an optimizer keeps from step to step."""
        return list(self._states(optimizer))

    def _states(self, optimizer: torch.optim.Optimizer) -> Iterator[Label]:
        for key, state in optimizer.state.items():
            owner = self._owner_of.get(id(key))
            for address in addresses(tensors_in(state)):
                yield Label(address, Category.OPTIMIZER_STATE, owner)


def inputs(batch: object) -> list[Label]:
    """The tensors of a batch."""
    return [Label(address, Category.INPUT, None) for address in addresses(tensors_in(batch))]
