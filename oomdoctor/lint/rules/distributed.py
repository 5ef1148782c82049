"""Rules on training by several processes (OOM208, OOM218)."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import Final

from oomdoctor.lint.flow.events import Action, Event, Kind, Loop, Run, With
from oomdoctor.lint.flow.state import text_of
from oomdoctor.lint.module import Module, targets_of, walk
from oomdoctor.lint.patterns.accumulation import AccumulationLoop, accumulations
from oomdoctor.lint.patterns.boundary import Boundary, boundary_of
from oomdoctor.lint.rule import Hit, Subject, read_rules
from oomdoctor.results import Severity

_SHARDS: Final = re.compile(r"FullyShardedDataParallel|fully_shard|\bFSDP\b|deepspeed")
_SYNC_CONTROL: Final = re.compile(
    r"no_sync|require_backward_grad_sync|set_requires_gradient_sync|no_backward_sync|set_is_last_backward|comm_hook"
    r"|(?:dis|en)able_allreduce"  # of apex
)
"""Text that turns the synchronisation off or replaces it."""


def accumulation_without_no_sync(subject: Subject) -> Iterator[Hit]:
    """OOM208: micro-batches are synchronised over processes one by one, or never."""
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
            yield Hit.at(event, message, help=_no_sync_help(forwards[0], model))


def _no_sync_help(forward: Event, model: str) -> str:
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


_DIVIDES: Final = re.compile(
    r"rank\s*(?:\(\))?\s*::|split_(?:dataset_)?by_(?:node|rank)|[Ss]hard|Iterable|webdataset|\bwds\b|\bdali\b|num_replicas"
    r"|seed\w*\s*[+*(][^\n]{0,40}rank|rank[^\n]{0,20}\+[^\n]{0,20}seed|accelerat|[Ff]abric|lightning|deepspeed|ignite",
)
"""Text that divides the data over processes in another way, or leaves it to a framework."""
_SAMPLER: Final = "DistributedSampler"


def ddp_without_sampler(subject: Subject) -> Iterator[Hit]:
    """OOM218: each process goes through the whole data set, or through its share in the same order each epoch."""
    for run in subject.runs:
        modules = {run.module, *(event.module for event in run.events)}
        text = "\n".join(module.text for module in modules)
        for loop in run.training_loops():
            loader = loop.iterates.node
            if isinstance(loader, ast.Call) and _is_distributed(run, loop) and loop.iterates.kind is Kind.LOADER:
                yield from _undivided_data(run, loop, loader, modules, text)


def _is_distributed(run: Run, loop: Loop) -> bool:
    """Return whether the loop trains a model under DistributedDataParallel, on batches of PyTorch's own loader."""
    library = loop.iterates.library or ""
    is_wrapped = any(made.value.wrapped for made in run.of(Action.FORWARD, within=loop))
    return is_wrapped and library.startswith("torch.") and library.endswith(".DataLoader")


def _undivided_data(run: Run, loop: Loop, loader: ast.Call, modules: set[Module], text: str) -> Iterator[Hit]:
    given = {keyword.arg: keyword.value for keyword in loader.keywords}
    module = run.module if loop.function is None else loop.function.module
    if None in given or _DIVIDES.search(text) is not None:
        return
    if not {"sampler", "batch_sampler"} & given.keys() and _SAMPLER not in text:
        message = "every process goes through the whole data set: no sampler divides it"
        help_ = "give the loader `sampler=DistributedSampler(dataset)`, and call its `set_epoch(epoch)` each epoch"
        yield Hit(loop.node, module, message, help_)
    elif "sampler" in given and _is_same_each_epoch(given["sampler"], loop, run, modules) and "set_epoch" not in text:
        sampler = text_of(given["sampler"])
        name = sampler if sampler.isidentifier() else "sampler"
        message = f"`{name}` gives the same order in every epoch: nothing calls `set_epoch`"
        yield Hit(loop.node, module, message, f"call `{name}.set_epoch(epoch)` before each epoch")


def _is_same_each_epoch(sampler: ast.expr, loop: Loop, run: Run, modules: set[Module]) -> bool:
    """Return whether a loop around takes epochs, and the sampler is a distributed one that shuffles."""
    events = list(run.of(Action.BACKWARD, within=loop))
    is_repeated = any(event.context.loops.index(loop) > 0 for event in events)
    made = [sampler] if isinstance(sampler, ast.Call) else _assigned(text_of(sampler), modules)
    calls = [node for value in made for node in walk(value) if isinstance(node, ast.Call)]
    samplers = [call for call in calls if text_of(call.func).rpartition(".")[2] == _SAMPLER]
    return is_repeated and bool(samplers) and not any("shuffle=False" in ast.unparse(call) for call in samplers)


def _assigned(name: str, modules: set[Module]) -> list[ast.expr]:
    """Return all that is assigned to a name in these files."""
    nodes = (node for module in modules for node in walk(module.tree) if isinstance(node, ast.Assign))
    return [node.value for node in nodes if name in map(text_of, targets_of(node))]


RULES: Final = read_rules(accumulation_without_no_sync, ddp_without_sampler)
