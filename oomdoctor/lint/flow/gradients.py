"""Whether autograd records: what context managers, decorators and calls say of it."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING, Final

from oomdoctor.lint.flow import known
from oomdoctor.lint.flow.context import Gradients

if TYPE_CHECKING:
    from oomdoctor.lint.code.functions import Function, Module

_OFF_BY_NAME: Final = re.compile(
    r"no_?grad|inference_mode|inference_context|disable_grad|torch_inference", re.IGNORECASE
)
_PERHAPS_BY_NAME: Final = re.compile(r"grad|infer(?!red)|eval", re.IGNORECASE)
_MAKE_NO_DIFFERENCE: Final = re.compile(
    r"autocast|amp|profil|record_function|nullcontext|suppress|open|device|no_sync|accumulate|timer|lock", re.IGNORECASE
)


def of_manager(node: ast.expr, module: Module) -> Gradients | None:
    """What entering this context manager does to recording; None where it does nothing to it.

    Args:
        node: The expression of the `with`.
        module: The file, for what its names mean.
    """
    if isinstance(node, ast.IfExp):
        first, second = of_manager(node.body, module), of_manager(node.orelse, module)
        return first if first is second else Gradients.UNKNOWN
    call = node if isinstance(node, ast.Call) else None
    name = name_of(node, module)
    if name in known.GRADIENTS_BY_ARGUMENT:
        return by_argument(call, empty=Gradients.OFF if name == "torch.inference_mode" else Gradients.UNKNOWN)
    if name in known.NO_GRADIENTS:
        return Gradients.OFF
    if name == "torch.enable_grad":
        return Gradients.ON
    return _by_name(name)


def _by_name(name: str) -> Gradients | None:
    last = name.rpartition(".")[2]
    if _OFF_BY_NAME.search(last):
        return Gradients.OFF
    if _PERHAPS_BY_NAME.search(last) and not _MAKE_NO_DIFFERENCE.search(last):
        return Gradients.UNKNOWN
    return None


def by_argument(call: ast.Call | None, *, empty: Gradients) -> Gradients:
    """What `set_grad_enabled(x)` or `inference_mode(x)` does.

    Args:
        call: The call.
        empty: What it does without an argument. `inference_mode(True)` is off, `set_grad_enabled(True)` on.
    """
    arguments = [] if call is None else [*call.args, *(keyword.value for keyword in call.keywords)]
    if not arguments:
        return empty
    value = arguments[0].value if isinstance(arguments[0], ast.Constant) else None
    if not isinstance(value, bool):
        return Gradients.UNKNOWN
    return Gradients.ON if value is (empty is not Gradients.OFF) else Gradients.OFF


def name_of(node: ast.expr, module: Module) -> str:
    """Qualified name of what a decorator or context manager calls; else its own last name behind a dot, or empty."""
    function = node.func if isinstance(node, ast.Call) else node
    qualified = module.qualified(function)
    if qualified is not None:
        return known.LIBRARY_ALIASES.get(qualified, qualified)
    if isinstance(function, ast.Attribute):
        return f".{function.attr}"
    return function.id if isinstance(function, ast.Name) else ""


def of_function(function: Function, outside: Gradients) -> Gradients:
    """Whether autograd records in a function's body.

    Args:
        function: The function.
        outside: Whether it records where the function is called.
    """
    for decorator in reversed(function.node.decorator_list):
        found = of_manager(decorator, function.module)
        is_idle = found is Gradients.OFF and isinstance(function.node, ast.AsyncFunctionDef)
        if found is not None and not is_idle:  # the body of a coroutine runs after the decorator has ended
            outside = found
    return outside
