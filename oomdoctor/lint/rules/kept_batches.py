"""Rules on what stays in memory of every batch (OOM102, OOM103, OOM105)."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import Final

from oomdoctor.lint.flow.events import Action, Event, GradMode, Graph, Keeping, Kind, TensorDevice, Value
from oomdoctor.lint.flow.runs import gradients_by_callers, trained_elsewhere
from oomdoctor.lint.flow.state import text_of
from oomdoctor.lint.module import is_of_other_tensors, may_use_gpu, walk
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
    may_be_small,
)
from oomdoctor.lint.rule import Hit, Subject, read_rules
from oomdoctor.lint.source import Edit
from oomdoctor.results import Severity


def loss_keeps_graph(subject: Subject) -> Iterator[Hit]:
    """OOM102: a loss or an output is kept together with its graph."""
    for run in subject.runs:
        for kept in kept_over_batches(run):
            if _keeps_graph(kept.event) and kept.event.context.managed not in FRAMEWORKS:
                yield from _with_graph(kept)
        for event in kept_by_steps(run):
            yield Hit.at(
                event, _graph_message(event, had_backward=True), help=_detach_help(event), edits=_detach(event)
            )


def _keeps_graph(event: Event) -> bool:
    """Return whether the kept value hangs on a graph; a sum that autograd does not record hangs on none."""
    is_sum = event.how in (Keeping.SUM, Keeping.ITEM_SUM)
    return event.value.graph is Graph.YES and not (is_sum and event.context.gradients is GradMode.OFF)


def _with_graph(kept: Kept) -> Iterator[Hit]:
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
        _graph_message(kept.event, had_backward=had_backward),
        _detach_help(kept.event),
        severity=Severity.WARNING if had_backward or bool(forgotten) else Severity.ERROR,
        edits=_detach(kept.event) if node is kept.event.node and not is_passed_on(kept) else (),
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


def _graph_message(event: Event, *, had_backward: bool) -> str:
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


def _detach_help(event: Event) -> str:
    if event.value.is_loss:
        return "keep `.detach()` of it, or `.item()` where waiting for the GPU does no harm"
    return "keep `.detach()` of it, and `.detach().cpu()` where it is large"


def _detach(event: Event) -> tuple[Edit, ...]:
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


_LIST: Final = frozenset({Keeping.APPEND, Keeping.ITEM, Keeping.YIELD})


def outputs_kept_on_gpu(subject: Subject) -> Iterator[Hit]:
    """OOM103: the outputs of all batches are collected on the GPU."""
    hits = [_kept_output(kept) for run in subject.runs for kept in kept_over_batches(run) if _is_large_output(kept)]
    if hits and may_use_gpu(subject.module):
        yield from (hit for hit in hits if not is_of_other_tensors(hit.node, hit.module))


def _is_large_output(kept: Kept) -> bool:
    output = _output(kept)
    return output is not None and _grows(kept) and not _is_small(kept, output)


def _output(kept: Kept) -> Value | None:
    """The part of what is kept that is an output of a model, without a graph, where the model is."""
    value = kept.event.value
    for part in (value, *value.parts):
        if (
            part.kind is Kind.TENSOR
            and part.graph is Graph.NO
            and part.device is TensorDevice.GPU
            and _is_output(kept, part)
        ):
            return part
    return None


def _is_output(kept: Kept, value: Value) -> bool:
    return not value.is_loss and any(value.comes_from(event.result) for event in kept.run.of(Action.FORWARD))


def _grows(kept: Kept) -> bool:
    """Return whether every batch of the loop adds to the container, and nothing removes anything."""
    if kept.event.how not in _LIST or kept.forgotten() or kept.takes_slices():
        return False
    return not any(isinstance(node, ast.Break) for node in walk(kept.loop.node))


def _is_small(kept: Kept, output: Value) -> bool:
    is_from_loss = any(
        output.comes_from(event.value) for event in kept.run.of(Action.BACKWARD) if event.value.identity > 0
    )
    return is_from_loss or may_be_small(output.node, kept.event.module, kept.event.function)


def _kept_output(kept: Kept) -> Hit:
    node, module = kept.reported_at()
    where = f" in `{kept.event.target}`" if kept.event.target else ""
    expression = kept_expression(kept.event)
    named = isinstance(expression, ast.Name | ast.Attribute)
    what = f"`{text_of(expression)}`" if named and expression is not None else "the model's output"
    return Hit(
        node,
        module,
        f"{what} of every batch is kept on the GPU{where}, so that memory grows with the data set",
        "keep `.cpu()` of it, or only what is needed of it, such as its `argmax`",
    )


_ONE_LOADER: Final = re.compile(r"(?:loader|_dl)$", re.IGNORECASE)
_CYCLE_HELP: Final = (
    "write a generator, `while True: yield from {loader}`: it keeps no batch, and each round is shuffled anew"
)


def cycle_caches_batches(subject: Subject) -> Iterator[Hit]:
    """OOM105: `itertools.cycle` over a loader keeps every batch."""
    for run in subject.runs:
        for event in run.of(Action.CALL):
            if event.name == "itertools.cycle" and _is_loader(event):
                loader = text_of(event.call.args[0])  # type: ignore[union-attr]
                message = f"`itertools.cycle` keeps every batch of `{loader}` and repeats the same ones"
                yield Hit.at(event, message, help=_CYCLE_HELP.format(loader=loader))


def _is_loader(event: Event) -> bool:
    """Return whether the argument is one loader, made in sight or named so; `loaders` may be a list of them."""
    if event.call is None or len(event.call.args) != 1 or event.value.kind is not Kind.LOADER:
        return False
    return event.value.library is not None or _ONE_LOADER.search(text_of(event.call.args[0])) is not None


RULES: Final = read_rules(loss_keeps_graph, outputs_kept_on_gpu, cycle_caches_batches)
