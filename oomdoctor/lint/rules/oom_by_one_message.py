"""OOM122: an OOM is known by one wording of its message."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from oomdoctor.lint.module import Module, called_name, walk
from oomdoctor.lint.patterns.oom_handlers import (
    Recognition,
    always_raises,
    attempts,
    executed_nodes,
    mentions_type,
)
from oomdoctor.lint.rule import Hit, Subject, read_rule
from oomdoctor.results import Severity

_ERROR_NAME: Final = re.compile(r"^(?:e|ex|exc|err|error|exception|problem|failure)\d?$|_(?:err|exc|error|exception)$")
_FORMATTERS: Final = frozenset({"format_exc", "format_exception", "format_exception_only"})
_ONE_DEVICE: Final = re.compile(r"cuda|hip|mps|xpu|npu", re.IGNORECASE)
_WORDS: Final = ("ut of memory", "UT OF MEMORY")
_HELP: Final = (
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


def _check(subject: Subject) -> Iterator[Hit]:
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
                test, file.module, f"an out-of-memory error is recognised by the text `{shown}` alone", _HELP, severity
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


RULE: Final = read_rule(__file__, _check)
