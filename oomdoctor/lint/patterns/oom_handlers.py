"""The handlers of a file that go on after memory ran out, and which part of them does."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from oomdoctor.lint.patterns.oom_recognition import OOM_WORDS, Recognition, called_name

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from oomdoctor.lint.code.functions import Function, Module

_NEW_SCOPES: Final = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)
_BODIES: Final = ("body", "handlers", "orelse", "finalbody", "cases")
_EXITS: Final = frozenset({"exit", "_exit", "abort", "quit"})
_LEAVING: Final = (ast.Raise, ast.Return, ast.Continue, ast.Break)


@dataclass(frozen=True, slots=True, eq=False)
class OomHandler:
    """A handler that runs when memory ran out.

    Attributes:
        module: The file.
        attempt: The `try` that it belongs to.
        node: The handler.
        part: The statements of it that run for an OOM, conditions on other things resolved neither way.
        function: The function that it lies in; None at the top of the file.
        recognition: How the file recognises OOM, with the names that the handler sets.
    """

    module: Module
    attempt: ast.Try | ast.TryStar
    node: ast.ExceptHandler
    part: tuple[ast.stmt, ...]
    function: Function | None
    recognition: Recognition

    def statements(self) -> Iterator[ast.AST]:
        """All nodes that run in it, in the order of the text; what is merely defined there is left out."""
        for statement in self.part:
            yield from running(statement)

    @property
    def gives_up(self) -> bool:
        """Whether it ends the program or passes an error on, whatever else it does."""
        return always_raises(self.part)


def oom_handlers(module: Module) -> Iterator[OomHandler]:
    """The handlers of a file that run when memory ran out, in the order of the file."""
    if not any(word in module.text for word in OOM_WORDS):
        return
    recognition = Recognition.of(module)
    for attempt in attempts(module):
        for node in attempt.handlers:
            inner = recognition.within(node)
            part = _oom_part(node, inner)
            if part:
                yield OomHandler(module, attempt, node, tuple(part), enclosing(module, node), inner)


def attempts(module: Module) -> Iterator[ast.Try | ast.TryStar]:
    """The `try` statements of a file in its order; only statements are looked at, since nothing else can hold one."""
    waiting: list[ast.AST] = [module.tree]
    while waiting:
        holder = waiting.pop()
        if isinstance(holder, ast.Try | ast.TryStar):
            yield holder
        inner = [getattr(holder, name, ()) for name in _BODIES]
        waiting.extend(reversed([node for nodes in inner if isinstance(nodes, list) for node in nodes]))


def enclosing(module: Module, node: ast.AST) -> Function | None:
    """The innermost function around a node."""
    found = None
    for function in module.functions:
        if function.node.lineno <= node.lineno <= (function.node.end_lineno or 0):  # type: ignore[attr-defined]
            found = function
    return found


def running(node: ast.AST) -> Iterator[ast.AST]:
    """A node and those below it that run with it, parents first, in the order of the text."""
    waiting = [node]
    while waiting:
        inner = waiting.pop()
        if not isinstance(inner, _NEW_SCOPES):
            yield inner
            waiting.extend(reversed(list(ast.iter_child_nodes(inner))))


def always_raises(statements: Sequence[ast.stmt]) -> bool:
    """Whether statements end in an error or the program's end, whichever way they go."""
    for statement in statements:
        if isinstance(statement, ast.Raise) or _exits(statement):
            return True
        if isinstance(statement, ast.If) and always_raises(statement.body) and always_raises(statement.orelse):
            return True
        if isinstance(statement, ast.With) and always_raises(statement.body):
            return True
        if any(isinstance(inner, ast.Return | ast.Continue | ast.Break) for inner in running(statement)):
            return False
    return False


def leaves(statements: Sequence[ast.stmt]) -> bool:
    """Whether what stands after these statements is not reached from them."""
    return bool(statements) and (isinstance(statements[-1], _LEAVING) or always_raises(statements))


def _exits(statement: ast.stmt) -> bool:
    return (
        isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Call)
        and called_name(statement.value) in _EXITS
    )


def _oom_part(handler: ast.ExceptHandler, recognition: Recognition) -> list[ast.stmt]:
    if recognition.is_type(handler.type):
        return handler.body
    part, known = _after_test(handler.body, recognition)
    return part if known else []


def _after_test(statements: list[ast.stmt], recognition: Recognition) -> tuple[list[ast.stmt], bool]:
    """The statements that run once a condition has said that it is OOM, and whether one says so."""
    for index, statement in enumerate(statements):
        if not isinstance(statement, ast.If):
            continue
        said, rest = recognition.says(statement.test), statements[index + 1 :]
        if said is not None:
            chosen = statement.body if said else statement.orelse
            return chosen + ([] if leaves(chosen) else rest), True
        part, known = _after_test(statement.orelse, recognition)
        if known:
            return part + ([] if leaves(part) else rest), True
    return [], False
