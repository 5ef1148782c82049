"""OOM121: work that ran out of memory is done again inside the handler."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Final

from oomdoctor.lint.flow.events import Action
from oomdoctor.lint.flow.state import text_of
from oomdoctor.lint.module import called_name, walk
from oomdoctor.lint.patterns.oom_handlers import OomHandler, executed_nodes, oom_handlers
from oomdoctor.lint.rule import Hit, Subject, read_rule
from oomdoctor.results import Severity

_WORK: Final = frozenset({Action.FORWARD, Action.BACKWARD, Action.AUTOGRAD})
_NO_WORK: Final = frozenset(
    {
        "add", "append", "close", "collect", "cpu", "critical", "cuda", "debug", "dict", "dump", "empty_cache",
        "error", "exception", "extend", "flush", "format", "get", "info", "item", "join", "len", "list", "load",
        "log", "max", "min", "open", "pop", "print", "put", "range", "release", "reset", "save", "set",
        "set_description", "set_postfix", "sleep", "split", "step", "str", "sum", "sync", "synchronize", "to",
        "tuple", "update", "wait", "warn", "warning", "write", "zero_grad",
    }
)  # fmt: skip
"""Calls in a `try` and its handler alike that do not run a model."""
_FREES: Final = frozenset({"clear_frames", "with_traceback"})
_HELP: Final = "set a flag in the handler, and retry after the `except` block, where the error is gone"


def _check(subject: Subject) -> Iterator[Hit]:
    working = None
    for handler in oom_handlers(subject.module):
        working = _calls_with_work(subject) if working is None else working
        again = _work_again(handler, working.get(handler.node, set()))
        if again is not None and not _frees_before(handler, again):
            yield _hit(handler, again)


def _work_again(handler: OomHandler, working: set[ast.AST]) -> ast.Call | None:
    """The first call in the handler that does the work again, or other work of the kind."""
    failed = _failed_call(handler)
    for node in handler.statements():
        if isinstance(node, ast.Call) and (
            node in working or _recurses(node, handler) or (failed is not None and text_of(node.func) == failed)
        ):
            return node
    return None


def _calls_with_work(subject: Subject) -> dict[ast.ExceptHandler, set[ast.AST]]:
    """For each handler, the calls in which a model runs there, or that lead to a function in which one does."""
    found: dict[ast.ExceptHandler, set[ast.AST]] = {}
    for run in subject.runs:
        for event in run.of(*_WORK):
            for handler in event.context.handlers:
                calls = found.setdefault(handler, set())
                calls.add(event.node)
                calls.update(frame.call for frame in event.context.frames if frame.call is not None)
    return found


def _recurses(call: ast.Call, handler: OomHandler) -> bool:
    """Return whether a call is of the function that the handler stands in."""
    function = handler.function
    if function is None or called_name(call) != function.name:
        return False
    if isinstance(call.func, ast.Name):
        return function.class_ is None
    return function.class_ is not None and text_of(call.func) in {f"self.{function.name}", f"cls.{function.name}"}


def _failed_call(handler: OomHandler) -> str | None:
    """Return the call that is the `try`'s one statement, or its result; None for a library's or one without work."""
    body = handler.attempt.body
    while len(body) == 1 and isinstance(body[0], ast.With):
        body = body[0].body
    if len(body) > 1 and not isinstance(body[-1], ast.Return | ast.Assign):
        return None
    call = _main_call(getattr(body[-1], "value", None))
    if call is None or handler.module.qualified(call.func):
        return None
    text = text_of(call.func)
    return text if text in handler.module.top or called_name(call) not in _NO_WORK else None


def _main_call(value: ast.expr | None) -> ast.Call | None:
    """The call that an expression is about: `model(x)` in `model(x).logits[0].cpu()`."""
    while value is not None:
        if isinstance(value, ast.Yield | ast.Await | ast.Attribute | ast.Subscript):
            value = value.value
        elif isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and value.func.attr in _NO_WORK:
            inner = value.func.value
            if not isinstance(inner, ast.Call | ast.Attribute | ast.Subscript):
                return value
            value = inner
        else:
            return value if isinstance(value, ast.Call) else None
    return None


def _frees_before(handler: OomHandler, again: ast.Call) -> bool:
    """Return whether the error releases the frames before: its traceback is cleared or taken off."""
    for node in handler.statements():
        if node is again:
            return False
        if isinstance(node, ast.Call) and (called_name(node) in _FREES or _leads_to_freeing(node, handler)):
            return True
        if isinstance(node, ast.Attribute) and node.attr == "__traceback__" and not isinstance(node.ctx, ast.Load):
            return True
    return False


def _leads_to_freeing(call: ast.Call, handler: OomHandler) -> bool:
    function = handler.module.top.get(called_name(call))
    return function is not None and any(
        isinstance(node, ast.Call) and called_name(node) in _FREES for node in walk(function.node)
    )


def _hit(handler: OomHandler, again: ast.Call) -> Hit:
    name = text_of(again.func)
    if _on_the_cpu(handler, again):
        message = (
            f"`{name}` falls back to the CPU inside `except`, where the error keeps the failed attempt's GPU memory"
        )
        return Hit(again, handler.module, message, _HELP, Severity.NOTE)
    message = f"`{name}` runs again inside `except`, where the error keeps the failed attempt's tensors alive"
    return Hit(again, handler.module, message, _HELP)


def _on_the_cpu(handler: OomHandler, again: ast.Call) -> bool:
    """Return whether the second attempt was moved to the CPU: the word stands before the call, or in it."""
    for node in handler.statements():
        if node is again:
            return any(_says_cpu(inner) for inner in executed_nodes(again))
        if _says_cpu(node):
            return True
    return False


def _says_cpu(node: ast.AST) -> bool:
    if isinstance(node, ast.Constant):
        return node.value == "cpu"
    return isinstance(node, ast.Call) and called_name(node) == "cpu"


RULE: Final = read_rule(__file__, _check)
