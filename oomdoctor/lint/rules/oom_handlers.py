"""Rules on handlers of out-of-memory errors (OOM121 to OOM123)."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from oomdoctor.lint.flow import known
from oomdoctor.lint.flow.events import Action, Context, Event, Loop, Run
from oomdoctor.lint.flow.state import text_of
from oomdoctor.lint.module import Module, called_name, walk
from oomdoctor.lint.patterns.oom_handlers import (
    OomHandler,
    Recognition,
    always_raises,
    attempts,
    executed_nodes,
    mentions_type,
    oom_handlers,
)
from oomdoctor.lint.rule import Hit, Subject, read_rules
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
_RETRY_HELP: Final = "set a flag in the handler, and retry after the `except` block, where the error is gone"


def retry_inside_except(subject: Subject) -> Iterator[Hit]:
    """OOM121: work that ran out of memory is done again inside the handler."""
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
        return Hit(again, handler.module, message, _RETRY_HELP, Severity.NOTE)
    message = f"`{name}` runs again inside `except`, where the error keeps the failed attempt's tensors alive"
    return Hit(again, handler.module, message, _RETRY_HELP)


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


_ERROR_NAME: Final = re.compile(r"^(?:e|ex|exc|err|error|exception|problem|failure)\d?$|_(?:err|exc|error|exception)$")
_FORMATTERS: Final = frozenset({"format_exc", "format_exception", "format_exception_only"})
_ONE_DEVICE: Final = re.compile(r"cuda|hip|mps|xpu|npu", re.IGNORECASE)
_WORDS: Final = ("ut of memory", "UT OF MEMORY")
_MESSAGE_HELP: Final = (
    "catch `torch.OutOfMemoryError` as well, and keep looking at the message of other errors: "
    "`out of memory`, `CUBLAS_STATUS_ALLOC_FAILED` and `CUDNN_STATUS_ALLOC_FAILED`"
)


@dataclass(slots=True)
class _File:
    """A file, with its parts that tell OOM in more than one way.

    Attributes:
        module: The file.
        recognition: The file's ways to recognise OOM.
        checked_scopes: Answers so far, by the part's identity.
    """

    module: Module
    recognition: Recognition
    checked_scopes: dict[int, bool] = field(default_factory=dict)

    def has_other_test(self, scope: ast.AST) -> bool:
        """Return whether a part of the file looks at the error's type too, or for a second text."""
        if id(scope) not in self.checked_scopes:
            inner = self.recognition.within(scope)
            self.checked_scopes[id(scope)] = mentions_type(scope) or len(inner.tested_texts(scope)) > 1
        return self.checked_scopes[id(scope)]


def oom_by_one_message(subject: Subject) -> Iterator[Hit]:
    """OOM122: an OOM is known by one wording of its message."""
    if not any(word in subject.module.text for word in _WORDS):
        return
    file = _File(subject.module, Recognition.of(subject.module))
    for attempt in attempts(file.module):
        for handler in attempt.handlers:
            if not file.recognition.is_type(handler.type) and file.recognition.has_texts(handler):
                yield from _in_handler(file, handler)
    for function in file.module.functions:
        # Tests of an error that a function is given; others in the file may know the other wordings.
        arguments = function.node.args
        named = {
            argument.arg
            for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)
            if _ERROR_NAME.search(argument.arg)
            or (isinstance(argument.annotation, ast.Name) and argument.annotation.id.endswith(("Error", "Exception")))
        }
        if named:
            yield from _single(file, function.node, named, file.module.tree)


def _in_handler(file: _File, handler: ast.ExceptHandler) -> Iterator[Hit]:
    """Tests of the error that a handler caught; where it raises either way, they only choose the words."""
    if always_raises(handler.body):
        return
    function = file.module.function_at(handler)
    scope = file.module.tree if function is None else function.node
    yield from _single(file, handler, {handler.name} if handler.name else set(), scope)


def _single(file: _File, holder: ast.AST, errors: set[str], scope: ast.AST) -> Iterator[Hit]:
    """The tests below `holder`, unless `scope` knows the type or a second text."""
    recognition = file.recognition.within(holder)
    children = [inner for child in ast.iter_child_nodes(holder) for inner in executed_nodes(child)]
    tests = [
        node for node in children if recognition.is_text_test(node) and _of_an_error(node, recognition, errors, holder)
    ]
    if not tests or file.has_other_test(scope):
        return
    if any(isinstance(node, ast.Call) and recognition.calls_predicate(node) for node in children):
        return
    inside = {id(inner) for test in tests for inner in walk(test) if inner is not test}
    for test in tests:
        if id(test) not in inside:
            text = next(text for text in sorted(recognition.tested_texts(test)))
            severity = None if _ONE_DEVICE.search(text) else Severity.NOTE
            shown = next((found for found in recognition.texts_in(test) if found.lower() == text), text)
            yield Hit(
                test,
                file.module,
                f"an out-of-memory error is recognised by the text `{shown}` alone",
                _MESSAGE_HELP,
                severity,
            )


def _of_an_error(test: ast.AST, recognition: Recognition, errors: set[str], holder: ast.AST) -> bool:
    """Return whether a test is about an error's text: `str(e)`, `e.args[0]`, `format_exc()`, or a name for it."""
    in_handler = isinstance(holder, ast.ExceptHandler)
    for node in walk(test):
        meant = recognition.constants.get(node.id) if isinstance(node, ast.Name) else None
        for part in (node, *(walk(meant) if meant is not None else ())):
            if isinstance(part, ast.Name) and part.id in errors:
                return True
            if in_handler and isinstance(part, ast.Call) and called_name(part) in _FORMATTERS:
                return True
    return False


_COLLECTIVE: Final = re.compile(
    r"all_?reduce|all_?gather|barrier|broadcast|^reduce|^gather|rendezvous|any_rank|all_ranks|across|^sync_|agree"
)
_ALONE: Final = frozenset({".no_sync", ".join", "torch.distributed.algorithms.join.Join"})
"""Context managers under which a rank may be alone."""
_SHARDS: Final = "fully_shard"
_SKIP_HELP: Final = (
    "let all ranks decide together: all-reduce a flag before any other communication, or let the error end the run"
)


def oom_skipped_on_one_rank(subject: Subject) -> Iterator[Hit]:
    """OOM123: one rank skips a batch that ran out of memory, and the others wait for it."""
    for handler in oom_handlers(subject.module):
        if handler.gives_up or any(_communicates(node) for node in handler.statements()):
            continue
        if any(_skips_alone(handler, run, subject.module) for run in subject.runs):
            place = handler.node.type or handler.node
            message = (
                "a batch that is skipped on one rank leaves the others waiting in the all-reduce of the backward pass"
            )
            yield Hit(place, handler.module, message, _SKIP_HELP)


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


RULES: Final = read_rules(retry_inside_except, oom_by_one_message, oom_skipped_on_one_rank)
