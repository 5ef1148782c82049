"""What stands around an event in the text of its function: statements, and calls of which nothing is known."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Final

from oomdoctor.lint.code.walking import walk
from oomdoctor.lint.flow.events import Act
from oomdoctor.lint.flow.state import text_of
from oomdoctor.lint.patterns.iterations import end_of, start_of, within

if TYPE_CHECKING:
    from collections.abc import Iterator

    from oomdoctor.lint.flow.events import Event, Run

_HARMLESS: Final = frozenset(
    {
        "print", "log", "info", "debug", "warning", "write", "set_postfix", "set_description", "len", "int", "float",
        "str", "format", "round", "min", "max", "sum", "range", "enumerate", "zip", "isinstance", "append", "item",
        "parameters", "named_parameters", "time", "perf_counter", "add_scalar", "add_scalars", "is_available",
        "isfinite", "isnan", "isinf", "any", "all", "train", "eval", "step", "zero_grad", "clip_grad_norm_",
        "clip_grad_value_", "unscale_", "update", "get_last_lr", "synchronize", "mark_step", "chain", "list",
        "tuple", "getattr", "hasattr", "filter",
    }
)  # fmt: skip
"""Last parts of names of calls that make no backward pass and touch no gradient but as the events say."""

_LIBRARIES: Final = ("torch.", "numpy.", "math.", "logging.", "time.", "tqdm.", "wandb.", "os.", "random.")


def body_of(event: Event) -> ast.AST:
    """The function that an event lies in, or the file's own statements."""
    function = event.function
    return event.module.tree if function is None or function.module is not event.module else function.node


def statement_of(event: Event) -> ast.stmt | None:
    """The simple statement that an event stands in; None where it stands in the head of a loop or an `if`."""
    for node in walk(body_of(event)):
        if isinstance(node, ast.Expr | ast.Assign | ast.AnnAssign | ast.AugAssign | ast.Return) and within(
            event.node, node
        ):
            return node
    return None


def is_used(event: Event) -> bool:
    """Whether what the call gives is used."""
    statement = statement_of(event)
    return not (isinstance(statement, ast.Expr) and statement.value is event.node)


def explained(*runs: Run) -> set[int]:
    """Calls of which it is known what they do to gradients: by `id` of their nodes.

    Those are events, calls that were followed, and calls of libraries that leave gradients alone; of a function that
    is imported from elsewhere nothing is known.
    """
    known: set[int] = set()
    for run in runs:
        for event in run.events:
            if event.act is not Act.CALL or event.name.startswith(_LIBRARIES):
                known.add(id(event.node))
            known.update(id(frame.call) for frame in event.context.frames)
    return known


def is_harmless(call: ast.Call) -> bool:
    """Whether a call by this name makes no backward pass and touches no gradient but as the events say."""
    return _last(call.func) in _HARMLESS


def same_place(first: Event, second: Event) -> bool:
    """Whether both lie in one run through one function."""
    one, other = first.context.frames, second.context.frames
    return (
        first.module is second.module
        and len(one) == len(other)
        and all(frame.call is another.call for frame, another in zip(one, other, strict=True))
    )


def calls_between(first: Event, second: Event, run: Run) -> Iterator[ast.Call]:
    """Calls after the first and before the second, of one function, that are no events and may do anything."""
    known = explained(run)
    begin, end = end_of(first.node), start_of(second.node)
    for node in walk(body_of(first)):
        if not isinstance(node, ast.Call) or id(node) in known or is_harmless(node):
            continue
        if begin <= start_of(node) and end_of(node) <= end:
            yield node


def sets_gradients_between(first: Event, second: Event) -> bool:
    """Whether a gradient is written by hand there: `p.grad = ...`."""
    begin, end = end_of(first.node), start_of(second.node)
    return any(
        isinstance(node, ast.Attribute) and node.attr == "grad" and begin <= start_of(node) <= end
        for node in walk(body_of(first))
    )


def _last(function: ast.expr) -> str:
    return text_of(function).rpartition(".")[2]
