"""OOM202: the losses of a window add up, and are not divided by how many there are."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import Final

from oomdoctor.lint.flow.events import Action, Event
from oomdoctor.lint.flow.state import text_of
from oomdoctor.lint.patterns.accumulation import AccumulationLoop, accumulations
from oomdoctor.lint.patterns.windows import may_be_divided, may_divide
from oomdoctor.lint.rule import Hit, Subject, read_rule
from oomdoctor.results import Severity

_SCALE_FREE: Final = ("Adam", "AdamW", "Adamax", "NAdam", "RAdam", "AdamW8bit", "Adam8bit", "FusedAdam")

_MOST: Final = 16
"""Backward passes of one loop that are looked at: enough for any loop that people write."""


def _check(subject: Subject) -> Iterator[Hit]:
    for run in subject.runs:
        for found in accumulations(run):
            undivided = [event for event in found.backwards[:_MOST] if not may_be_divided(event, found)]
            if undivided and not may_divide(found):
                yield from (_hit(event, found) for event in undivided)


def _hit(event: Event, found: AccumulationLoop) -> Hit:
    loss = _name(event)
    told = f"{loss} is not divided by `{found.period}`, so each step follows the sum of that many gradients"
    library = (found.step.value.library or "").rpartition(".")[2]
    cancels_scale = library in _SCALE_FREE and next(found.run.of(Action.CLIP), None) is None
    return Hit.at(
        event,
        told + (" (Adam cancels a constant scale, except for its `eps`)" if cancels_scale else ""),
        help=_help(event, loss, found.period),
        severity=Severity.NOTE if cancels_scale else None,
    )


def _help(event: Event, loss: str, period: str) -> str:
    """Return the code to write instead, in the user's own names."""
    by = period if re.fullmatch(r"[\w.]+", period) else f"({period})"
    if not loss.startswith("`"):
        return f"divide the loss by `{by}` before `backward()`"
    quotient = f"{loss.strip('`')} / {by}"
    is_plain = event.name == ".backward" and event.call is not None and _is_owner(event.call, loss.strip("`"))
    return f"divide before `backward()`: `({quotient}).backward()`" if is_plain else f"divide it before: `{quotient}`"


def _is_owner(call: ast.Call, loss: str) -> bool:
    return isinstance(call.func, ast.Attribute) and text_of(call.func.value) == loss


def _name(event: Event) -> str:
    """Return the loss of a backward pass as the user calls it."""
    call = event.call
    node = None if call is None else call.func.value if isinstance(call.func, ast.Attribute) else None
    if call is not None and call.args:
        node = call.args[0]
    while isinstance(node, ast.Call) and node.args and isinstance(node.func, ast.Attribute):
        node = node.args[0]  # `scaler.scale(loss)`
    return f"`{text_of(node)}`" if isinstance(node, ast.Name | ast.Attribute) else "the loss"


RULE: Final = read_rule(__file__, _check)
