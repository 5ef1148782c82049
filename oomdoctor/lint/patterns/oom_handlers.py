"""Handlers of out-of-memory errors, and how a program recognises such an error."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from oomdoctor.lint.module import Function, Module, called_name, walk
from oomdoctor.oom.classifier import is_oom_wording

OOM_WORDS: Final = ("OutOfMemory", "ut of memory", "UT OF MEMORY", "UT_OF_MEMORY", "_oom", "oom_error", "out_of_memory")
"""A file without any of these recognises no OOM."""

_TEXT: Final = re.compile(r"out of memory|OUT_OF_MEMORY|\boom\b", re.IGNORECASE)
_TYPE: Final = re.compile(r"\bOutOfMemory(?:Error)?\b")
_PREDICATE: Final = re.compile(
    r"(?:^|_)oom(?:_|$)|out_?of_?memory|ran_out|should_reduce_batch_size|^is_?oom|memory_error", re.IGNORECASE
)
_TEXT_METHODS: Final = frozenset({"startswith", "endswith", "find", "rfind", "index", "count"})
_CASE_METHODS: Final = frozenset({"lower", "upper", "casefold"})
_PATTERN_FUNCTIONS: Final = frozenset({"search", "match", "fullmatch", "findall"})
_TEXT_TESTS: Final = frozenset({"any", *_TEXT_METHODS, *_PATTERN_FUNCTIONS})
_SHORT: Final = 8  # statements of a function that does nothing but say whether it was OOM
_DEEPEST: Final = 20  # conditions in one another; nobody writes more


@dataclass(slots=True)
class Recognition:
    """The ways in which one file recognises OOM.

    Attributes:
        module: The file.
        constants: Values of names at the top of the file, and of local ones.
        predicates: Whether the file's function of this name tells OOM from the rest, as far as it was asked.
    """

    module: Module
    constants: dict[str, ast.expr] = field(default_factory=dict)
    predicates: dict[str, bool] = field(default_factory=dict)

    @classmethod
    def of(cls, module: Module) -> Recognition:
        """Read what a file sets at its top."""
        return cls(module, dict(_assigned(module.tree.body)))

    def within(self, holder: ast.AST) -> Recognition:
        """Return the recognition with the names set below `holder`, at whatever depth."""
        found = dict(_assigned(walk(holder)))
        return Recognition(self.module, {**self.constants, **found}, self.predicates) if found else self

    def is_type(self, node: ast.expr | None) -> bool:
        """Return whether an expression is, or contains, the type of error that PyTorch raises for OOM."""
        parts = node.elts if isinstance(node, ast.Tuple) else [node]
        return any(part is not None and self._names_the_type(part) for part in parts)

    def has_texts(self, node: ast.AST) -> bool:
        """Return whether a text about memory stands below a node, or below the value of a name in it."""
        return any(_TEXT.search(text) for text in self.texts_in(node))

    def texts_in(self, node: ast.AST) -> Iterator[str]:
        """The texts below a node, and below what names in it stand for."""
        for inner in walk(node):
            if isinstance(inner, ast.Name) and inner.id in self.constants:
                yield from _strings(self.constants[inner.id])
            elif isinstance(inner, ast.Constant) and isinstance(inner.value, str):
                yield inner.value

    def holds_for_oom(self, test: ast.expr, depth: int = 0) -> bool | None:
        """Return True for a condition that holds for OOM, False for one that holds for other errors, else None."""
        if depth > _DEEPEST:
            return None
        match test:
            case ast.Name() if test.id in self.constants:
                said = self.holds_for_oom(self.constants[test.id], depth + 1)
            case ast.NamedExpr():
                said = self.holds_for_oom(test.value, depth + 1)
            case ast.UnaryOp(op=ast.Not()):
                inner = self.holds_for_oom(test.operand, depth + 1)
                said = None if inner is None else not inner
            case ast.BoolOp():
                answers = {self.holds_for_oom(value, depth + 1) for value in test.values}
                said = True if True in answers else False if False in answers else None
            case ast.Compare(ops=[operator], comparators=[right]):
                said = self._comparison(test.left, operator, right)
            case ast.Call():
                said = self._call(test)
            case _:
                said = None
        return said

    def calls_predicate(self, call: ast.Call) -> bool:
        """Return whether a call asks a function if an error is OOM."""
        name = called_name(call)
        return bool(call.args) and (_PREDICATE.search(name) is not None or self._is_predicate(name))

    def is_text_test(self, node: ast.AST) -> bool:
        """Return whether a node by itself compares a text with one about memory."""
        return (
            isinstance(node, ast.Compare | ast.Call) and self.has_texts(node) and self.holds_for_oom(node) is not None
        )

    def tested_texts(self, holder: ast.AST) -> set[str]:
        """The different texts about memory, libraries' own words among them, that conditions below look for."""
        found: set[str] = set()
        for node in walk(holder):
            if isinstance(node, ast.Compare) or (isinstance(node, ast.Call) and called_name(node) in _TEXT_TESTS):
                found.update(text.lower() for text in self.texts_in(node))
        return {text for text in found if _TEXT.search(text) or is_oom_wording(text)}

    def _names_the_type(self, node: ast.expr) -> bool:
        if (self.module.qualified(node) or "").endswith(("OutOfMemoryError", "OutOfMemory")):
            return True
        return isinstance(node, ast.Name) and node.id in self.constants and mentions_type(self.constants[node.id])

    def _comparison(self, left: ast.expr, operator: ast.cmpop, right: ast.expr) -> bool | None:
        if isinstance(left, ast.Call) and self._call(left):
            return _compared_with_a_number(operator, right)
        if not (self._is_text(left) or self._is_text(right) or self.is_type(right)):
            return None
        if isinstance(operator, ast.In | ast.Eq | ast.Is):
            return True
        return False if isinstance(operator, ast.NotIn | ast.NotEq | ast.IsNot) else None

    def _is_text(self, node: ast.expr) -> bool:
        """Return whether an expression is a text about memory, as a constant or under a name."""
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _CASE_METHODS:
            node = node.func.value
        if isinstance(node, ast.Name):
            node = self.constants.get(node.id, node)
        return isinstance(node, ast.Constant) and isinstance(node.value, str) and bool(_TEXT.search(node.value))

    def _call(self, call: ast.Call) -> bool | None:
        name = called_name(call)
        if name == "isinstance":
            return self.is_type(call.args[-1]) or None if call.args else None
        if name in _TEXT_TESTS:
            return self.has_texts(call) or None
        return self.calls_predicate(call) or None

    def _is_predicate(self, name: str) -> bool:
        """Return whether a function of the file tells OOM from other errors by type or text."""
        if not self.predicates:
            self.predicates.update({function.name: False for function in self.module.functions})
            self.predicates.update(
                {function.name: True for function in self.module.functions if self._recognises(function)}
            )
        return self.predicates.get(name, False)

    def _recognises(self, function: Function) -> bool:
        if len(function.node.body) > _SHORT:
            return False
        inner = self.within(function.node)
        values = [node.value for node in walk(function.node) if isinstance(node, ast.Return)]
        return any(value is not None and (inner.has_texts(value) or mentions_type(value)) for value in values)


def mentions_type(holder: ast.AST) -> bool:
    """Return whether PyTorch's type of error for OOM is named below a node."""
    for node in walk(holder):
        match node:
            case ast.Attribute(attr=name) | ast.Name(id=name) | ast.Constant(value=str(name)) | ast.alias(name=name):
                if _TYPE.search(name):
                    return True
    return False


def _strings(node: ast.AST) -> Iterator[str]:
    for inner in walk(node):
        if isinstance(inner, ast.Constant) and isinstance(inner.value, str):
            yield inner.value


def _assigned(nodes: Iterable[ast.AST]) -> Iterator[tuple[str, ast.expr]]:
    """Names that are set outright among these nodes, with what they are set to."""
    for node in nodes:
        if isinstance(node, ast.Assign):
            for target in node.targets:
                if isinstance(target, ast.Name):
                    yield target.id, node.value
        elif isinstance(node, ast.AnnAssign | ast.NamedExpr) and isinstance(node.target, ast.Name) and node.value:
            yield node.target.id, node.value


def _compared_with_a_number(operator: ast.cmpop, right: ast.expr) -> bool | None:
    """Return the answer of `text.find(...) == -1` and its like."""
    match right:
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=1)):
            return not isinstance(operator, ast.Eq)
        case ast.Constant(value=0):
            return False if isinstance(operator, ast.Lt) else True if isinstance(operator, ast.GtE | ast.Gt) else None
    return None


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
        recognition: The file's ways to recognise OOM, with the names that the handler sets.
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
            yield from executed_nodes(statement)

    @property
    def gives_up(self) -> bool:
        """Whether the handler ends the program or raises in every case."""
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
                yield OomHandler(module, attempt, node, tuple(part), module.function_at(node), inner)


def attempts(module: Module) -> Iterator[ast.Try | ast.TryStar]:
    """The `try` statements of a file in its order; only statements are looked at, since nothing else can hold one."""
    waiting: list[ast.AST] = [module.tree]
    while waiting:
        holder = waiting.pop()
        if isinstance(holder, ast.Try | ast.TryStar):
            yield holder
        inner = [getattr(holder, name, ()) for name in _BODIES]
        waiting.extend(reversed([node for nodes in inner if isinstance(nodes, list) for node in nodes]))


def executed_nodes(node: ast.AST) -> Iterator[ast.AST]:
    """A node and those below it that run with it, parents first, in the order of the text."""
    waiting = [node]
    while waiting:
        inner = waiting.pop()
        if not isinstance(inner, _NEW_SCOPES):
            yield inner
            waiting.extend(reversed(list(ast.iter_child_nodes(inner))))


def always_raises(statements: Sequence[ast.stmt]) -> bool:
    """Return whether statements end in an error or the program's end, whichever way they go."""
    for statement in statements:
        if isinstance(statement, ast.Raise) or (
            isinstance(statement, ast.Expr)
            and isinstance(statement.value, ast.Call)
            and called_name(statement.value) in _EXITS
        ):
            return True
        if isinstance(statement, ast.If) and always_raises(statement.body) and always_raises(statement.orelse):
            return True
        if isinstance(statement, ast.With) and always_raises(statement.body):
            return True
        if any(isinstance(inner, ast.Return | ast.Continue | ast.Break) for inner in executed_nodes(statement)):
            return False
    return False


def always_leaves(statements: Sequence[ast.stmt]) -> bool:
    """Return whether the statements after these are never reached from them."""
    return bool(statements) and (isinstance(statements[-1], _LEAVING) or always_raises(statements))


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
        said, rest = recognition.holds_for_oom(statement.test), statements[index + 1 :]
        if said is not None:
            chosen = statement.body if said else statement.orelse
            return chosen + ([] if always_leaves(chosen) else rest), True
        part, known = _after_test(statement.orelse, recognition)
        if known:
            return part + ([] if always_leaves(part) else rest), True
    return [], False
