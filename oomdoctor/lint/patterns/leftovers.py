"""What becomes of the micro-batches after the last whole window of an epoch."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING, Final

from oomdoctor.lint.code.walking import walk
from oomdoctor.lint.flow.events import Act
from oomdoctor.lint.flow.state import text_of
from oomdoctor.lint.patterns.accumulation import subject
from oomdoctor.lint.patterns.writes import definitions, spelled_out, writes
from oomdoctor.results import Severity

if TYPE_CHECKING:
    from oomdoctor.lint.flow.context import Loop
    from oomdoctor.lint.patterns.accumulation import Accumulation

_ENDLESS: Final = re.compile(r"infinite|endless|forever|cycle|stream|repeat|islice", re.IGNORECASE)
_WRAPPERS: Final = 6


def is_dealt_with(found: Accumulation) -> bool:
    """Whether code deals with what is left, or there is nothing left as far as anybody can tell."""
    boundary = found.boundary
    if boundary is None or boundary.includes_last or not _is_over_epoch(found.loop):
        return True
    return _steps_after_loop(found) or _stops_by_counter(found) or _asks_for_remainder(found)


def fate(found: Accumulation) -> tuple[str, Severity] | None:
    """What becomes of the gradients that are left, as the end of a sentence, and how bad that is.

    Returns:
        None where nothing is lost, or nobody knows.
    """
    count = found.count
    if count is None or count.restarts is None:
        return None
    around = _around(found)
    if _is_zeroed_before(found, around, restarts=count.restarts):
        told = "of an epoch are lost: their gradients are zeroed before a step uses them"
        return told, Severity.WARNING
    if not count.restarts:
        return None
    if around:
        return "of an epoch make no step of their own: they are added to the first of the next epoch", Severity.NOTE
    return "make no step", Severity.NOTE


def _is_zeroed_before(found: Accumulation, around: tuple[Loop, ...], *, restarts: bool) -> bool:
    """Whether gradients are zeroed before each pass of the loop, or at the beginning of each iteration."""
    for event in found.run.of(Act.ZERO_GRAD):
        if not found.is_same_optimizer(event):
            continue
        if event.context.loops == around and (around or restarts) and not found.comes_after_backward(event):
            return True
        if restarts and found.is_in_each_micro_step(event):
            return True
    return False


def gone_over(loop: Loop) -> ast.expr:
    """What a loop goes over, without `enumerate` and its like around it."""
    node: ast.expr = loop.node.iter if isinstance(loop.node, ast.For | ast.AsyncFor) else ast.Constant(None)
    for _ in range(_WRAPPERS):
        if isinstance(node, ast.Call) and node.args and _keeps_length(node.func):
            node = node.args[0]
    return node


def _keeps_length(function: ast.expr) -> bool:
    name = text_of(function).rpartition(".")[2]
    return name in (
        "enumerate",
        "tqdm",
        "trange",
        "range",
        "track",
        "len",
        "iter",
        "log_every",
        "progress_bar",
        "prepare",
    )


def _is_over_epoch(loop: Loop) -> bool:
    """Whether a loop ends with the data: it goes over a loader, or over indices up to a length."""
    if not isinstance(loop.node, ast.For | ast.AsyncFor):
        return False
    text = text_of(loop.node.iter)
    if _ENDLESS.search(text) or "range(" in text:
        return "len(" in text and not _ENDLESS.search(text)
    return loop.over_batches


def _around(found: Accumulation) -> tuple[Loop, ...]:
    """The loops around the accumulating one."""
    loops = found.step.context.loops
    return loops[: loops.index(found.loop)]


def _steps_after_loop(found: Accumulation) -> bool:
    """Whether the optimizer makes a step later on, outside the loop but in no other that is not around it."""
    around = _around(found)
    order = [id(event) for event in found.run.events]
    later = found.run.events[order.index(id(found.step)) :]
    return any(
        event.act is Act.STEP
        and subject(event).rpartition(".")[2] == subject(found.step).rpartition(".")[2]
        and event.context.loops == around[: len(event.context.loops)]
        for event in later
    )


def _stops_by_counter(found: Accumulation) -> bool:
    """Whether the loop is left early by its counter: at the end of training, or where the last whole window ends."""
    counter = "" if found.boundary is None else found.boundary.counter
    tree = found.run.module.tree if found.loop.function is None else found.loop.function.node
    tests = [node.test for node in walk(found.loop.node) if isinstance(node, ast.If) and _leaves(node)]
    for test in tests:
        names = {text_of(node) for node in walk(test) if isinstance(node, ast.Name | ast.Attribute)}
        text = spelled_out(test, definitions(writes([tree])))
        if counter in names and (not _around(found) or ("len(" in text and found.period in text)):
            return True
    return False


def _leaves(node: ast.If) -> bool:
    return any(isinstance(statement, ast.Break | ast.Return) for statement in node.body)


def _asks_for_remainder(found: Accumulation) -> bool:
    """Whether the file asks what `len(...)` leaves when divided by the accumulation steps."""
    text = found.owner.text if found.owner is not None else ""
    return re.search(rf"len\([^()]*\)\s*%\s*\(?{re.escape(found.period)}\b", text) is not None
