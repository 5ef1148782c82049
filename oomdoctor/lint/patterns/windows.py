"""Accumulation windows: leftover micro-batches, division of the loss, and gradient scalers."""

from __future__ import annotations

import ast
import re
from typing import Final

from oomdoctor.lint.flow import known
from oomdoctor.lint.flow.events import Action, Event, Loop, Run
from oomdoctor.lint.flow.state import text_of
from oomdoctor.lint.module import Function, Module, walk
from oomdoctor.lint.patterns.accumulation import AccumulationLoop, owner_text
from oomdoctor.lint.patterns.counters import definitions, expanded_text, writes
from oomdoctor.results import Severity

_ENDLESS: Final = re.compile(r"infinite|endless|forever|cycle|stream|repeat|islice", re.IGNORECASE)
_WRAPPERS: Final = 6


def handles_leftovers(found: AccumulationLoop) -> bool:
    """Return whether code handles the leftover micro-batches, or there can be none."""
    boundary = found.boundary
    if boundary is None or boundary.includes_last or not _is_over_epoch(found.loop):
        return True
    return _steps_after_loop(found) or _stops_by_counter(found) or _computes_remainder(found)


def leftover_outcome(found: AccumulationLoop) -> tuple[str, Severity] | None:
    """Return the fate of the leftover gradients, as the end of a sentence, and its severity.

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


def _is_zeroed_before(found: AccumulationLoop, around: tuple[Loop, ...], *, restarts: bool) -> bool:
    """Return whether gradients are zeroed before each pass of the loop, or at the start of each iteration."""
    for event in found.run.of(Action.ZERO_GRAD):
        if not found.is_same_optimizer(event):
            continue
        if event.context.loops == around and (around or restarts) and not found.comes_after_backward(event):
            return True
        if restarts and found.is_in_each_micro_step(event):
            return True
    return False


def iterable_of(loop: Loop) -> ast.expr:
    """Return the iterable of a loop, without `enumerate` and its like around it."""
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
    """Return whether a loop ends with the data: it iterates over a loader, or over indices up to a length."""
    if not isinstance(loop.node, ast.For | ast.AsyncFor):
        return False
    text = text_of(loop.node.iter)
    if _ENDLESS.search(text) or "range(" in text:
        return "len(" in text and not _ENDLESS.search(text)
    return loop.over_batches


def _around(found: AccumulationLoop) -> tuple[Loop, ...]:
    """The loops around the accumulating one."""
    loops = found.step.context.loops
    return loops[: loops.index(found.loop)]


def _steps_after_loop(found: AccumulationLoop) -> bool:
    """Return whether the optimizer steps after the loop, but in no other loop that is not around it."""
    around = _around(found)
    order = [id(event) for event in found.run.events]
    later = found.run.events[order.index(id(found.step)) :]
    return any(
        event.action is Action.STEP
        and owner_text(event).rpartition(".")[2] == owner_text(found.step).rpartition(".")[2]
        and event.context.loops == around[: len(event.context.loops)]
        for event in later
    )


def _stops_by_counter(found: AccumulationLoop) -> bool:
    """Return whether the loop is left early by its counter: at the end, or where the last whole window ends."""
    counter = "" if found.boundary is None else found.boundary.counter
    tree = found.run.module.tree if found.loop.function is None else found.loop.function.node
    tests = [node.test for node in walk(found.loop.node) if isinstance(node, ast.If) and _leaves(node)]
    for test in tests:
        names = {text_of(node) for node in walk(test) if isinstance(node, ast.Name | ast.Attribute)}
        text = expanded_text(test, definitions(writes([tree])))
        if counter in names and (not _around(found) or ("len(" in text and found.period in text)):
            return True
    return False


def _leaves(node: ast.If) -> bool:
    return any(isinstance(statement, ast.Break | ast.Return) for statement in node.body)


def _computes_remainder(found: AccumulationLoop) -> bool:
    """Return whether the file computes the remainder of `len(...)` by the accumulation steps."""
    text = found.owner.text if found.owner is not None else ""
    return re.search(rf"len\([^()]*\)\s*%\s*\(?{re.escape(found.period)}\b", text) is not None


_HANDLED: Final = re.compile(r"\.grad\b(?!\s*(?:=\s*None|is\b|\())")


def handles_gradients(module: Module) -> bool:
    """Return whether a file may scale some `.grad`: it does more than reset it or compare it with None."""
    return _HANDLED.search(module.text) is not None


_SUMS: Final = re.compile(
    r"""reduction\s*=\s*["']sum["']|size_average\s*=\s*False|\.register_hook\(|register_comm_hook"""
)
_SCALES: Final = re.compile(
    r"(?:scal|normali[sz]|averag|divid|mean)\w*_grad|grad\w*_(?:scal|normali[sz]|averag|divi)", re.IGNORECASE
)
"""Words in the name of a function that changes gradients after the backward passes."""
_FACTOR: Final = re.compile(r"scal|factor|inv|norm|frac|share|weight|coef|num|count|token|len|size", re.IGNORECASE)
"""Words in the name of a loss's factor: a scale, or a number of samples that makes a sum of it."""
_CONFIGURED: Final = re.compile(r"Accelerator\([^)]*gradient_accumulation")


def may_divide(found: AccumulationLoop) -> bool:
    """Return whether the code around a loop divides losses or gradients somewhere, or means them to be sums."""
    text = found.run.module.text
    if _uses_period(found) or handles_gradients(found.run.module):
        return True
    made = found.step.value.node
    return _SUMS.search(text) is not None or _SCALES.search(text) is not None or _mentions(made, found.period)


def may_be_divided(event: Event, found: AccumulationLoop) -> bool:
    """Return whether the loss of a pass may be divided by the accumulation steps, here or out of sight.

    Args:
        event: The backward pass.
        found: The accumulation that it belongs to.
    """
    if event.value.divided_by or _is_pass_of_object(event, event.module):
        return True
    return _mentions(event.value.node, found.period) or _is_scaled(event) or _is_made_elsewhere(event)


def _is_pass_of_object(event: Event, module: Module) -> bool:
    """Return whether an object makes the pass that may divide: an accelerator, a strategy; not fabric."""
    call = event.call
    if call is None or not isinstance(call.func, ast.Attribute) or event.name == ".manual_backward":
        return False
    if not (call.args or call.keywords):
        return False
    owner = text_of(call.func.value)
    if "accelerator" in owner.lower():
        return "Accelerator(" not in module.text or _CONFIGURED.search(module.text) is not None
    return owner.rpartition(".")[2] not in ("", "fabric") and not (
        not call.args and all(keyword.arg in ("retain_graph", "create_graph") for keyword in call.keywords)
    )


def _uses_period(found: AccumulationLoop) -> bool:
    """Return whether the loop divides or multiplies by the accumulation steps, other than a number for the log."""
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
    """Return whether a loss is multiplied by the accumulation steps, for the log: it had been divided by them."""
    return text_of(times) == period and ("loss" in text_of(loss).lower() or ".item()" in text_of(loss))


def _mentions(node: ast.expr | None, period: str) -> bool:
    """Return whether an expression has the accumulation steps in it, or passes on what holds them, such as `args`."""
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
    """Return whether the loss is multiplied by a factor, as its name says, or is a sum itself."""
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
    """Return whether an inherited method makes the loss: it knows all that `self` knows."""
    node, function = event.value.node, event.function
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return False
    if text_of(node.func.value) not in ("self", "super()"):
        return False
    return not _sets(function, f"self.{node.func.attr}")


def _sets(function: Function | None, text: str) -> bool:
    """Return whether the class sets an attribute, which is then no inherited method."""
    class_ = None if function is None else function.class_
    return class_ is not None and re.search(rf"{re.escape(text)}\b[^=\n]*=[^=]", class_.module.text) is not None


_BY_HAND: Final = re.compile(r"\._scale\b|\binv\w*scale|\bloss_scale\b|GradScaler\([^)]*enabled\s*=\s*False")

_MULTIPLIES: Final = frozenset({"mul", "mul_", "div", "div_", "true_divide", "true_divide_"})


def is_scaled(backward: Event) -> bool:
    """Return whether the pass is of a scaled loss: `scaler.scale(loss).backward()`."""
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
    """Return whether the step makes its own passes: `optimizer.step(closure)`."""
    call = step.call
    return call is not None and bool(call.args or call.keywords) and scaler_of(step) is None


def scales_by_hand(run: Run, event: Event) -> bool:
    """Return whether the code multiplies or divides by the scale itself, or has a scaler that does nothing.

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
    """Return the operands of a product, or the divisor."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult | ast.Div):
        return (node.left, node.right)
    if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Mult | ast.Div):
        return (node.value,)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _MULTIPLIES:
        return tuple(node.args)
    return ()
