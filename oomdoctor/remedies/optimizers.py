"""Changes to the optimizer: its implementation, its class, and when it steps."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final, cast

import torch

from oomdoctor.remedies.change import Change, refuse
from oomdoctor.remedies.file_edit import FileEdit

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_IN_BACKWARD: Final = '''
class OptimizerInBackward(torch.optim.Optimizer):
    """Steps each parameter as soon as its gradient is whole, and frees the gradient."""

    def __init__(self, optimizer):
        super().__init__([p for group in optimizer.param_groups for p in group["params"]], {})
        self.handles = []
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                own = type(optimizer)([{**group, "params": [parameter]}])

                def step(_, own=own):
                    own.step()
                    own.zero_grad()

                self.handles.append(parameter.register_post_accumulate_grad_hook(step))

    def __del__(self):
        for handle in self.handles:
            handle.remove()

    def step(self, closure=None):
        pass
'''


def _own_class(optimizer: torch.optim.Optimizer) -> type[torch.optim.Optimizer]:
    """Return the optimizer's class, one of torch.optim."""
    kind = type(optimizer)
    if getattr(torch.optim, kind.__name__, None) is not kind:
        raise refuse(f"`{kind.__name__}` is no class of `torch.optim`, and is not made again")
    return cast("type[torch.optim.Optimizer]", kind)


class OptimizerFlag(Change):
    """An optimizer made again with other values of the flags of its implementation."""

    flags: Mapping[str, bool]

    def optimizer(self, optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
        """Make it again."""
        make: Callable[..., torch.optim.Optimizer] = _own_class(optimizer)
        flags = self._flags_of(optimizer)
        return make([{**group, **flags} for group in optimizer.param_groups], **self.flags)

    def held_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        """Set them in its groups of parameters, which each step reads."""
        flags = self._flags_of(optimizer)
        for group in optimizer.param_groups:
            group.update(flags)

    def _flags_of(self, optimizer: torch.optim.Optimizer) -> dict[str, bool | None]:
        """Return the flags with those that they exclude."""
        kind = type(optimizer).__name__
        missing = [name for name in self.flags if name not in optimizer.defaults]
        if missing:
            raise refuse(f"`{kind}` has no `{missing[0]}`")
        if all(group[name] is value for group in optimizer.param_groups for name, value in self.flags.items()):
            raise refuse(f"its `{kind}` has it already")
        return {name: None for name in ("foreach", "fused") if name in optimizer.defaults} | dict(self.flags)

    def edit(self) -> FileEdit:
        """Return keywords of the optimizer's call."""
        return FileEdit(keywords=tuple(f"{name}={value}" for name, value in self.flags.items()))


class WithoutForeach(OptimizerFlag):
    """A loop over parameters, whose temporary tensors are of one parameter at a time."""

    flags = {"foreach": False}  # noqa: RUF012 - of the class, and never written


class Fused(OptimizerFlag):
    """One kernel, which has no temporary tensors."""

    flags = {"fused": True}  # noqa: RUF012 - of the class, and never written


class OptimizerClass(Change):
    """Another class of optimizer over the same parameters, which trains otherwise."""

    expression = "torch.optim.Adafactor({parameters})"

    def optimizer(self, optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
        """Make it, with its own defaults."""
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        made: torch.optim.Optimizer = self.make(parameters)
        if type(optimizer) is type(made):
            raise refuse(f"the file has `{type(made).__name__}` already")
        return made

    def make(self, parameters: list[torch.nn.Parameter]) -> Any:  # noqa: ANN401 - of a library that may be missing
        """Return the optimizer."""
        return torch.optim.Adafactor(parameters)

    def edit(self) -> FileEdit:
        """Return what `build_optimizer` returns."""
        return FileEdit(imports=("import torch",), optimizer=self.expression)


class EightBit(OptimizerClass):
    """AdamW with its state in 8 bits, of torchao or bitsandbytes."""

    def model(self, model: torch.nn.Module) -> torch.nn.Module:
        """See which library there is; nothing is changed in the model."""
        self._library = next((name for name in ("torchao", "bitsandbytes") if find_spec(name)), "")
        if not self._library:
            raise refuse("neither torchao nor bitsandbytes is installed")
        self.expression = f"{self._library}.optim.AdamW8bit({{parameters}})"
        return model

    def make(self, parameters: list[torch.nn.Parameter]) -> Any:  # noqa: ANN401 - of a library that may be missing
        """Return the optimizer."""
        return import_module(f"{self._library}.optim").AdamW8bit(parameters)

    def edit(self) -> FileEdit:
        """Return what `build_optimizer` returns."""
        return FileEdit(imports=(f"import {self._library}.optim",), optimizer=self.expression)


class InBackward(Change):
    """A step of each parameter's own optimizer in the backward, so that no two gradients have to be kept."""

    def __init__(self, name: str, argument: int | None = None) -> None:
        super().__init__(name, argument)
        self._handles: list[torch.utils.hooks.RemovableHandle] = []

    def optimizer(self, optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
        """Hook an optimizer to each parameter."""
        make: Callable[..., torch.optim.Optimizer] = _own_class(optimizer)
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                own = make([{**group, "params": [parameter]}])
                self._handles.append(parameter.register_post_accumulate_grad_hook(lambda _, own=own: _step(own)))
        return _Stepped([parameter for group in optimizer.param_groups for parameter in group["params"]], {})

    def end(self) -> None:
        """Take the hooks, and with them the optimizers, off the parameters."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def edit(self) -> FileEdit:
        """Return a class, and an optimizer of it."""
        return FileEdit(
            imports=("import torch",),
            definitions=tuple(_IN_BACKWARD.strip("\n").splitlines()),
            optimizer="OptimizerInBackward({optimizer})",
        )


def _step(optimizer: torch.optim.Optimizer) -> None:
    optimizer.step()
    optimizer.zero_grad()


class _Stepped(torch.optim.Optimizer):
    """An optimizer with nothing left to do."""

    def step(self, closure: object = None) -> None:  # type: ignore[override]
        """Do nothing."""
