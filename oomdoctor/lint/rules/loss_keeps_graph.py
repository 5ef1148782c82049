"""OOM102: a loss or an output is kept together with its graph."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Final

from oomdoctor.lint.flow.events import Event, GradMode, Graph, Keeping, Kind
from oomdoctor.lint.flow.runs import gradients_by_callers, trained_elsewhere
from oomdoctor.lint.flow.state import text_of
from oomdoctor.lint.patterns.edits import with_method_call
from oomdoctor.lint.patterns.evaluation import is_evaluation
from oomdoctor.lint.patterns.graphs import is_passed_on, is_read_back, is_returned, is_trained_on, own_backward
from oomdoctor.lint.patterns.keeping import (
    FRAMEWORKS,
    Kept,
    is_frozen,
    kept_by_steps,
    kept_expression,
    kept_over_batches,
)
from oomdoctor.lint.rule import Hit, Subject, read_rule
from oomdoctor.lint.source import Edit
from oomdoctor.results import Severity


def _check(subject: Subject) -> Iterator[Hit]:
    for run in subject.runs:
        for kept in kept_over_batches(run):
            if _keeps_graph(kept.event) and kept.event.context.managed not in FRAMEWORKS:
                yield from _judged(kept)
        for event in kept_by_steps(run):
            yield Hit.at(event, _message(event, had_backward=True), help=_help(event), edits=_edits(event))


def _keeps_graph(event: Event) -> bool:
    """Return whether the kept value hangs on a graph; a sum that autograd does not record hangs on none."""
    is_sum = event.how in (Keeping.SUM, Keeping.ITEM_SUM)
    return event.value.graph is Graph.YES and not (is_sum and event.context.gradients is GradMode.OFF)


def _judged(kept: Kept) -> Iterator[Hit]:
    """Say so, unless the graph is wanted or soon let go of."""
    forgotten = kept.forgotten()
    if _has_no_graph(kept) or is_trained_on(kept) or is_read_back(kept):
        return
    if any(not event.context.guards_in(kept.loop) for event in forgotten):
        return
    had_backward = own_backward(kept)
    if forgotten if had_backward else not _never_gets_backward(kept):
        return
    if gradients_by_callers(kept.event) not in (None, GradMode.ON):
        return
    if any(trained_elsewhere(event, kept.loop) for event in kept.forwards()):
        return
    node, module = kept.reported_at()
    yield Hit(
        node,
        module,
        _message(kept.event, had_backward=had_backward),
        _help(kept.event),
        severity=Severity.WARNING if had_backward or bool(forgotten) else Severity.ERROR,
        edits=_edits(kept.event) if node is kept.event.node and not is_passed_on(kept) else (),
    )


def _has_no_graph(kept: Kept) -> bool:
    """Return whether the value comes from models with frozen parameters alone."""
    forwards = kept.forwards()
    return bool(forwards) and all(is_frozen(kept.run, event) for event in forwards)


def _never_gets_backward(kept: Kept) -> bool:
    """Return whether no backward pass of the value can follow, since it never got one here."""
    if any(is_evaluation(kept.run, event, kept.loop) for event in kept.forwards()):
        return True
    return "." not in kept.event.target and not is_returned(kept)


def _message(event: Event, *, had_backward: bool) -> str:
    what = _name(event)
    where = f" in `{event.target}`" if event.target else ""
    if had_backward:
        return f"{what} is kept{where} with its graph, whose nodes of every batch then stay in memory"
    return f"{what} is kept{where} with its graph, so that all activations of every batch stay in memory"


def _name(event: Event) -> str:
    node = kept_expression(event)
    if isinstance(node, ast.Name | ast.Attribute | ast.Subscript):
        return f"`{text_of(node)}`"
    return "a loss" if event.value.is_loss else "an output of the model"


def _help(event: Event) -> str:
    if event.value.is_loss:
        return "keep `.detach()` of it, or `.item()` where waiting for the GPU does no harm"
    return "keep `.detach()` of it, and `.detach().cpu()` where it is large"


def _edits(event: Event) -> tuple[Edit, ...]:
    if event.value.kind is not Kind.TENSOR:
        return ()
    node = kept_expression(event)
    if event.how in (Keeping.SUM, Keeping.ITEM) and isinstance(event.node, ast.Assign):
        node = _plain_addend(event.node, event.target) or node
    return () if node is None else with_method_call(node, "detach()")


def _plain_addend(statement: ast.Assign, target: str) -> ast.expr | None:
    """Return the operand added in `total = total + loss`."""
    value = statement.value
    if isinstance(value, ast.BinOp) and text_of(value.left) == target:
        return value.right
    return None


RULE: Final = read_rule(__file__, _check)
