"""Rule on losses that are summed over micro-batches (OOM107)."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import Final

from oomdoctor.lint.flow.events import Action, Event, Graph, Loop, Run
from oomdoctor.lint.flow.state import base_of, text_of
from oomdoctor.lint.module import walk
from oomdoctor.lint.patterns.boundary import boundary_of
from oomdoctor.lint.patterns.counters import TestedCondition, set_back
from oomdoctor.lint.patterns.iterations import carried
from oomdoctor.lint.rule import Hit, Subject, read_rules

_MICRO_STEPS: Final = re.compile(r"accum|micro|(?<![a-z])gas(?![a-z])|virtual", re.IGNORECASE)
_HELP: Final = "run backward for each micro-batch: gradients add up by themselves, and each graph is freed at once"


def graphs_summed_until_boundary(subject: Subject) -> Iterator[Hit]:
    """OOM107: losses of several micro-batches are summed before one backward pass, so all graphs are alive."""
    for run in subject.runs:
        for event in run.of(Action.BACKWARD):
            for kept in _parts(run, event):
                if _is_micro_loop(run, kept, event) and not _takes_over(run, kept, event):
                    message = f"`{kept.target}` holds the graphs of all micro-batches of the window until this pass"
                    yield Hit.at(event, message, help=_HELP)
                    break


def _parts(run: Run, event: Event) -> Iterator[Event]:
    """Yield the events that put together the losses of this pass."""
    names = _names(event)
    for kept in run.of(Action.KEEP):
        if kept.outlives is not None and kept.value.is_loss and kept.value.graph is Graph.YES and kept.target in names:
            yield kept


def _names(event: Event) -> set[str]:
    """Names and dotted texts in what the pass is of."""
    if event.call is None or event.context.managed not in (None, "accelerate"):
        return set()
    of_what: list[ast.expr] = list(event.call.args)
    if isinstance(event.call.func, ast.Attribute):
        of_what.append(event.call.func.value)
    nodes = (node for part in of_what for node in walk(part))
    return {base_of(node) or "" for node in nodes if isinstance(node, ast.Name | ast.Attribute)}


def _is_micro_loop(run: Run, kept: Event, event: Event) -> bool:
    """Return whether the losses come from a loop over micro-batches, and the pass comes once in a window."""
    loop = kept.outlives
    if loop is None or kept.context.loops[-1] is not loop:
        return False
    if loop in event.context.loops:
        is_window = _is_at_boundary(event, loop) or _is_when_full(run, kept, event, loop)
        return loop.over_batches and event.context.loops[-1] is loop and is_window
    return _counts_micro_steps(loop) and event.context.loops == kept.context.loops[:-1]


def _is_at_boundary(event: Event, loop: Loop) -> bool:
    for guard in event.context.guards_in(loop):
        counters = set_back(TestedCondition(guard.test, loop, (), loop.node))
        boundary = boundary_of(guard.test, holds=guard.holds, set_back=counters)
        if boundary is not None:
            return True
    return False


def _is_when_full(run: Run, kept: Event, event: Event, loop: Loop) -> bool:
    """Return whether the pass comes once the list of losses has reached a length and is emptied there."""
    full = [guard.test for guard in event.context.guards_in(loop) if guard.holds and _fills(guard.test, kept.target)]
    emptied = [other for other in run.of(Action.FORGET, within=loop) if other.target == kept.target]
    return any(guard.test in full for other in emptied for guard in other.context.guards_in(loop))


def _fills(test: ast.expr, target: str) -> bool:
    """Return whether a test is `len(losses) == k` or `>=`."""
    match test:
        case ast.Compare(
            left=ast.Call(func=ast.Name(id="len"), args=[of_what]),
            ops=[ast.Eq() | ast.GtE()],
            comparators=[ast.Name() | ast.Attribute() | ast.Constant()],
        ):
            return text_of(of_what) == target
    return False


def _counts_micro_steps(loop: Loop) -> bool:
    """Return whether a loop is `for _ in range(k)`, with `k` a number of micro-batches by its name."""
    node = loop.node.iter if isinstance(loop.node, ast.For) else None
    if not loop.over_batches or not isinstance(node, ast.Call) or text_of(node.func) != "range" or len(node.args) != 1:
        return False
    return _MICRO_STEPS.search(text_of(node.args[0])) is not None


def _takes_over(run: Run, kept: Event, event: Event) -> bool:
    """Return whether micro-batches hang together by more than the sum, as a recurrent network's steps do."""
    loop = kept.outlives
    if loop is None:
        return True
    forwards = [made for made in run.of(Action.FORWARD, within=loop) if kept.value.comes_from(made.result)]
    if not forwards or any(made.context.loops != kept.context.loops for made in forwards):
        return True
    used = {text for made in forwards for text in _arguments(made)}
    return bool(used & (carried(loop) - {kept.target})) or any(
        other is not event and other.context.loops == kept.context.loops for other in run.of(Action.BACKWARD)
    )


def _arguments(made: Event) -> Iterator[str]:
    call = made.call
    for argument in [] if call is None else [*call.args, *(keyword.value for keyword in call.keywords)]:
        for node in walk(argument):
            if isinstance(node, ast.Name | ast.Attribute):
                yield base_of(node) or ""


RULES: Final = read_rules(graphs_summed_until_boundary)
