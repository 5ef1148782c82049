"""OOM208: micro-batches are synchronised over processes one by one, or never."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import Final

from oomdoctor.lint.flow.events import Action, Event, Run, With
from oomdoctor.lint.flow.state import text_of
from oomdoctor.lint.module import walk
from oomdoctor.lint.patterns.accumulation import AccumulationLoop, accumulations
from oomdoctor.lint.patterns.boundary import Boundary, boundary_of
from oomdoctor.lint.rule import Hit, Subject, read_rule
from oomdoctor.results import Severity

_SHARDS: Final = re.compile(r"FullyShardedDataParallel|fully_shard|\bFSDP\b|deepspeed")
_SYNC_CONTROL: Final = re.compile(
    r"no_sync|require_backward_grad_sync|set_requires_gradient_sync|no_backward_sync|set_is_last_backward|comm_hook"
    r"|(?:dis|en)able_allreduce"  # of apex
)
"""Text that turns the synchronisation off or replaces it."""


def _check(subject: Subject) -> Iterator[Hit]:
    runs = [run for run in subject.runs if any(run.of(Action.BACKWARD))]
    if not runs or _SHARDS.search(subject.module.text) is not None:
        return
    for run in runs:
        # `no_sync` around the backward pass alone, where it does nothing.
        for event in run.of(Action.BACKWARD):
            manager = _no_sync(event)
            forwards = _forwards(run, event)
            if manager is not None and forwards and not any(manager in made.context.withs for made in forwards):
                message = f"`{text_of(manager.node)}` has no effect: the forward pass is outside it"
                help_ = "put the forward pass into the same `with`: it decides about the synchronisation"
                yield Hit.at(event, message, help=help_, severity=Severity.WARNING)
        for found in accumulations(run):
            yield from _each_time(run, found)
            yield from _at_other_times(run, found)


def _forwards(run: Run, event: Event) -> list[Event]:
    """Forward passes of a model under DistributedDataParallel that led to this backward pass."""
    return [made for made in run.of(Action.FORWARD) if made.value.wrapped and event.value.comes_from(made.result)]


def _no_sync(event: Event) -> With | None:
    return next((manager for manager in event.context.withs if manager.name == ".no_sync"), None)


def _each_time(run: Run, found: AccumulationLoop) -> Iterator[Hit]:
    """Yield a hit where nothing in the file mentions `no_sync`."""
    if _SYNC_CONTROL.search(run.module.text) or _SYNC_CONTROL.search(found.step.module.text):
        return
    for event in found.backwards:
        forwards = _forwards(run, event)
        if forwards:
            model = text_of(forwards[0].call.func) if forwards[0].call is not None else "the model"
            message = f"gradients of `{model}` are averaged over all processes in every one of `{found.period}` passes"
            yield Hit.at(event, message, help=_help(forwards[0], model))


def _help(forward: Event, model: str) -> str:
    if (forward.value.library or "").startswith("apex."):  # its DistributedDataParallel has no `no_sync`
        return f"call `{model}.disable_allreduce()`, and `{model}.enable_allreduce()` before the last micro-batch"
    return f"run all but the last micro-batch under `with {model}.no_sync():`"


def _at_other_times(run: Run, found: AccumulationLoop) -> Iterator[Hit]:
    """`no_sync` around all passes, or around the one before the step."""
    inside = [event for event in found.backwards if _no_sync(event) is not None and _forwards(run, event)]
    outside = [event for event in found.backwards if event not in inside]
    if inside and not outside and all(_is_plain(event) for event in inside):
        message = "no pass of the window is synchronised: each process steps with its own gradients and diverges"
        yield Hit.at(inside[0], message, help="leave `no_sync` out for the last micro-batch", severity=Severity.ERROR)
    elif inside and outside and _misses(found, outside):
        message = "`no_sync` holds for the pass before the step: each process steps with gradients of its own"
        help_ = "synchronise in the iteration in which the optimizer steps"
        yield Hit.at(inside[0], message, help=help_, severity=Severity.ERROR)


def _is_plain(event: Event) -> bool:
    """Return whether the `with` has the call itself, so that no other manager can replace it."""
    manager = _no_sync(event)
    return manager is not None and any(
        item.context_expr is manager.node
        for node in walk(event.module.tree)
        if isinstance(node, ast.With | ast.AsyncWith)
        for item in node.items
    )


def _misses(found: AccumulationLoop, outside: list[Event]) -> bool:
    """Return whether other passes than those before the step are synchronised."""
    step = found.boundary
    if step is None:
        return False
    read = [boundary for event in outside for boundary in _boundaries(event, found)]
    return bool(read) and all(
        boundary.counter == step.counter
        and boundary.period == step.period
        and not step.is_multiple(boundary.phase - step.phase)
        for boundary in read
    )


def _boundaries(event: Event, found: AccumulationLoop) -> Iterator[Boundary]:
    for guard in event.context.guards_in(found.loop):
        boundary = boundary_of(guard.test, holds=guard.holds)
        if boundary is not None:
            yield boundary


RULE: Final = read_rule(__file__, _check)
