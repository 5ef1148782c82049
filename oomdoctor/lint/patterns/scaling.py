"""Passes and steps that a gradient scaler has a part in."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING, Final

from oomdoctor.lint.code.walking import walk
from oomdoctor.lint.flow import known
from oomdoctor.lint.flow.state import text_of

if TYPE_CHECKING:
    from oomdoctor.lint.code.functions import Module
    from oomdoctor.lint.flow.events import Event, Run

_BY_HAND: Final = re.compile(r"\._scale\b|\binv\w*scale|\bloss_scale\b|GradScaler\([^)]*enabled\s*=\s*False")

_MULTIPLIES: Final = frozenset({"mul", "mul_", "div", "div_", "true_divide", "true_divide_"})


def is_scaled(backward: Event) -> bool:
    """Whether the pass is of a scaled loss: `scaler.scale(loss).backward()`."""
    node = backward.value.node
    return (
        backward.context.managed is None
        and isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "scale"
    )


def scaler_of(step: Event) -> str | None:
    """The scaler through which an optimizer steps, as written; None where the optimizer steps by itself."""
    call = step.call
    if call is None or step.name != ".step" or not isinstance(call.func, ast.Attribute) or not call.args:
        return None
    owner = text_of(call.func.value)
    if isinstance(call.args[0], ast.Lambda) or known.IS_OPTIMIZER_NAME.search(owner):
        return None
    return owner


def optimizer_of(step: Event) -> str:
    """The optimizer that steps, as written."""
    call = step.call
    if call is None or not isinstance(call.func, ast.Attribute):
        return ""
    return text_of(call.args[0]) if scaler_of(step) is not None else text_of(call.func.value)


def takes_closure(step: Event) -> bool:
    """Whether the step makes its own passes: `optimizer.step(closure)`."""
    call = step.call
    return call is not None and bool(call.args or call.keywords) and scaler_of(step) is None


def scales_by_hand(run: Run, event: Event) -> bool:
    """Whether the code multiplies or divides by the scale itself, or has a scaler that does nothing.

    Asking whether the scale has changed, to tell that a step was skipped, is neither.
    """
    modules = {run.module, event.module}
    return any(_BY_HAND.search(module.text) or _computes_with_scale(module) for module in modules)


def _computes_with_scale(module: Module) -> bool:
    if "get_scale" not in module.text:
        return False
    nodes = list(walk(module.tree))
    names = {
        text_of(target)
        for node in nodes
        if isinstance(node, ast.Assign) and _gives_scale(node.value)
        for target in node.targets
    }
    return any(_gives_scale(part) or text_of(part) in names for node in nodes for part in _factors(node))


def _gives_scale(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "get_scale"


def _factors(node: ast.AST) -> tuple[ast.expr, ...]:
    """What is multiplied or divided by."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult | ast.Div):
        return (node.left, node.right)
    if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Mult | ast.Div):
        return (node.value,)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _MULTIPLIES:
        return tuple(node.args)
    return ()
