"""A stand-in for `torch._dynamo`, which optimizers and checkpoints import only to tell the compiler to leave them alone.

The real one is 900 modules and takes longer than a whole trace. Whatever asks for more of it than is here gets it.
"""

from __future__ import annotations

import sys
from contextlib import nullcontext
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any, Final

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from oomdoctor.tracing.patches import Patches

_NAME: Final = "torch._dynamo"


def stand_in_for_compiler(patches: Patches) -> None:
    """Put the stand-in where nobody has imported the real one yet."""
    if _NAME in sys.modules:
        return
    stand_in = _StandIn(_NAME)
    sys.modules[_NAME] = stand_in
    patches.set(torch, "_dynamo", stand_in)
    finder = _Finder(stand_in)
    sys.meta_path.insert(0, finder)
    patches.callback(sys.meta_path.remove, finder)
    patches.callback(stand_in.leave)


class _StandIn(ModuleType):
    """What optimizers and checkpoints ask for; for all else the real module is imported."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__path__: list[str] = []
        self.disable = lambda function=None, *_, **__: (lambda other: other) if function is None else function
        self.graph_break = lambda *_, **__: None
        self.config = SimpleNamespace(error_on_nested_fx_trace=False, patch=lambda **_: nullcontext())

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever the real module has
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.real(), name)

    def leave(self) -> None:
        """Make place for the real module."""
        if sys.modules.get(_NAME) is self:
            del sys.modules[_NAME]

    def real(self) -> ModuleType:
        """The real module."""
        self.leave()
        found = import_module(_NAME)
        torch._dynamo = found  # noqa: SLF001 - as importing it does
        return found


class _Finder:
    """Imports the real module before a part of it."""

    def __init__(self, stand_in: _StandIn) -> None:
        self._stand_in = stand_in

    def find_spec(self, name: str, _path: Sequence[str] | None, _target: ModuleType | None = None) -> ModuleSpec | None:
        """Say that a part of it is what the real module's import made."""
        if not name.startswith(f"{_NAME}.") or sys.modules.get(_NAME) is not self._stand_in:
            return None
        self._stand_in.real()
        return ModuleSpec(name, _Made(import_module(name)))


class _Made:
    """A loader of a module that is there."""

    def __init__(self, module: ModuleType) -> None:
        self._module = module
        self._spec = module.__spec__

    def create_module(self, _: ModuleSpec) -> ModuleType:
        """The module."""
        return self._module

    def exec_module(self, module: ModuleType) -> None:
        """Nothing is left to do but to give the module its own spec back."""
        module.__spec__ = self._spec
