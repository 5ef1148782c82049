"""Whether a loss, or what becomes of it, may be divided by the accumulation steps somewhere."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING, Final

from oomdoctor.lint.code.walking import walk
from oomdoctor.lint.flow.state import text_of
from oomdoctor.lint.patterns.own_gradients import handles_gradients

if TYPE_CHECKING:
    from oomdoctor.lint.code.functions import Function, Module
    from oomdoctor.lint.flow.events import Event
    from oomdoctor.lint.patterns.accumulation import Accumulation

_SUMS: Final = re.compile(
    r"""reduction\s*=\s*["']sum["']|size_average\s*=\s*False|\.register_hook\(|register_comm_hook"""
)
_SCALES: Final = re.compile(
    r"(?:scal|normali[sz]|averag|divid|mean)\w*_grad|grad\w*_(?:scal|normali[sz]|averag|divi)", re.IGNORECASE
)
"""In the name of a function that changes gradients after the backward passes."""
_FACTOR: Final = re.compile(r"scal|factor|inv|norm|frac|share|weight|coef|num|count|token|len|size", re.IGNORECASE)
"""In the name of what a loss is multiplied by: a factor, or a number of samples that makes a sum of it."""
_TOLD: Final = re.compile(r"Accelerator\([^)]*gradient_accumulation")


def may_divide(found: Accumulation) -> bool:
    """Whether the code around a loop divides losses or gradients somewhere, or means them to be sums."""
    text = found.run.module.text
    if _is_reckoned_with(found) or handles_gradients(found.run.module):
        return True
    made = found.step.value.node
    return _SUMS.search(text) is not None or _SCALES.search(text) is not None or _mentions(made, found.period)


def may_be_divided(event: Event, found: Accumulation) -> bool:
    """Whether the loss of a backward pass may be divided by the accumulation steps, here or where nobody can see.

    Args:
        event: The backward pass.
        found: The accumulation that it belongs to.
    """
    if event.value.divided_by or _is_left_to_another(event, event.module):
        return True
    return _mentions(event.value.node, found.period) or _is_scaled(event) or _is_made_elsewhere(event)


def _is_left_to_another(event: Event, module: Module) -> bool:
    """Whether something else makes the pass that may divide: an accelerator, a strategy; fabric does not."""
    call = event.call
    if call is None or not isinstance(call.func, ast.Attribute) or event.name == ".manual_backward":
        return False
    if not (call.args or call.keywords):
        return False
    owner = text_of(call.func.value)
    if "accelerator" in owner.lower():
        return "Accelerator(" not in module.text or _TOLD.search(module.text) is not None
    return owner.rpartition(".")[2] not in ("", "fabric") and not _gives_only_flags(call)


def _is_reckoned_with(found: Accumulation) -> bool:
    """Whether the loop divides by the accumulation steps, other than a number for the log, or multiplies by them."""
    for node in walk(found.loop.node):
        match node:
            case (
                ast.AugAssign(op=ast.Div(), target=left, value=right) | ast.BinOp(left=left, op=ast.Div(), right=right)
            ):
                if text_of(right) == found.period and ".item()" not in text_of(left):
                    return True
            case ast.BinOp(left=left, op=ast.Mult(), right=right):
                if _is_shown(left, right, found.period) or _is_shown(right, left, found.period):
                    return True
    return False


def _is_shown(loss: ast.expr, times: ast.expr, period: str) -> bool:
    """Whether a loss is multiplied by the accumulation steps, for the log: it had been divided by them."""
    return text_of(times) == period and ("loss" in text_of(loss).lower() or ".item()" in text_of(loss))


def _gives_only_flags(call: ast.Call) -> bool:
    """Whether it is `loss.backward(retain_graph=True)`: options, no gradient to begin with."""
    return not call.args and all(keyword.arg in ("retain_graph", "create_graph") for keyword in call.keywords)


def _mentions(node: ast.expr | None, period: str) -> bool:
    """Whether an expression has the accumulation steps in it, or gives to a call what holds them, such as `args`."""
    if node is None:
        return False
    if period.isdigit():
        return any(isinstance(part, ast.Constant) and str(part.value) == period for part in walk(node))
    owner, _, name = period.rpartition(".")
    for part in walk(node):
        if (isinstance(part, ast.Name) and part.id == name) or (isinstance(part, ast.Attribute) and part.attr == name):
            return True
        if owner and isinstance(part, ast.Call) and any(text_of(given) == owner for given in part.args):
            return True
    return False


def _is_scaled(event: Event) -> bool:
    """Whether the loss is multiplied by something whose name says that it is a factor, or is a sum itself."""
    node = event.value.node
    if node is None:
        return False
    for part in walk(node):
        if isinstance(part, ast.BinOp) and isinstance(part.op, ast.Mult):
            sides = [text_of(side) for side in (part.left, part.right) if isinstance(side, ast.Name | ast.Attribute)]
            if any(_FACTOR.search(side) for side in sides):
                return True
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "sum"


def _is_made_elsewhere(event: Event) -> bool:
    """Whether a method that the class inherits makes the loss: it knows all that `self` knows."""
    node, function = event.value.node, event.function
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return False
    if text_of(node.func.value) not in ("self", "super()"):
        return False
    return not _sets(function, f"self.{node.func.attr}")


def _sets(function: Function | None, text: str) -> bool:
    """Whether the class sets an attribute, which is then no inherited method."""
    class_ = None if function is None else function.class_
    return class_ is not None and re.search(rf"{re.escape(text)}\b[^=\n]*=[^=]", class_.module.text) is not None
