"""OOM123: one rank skips a batch that ran out of memory, and the others wait for it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import Final

from oomdoctor.lint.flow import known
from oomdoctor.lint.flow.events import Action, Context, Event, Loop, Run
from oomdoctor.lint.module import Module, called_name, walk
from oomdoctor.lint.patterns.oom_handlers import OomHandler, executed_nodes, oom_handlers
from oomdoctor.lint.rule import Hit, Subject, read_rule

_COLLECTIVE: Final = re.compile(
    r"all_?reduce|all_?gather|barrier|broadcast|^reduce|^gather|rendezvous|any_rank|all_ranks|across|^sync_|agree"
)
_ALONE: Final = frozenset({".no_sync", ".join", "torch.distributed.algorithms.join.Join"})
"""Context managers under which a rank may be alone."""
_SHARDS: Final = "fully_shard"
_HELP: Final = (
    "let all ranks decide together: all-reduce a flag before any other communication, or let the error end the run"
)


def _check(subject: Subject) -> Iterator[Hit]:
    for handler in oom_handlers(subject.module):
        if handler.gives_up or any(_communicates(node) for node in handler.statements()):
            continue
        if any(_skips_alone(handler, run, subject.module) for run in subject.runs):
            place = handler.node.type or handler.node
            message = (
                "a batch that is skipped on one rank leaves the others waiting in the all-reduce of the backward pass"
            )
            yield Hit(place, handler.module, message, _HELP)


def _skips_alone(handler: OomHandler, run: Run, module: Module) -> bool:
    """Return whether in this run the handler skips a batch of a model that is spread over processes."""
    for event in run.of(Action.BACKWARD):
        loop = _loop_around(handler, event)
        if loop is None or not _under(handler, event.context) or _alone(event.context):
            continue
        if _is_spread(run, handler, module) and not _others_know(handler, run, loop):
            return True
    return False


def _under(handler: OomHandler, context: Context) -> bool:
    """Return whether an event lies in the body of the handler's `try`."""
    return any(attempt.node is handler.attempt and attempt.part == "body" for attempt in context.attempts)


def _loop_around(handler: OomHandler, event: Event) -> Loop | None:
    """The innermost loop over batches that goes on after the handler."""
    for loop in reversed(event.context.loops):
        if loop.over_batches and _lies_around(loop, handler, event.context):
            return loop
    return None


def _lies_around(loop: Loop, handler: OomHandler, context: Context) -> bool:
    if loop.function is handler.function:
        return any(node is handler.attempt for node in walk(loop.node))
    functions = [frame.function for frame in context.frames]
    if loop.function is None or handler.function not in functions:
        return loop.function is None
    return loop.function in functions and functions.index(loop.function) < functions.index(handler.function)


def _alone(context: Context) -> bool:
    return any(manager.name in _ALONE for manager in context.withs)


def _is_spread(run: Run, handler: OomHandler, module: Module) -> bool:
    """Return whether the model is under DDP or FSDP; where its origin is unknown, whether the file makes one so."""
    models = [event.value for event in run.of(Action.FORWARD) if _under(handler, event.context)]
    if any(model.wrapped for model in models):
        return True
    return all(model.node is None for model in models) and any(
        isinstance(node, ast.Call) and (called_name(node) == _SHARDS or module.qualified(node.func) in known.WRAPPERS)
        for node in walk(module.tree)
    )


def _others_know(handler: OomHandler, run: Run, loop: Loop) -> bool:
    """Return whether the loop communicates outside of the `try`, or makes a replacement backward pass there."""
    for event in run.of(Action.BACKWARD, Action.CALL, within=loop):
        communicates = event.action is Action.BACKWARD or event.name.startswith("torch.distributed.")
        if communicates and not _under(handler, event.context):
            return True
    tried = {id(node) for statement in handler.attempt.body for node in walk(statement)}
    return any(_communicates(node) for node in executed_nodes(loop.node) if id(node) not in tried)


def _communicates(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and _COLLECTIVE.search(called_name(node)) is not None


RULE: Final = read_rule(__file__, _check)
