"""Passes and steps that a gradient scaler has a part in."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING, Final

from oomdoctor.lint.flow import known
from oomdoctor.lint.flow.state import text_of

if TYPE_CHECKING:
    from oomdoctor.lint.flow.events import Event, Run

_BY_HAND: Final = re.compile(
    r"get_scale\(|\._scale\b|\binv\w*scale|\bloss_scale\b|GradScaler\([^)]*enabled\s*=\s*False"
)


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
    """Whether the code reads the scale itself, or has a scaler that does nothing."""
    return any(_BY_HAND.search(module.text) for module in {run.module, event.module})
