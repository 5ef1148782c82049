"""Stubs for modules of PyTorch's compiler, which plain training imports without running the compiler.

Optimizers and checkpoints import `torch._dynamo`, 900 modules, to exclude themselves from compilation; functions that
compute shapes import SymPy and `symbolic_shapes`, to ask about symbolic shapes. Each import takes longer than a whole
trace. Other attributes than those here come from the real module.
"""

from __future__ import annotations

import sys
from contextlib import nullcontext
from importlib import import_module
from importlib.abc import Loader
from importlib.machinery import ModuleSpec
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from oomdoctor.engines.trace.tensors import Patches


def stub_compiler_modules(patches: Patches) -> None:
    """Install the stubs of modules that are not imported yet."""
    finder = _SubmoduleFinder()
    sys.meta_path.insert(0, finder)
    patches.callback(sys.meta_path.remove, finder)
    for name, attributes in _ATTRIBUTES.items():
        if name not in sys.modules:
            finder.stubs[name] = stub = _ModuleStub(name, attributes)
            sys.modules[name] = stub
            patches.callback(stub.leave)


def defer_dynamo() -> None:
    """Have plain training in this process do without `torch._dynamo`, until something needs more than its decorators.

    The import takes as long as that of torch. Nothing else changes: while `torch._dynamo` is not imported, no frame is
    compiled, and a function that it shall leave alone is left alone. Functions that were decorated meanwhile are
    decorated again by the real module.
    """
    if _DYNAMO in sys.modules:
        return
    decorated: list[Callable[..., Any]] = []

    def disable(function: Callable[..., Any] | None = None, *_: object, **__: object) -> Any:  # noqa: ANN401
        if function is None:
            return disable
        decorated.append(function)
        return function

    def forget() -> None:
        for function in decorated:
            vars(function).pop(_CACHED_DECORATION, None)

    finder = _SubmoduleFinder()
    sys.meta_path.insert(0, finder)
    attributes = {"disable": disable, "graph_break": lambda *_, **__: None}
    finder.stubs[_DYNAMO] = sys.modules[_DYNAMO] = stub = _ModuleStub(_DYNAMO, attributes, forget)
    vars(stub)["config"] = _DefaultConfig(lambda: stub.real().config)


class _DefaultConfig:
    """The settings of `torch._dynamo` before anyone changes them, of which a checkpoint asks for one.

    Args:
        real: Imports and returns the real ones, for all else.
    """

    error_on_nested_fx_trace: Final = True

    def __init__(self, real: Callable[[], Any]) -> None:
        vars(self)["_real"] = real

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever the real ones have
        return getattr(vars(self)["_real"](), name)

    def __setattr__(self, name: str, value: object) -> None:
        setattr(vars(self)["_real"](), name, value)


class _NeverRaisedError(Exception):
    """The exception for shapes that are no numbers."""


class _NoSymbol:
    """A class without instances."""


def _identity_decorator(function: Callable[..., Any] | None = None, *_: object, **__: object) -> Any:  # noqa: ANN401
    return _identity_decorator if function is None else function


def _equal(first: Any, second: Any) -> bool:  # noqa: ANN401 - numbers, or sequences of them
    if isinstance(first, list | tuple) and isinstance(second, list | tuple):
        return list(first) == list(second)
    return bool(first == second)


_DYNAMO: Final = "torch._dynamo"
_CACHED_DECORATION: Final = "__dynamo_disable"
"""Where `torch._disable_dynamo` keeps what `torch._dynamo.disable` made of a function."""

_ATTRIBUTES: Final[dict[str, dict[str, Any]]] = {
    _DYNAMO: {
        "disable": _identity_decorator,
        "graph_break": lambda *_, **__: None,
        "config": SimpleNamespace(error_on_nested_fx_trace=False, patch=lambda **_: nullcontext()),
    },
    "sympy": {"Basic": _NoSymbol},
    "torch.fx.experimental.symbolic_shapes": {
        "guard_or_false": bool,
        "guard_or_true": bool,
        "maybe_guard_or_false": bool,
        "maybe_guard_or_true": bool,
        "guard_size_oblivious": bool,
        "statically_known_true": bool,
        "definitely_true": bool,
        "expect_true": bool,
        "sym_eq": _equal,
        "sym_and": lambda *terms: all(terms),
        "sym_or": lambda *terms: any(terms),
        "is_nested_int": lambda _: False,
        "free_unbacked_symbols": lambda _: set(),
        "has_guarding_hint": lambda _: True,
        "guarding_hint_or_throw": lambda number: number,
        "constrain_range": lambda *_, **__: None,
        "_constrain_range_for_size": lambda *_, **__: None,
        "GuardOnDataDependentSymNode": _NeverRaisedError,
    },
}
"""The attributes of each that are used where shapes are numbers, as they are here."""


class _ModuleStub(ModuleType):
    """A module of few attributes that imports the real one for all others."""

    def __init__(self, name: str, attributes: dict[str, Any], on_leave: Callable[[], None] = lambda: None) -> None:
        super().__init__(name)
        self.__path__: list[str] = []
        self._on_leave = on_leave
        vars(self).update(attributes)

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever the real module has
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.real(), name)

    def leave(self) -> None:
        """Remove the stub, so that the real module can be imported."""
        if sys.modules.get(self.__name__) is self:
            self._on_leave()
            del sys.modules[self.__name__]
            parent, _, child = self.__name__.rpartition(".")
            if vars(sys.modules.get(parent, self)).get(child) is self:
                delattr(sys.modules[parent], child)

    def real(self) -> ModuleType:
        """Import and return the real module."""
        self.leave()
        return import_module(self.__name__)


class _SubmoduleFinder:
    """Import a real module before one of its submodules.

    Attributes:
        stubs: The stubs by name.
    """

    def __init__(self) -> None:
        self.stubs: dict[str, _ModuleStub] = {}

    def find_spec(self, name: str, _path: Sequence[str] | None, _target: ModuleType | None = None) -> ModuleSpec | None:
        """Return the spec of the submodule that the real module's import made."""
        parent = name.rpartition(".")[0]
        while parent and parent not in self.stubs:
            parent = parent.rpartition(".")[0]
        if not parent or sys.modules.get(parent) is not self.stubs[parent]:
            return None
        self.stubs[parent].real()
        return ModuleSpec(name, _ImportedModuleLoader(import_module(name)))


class _ImportedModuleLoader(Loader):
    """A loader of a module that is imported already."""

    def __init__(self, module: ModuleType) -> None:
        self._module = module
        self._spec = module.__spec__

    def create_module(self, _: ModuleSpec) -> ModuleType:
        """Return the module."""
        return self._module

    def exec_module(self, module: ModuleType) -> None:
        """Restore the module's own spec."""
        module.__spec__ = self._spec
