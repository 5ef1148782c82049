"""By what a program knows that memory ran out: the error's type, its text, or a function that says so."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from oomdoctor.lint.code.walking import walk

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from oomdoctor.lint.code.functions import Function, Module

OOM_WORDS: Final = ("OutOfMemory", "ut of memory", "UT OF MEMORY", "UT_OF_MEMORY", "_oom", "oom_error", "out_of_memory")
"""A file without any of these recognises no OOM."""

_TEXT: Final = re.compile(r"out of memory|OUT_OF_MEMORY|\boom\b", re.IGNORECASE)
_OTHER_TEXT: Final = re.compile(
    r"CUBLAS|CUDNN|CUSOLVER|CUFFT|ALLOC|NCCL|RESOURCE_EXHAUSTED|Invalid buffer size|not enough memory|CUDA error",
    re.IGNORECASE,
)
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
    """How one file recognises OOM.

    Attributes:
        module: The file.
        constants: What names at the top of the file, and local ones, stand for.
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
        """The same with the names that are set below `holder`, at whatever depth."""
        found = dict(_assigned(walk(holder)))
        return Recognition(self.module, {**self.constants, **found}, self.predicates) if found else self

    def is_type(self, node: ast.expr | None) -> bool:
        """Whether an expression is, or has among others, the type of error that PyTorch raises for OOM."""
        parts = node.elts if isinstance(node, ast.Tuple) else [node]
        return any(part is not None and self._names_the_type(part) for part in parts)

    def has_texts(self, node: ast.AST) -> bool:
        """Whether a text about memory stands below a node, or below what a name in it stands for."""
        return any(_TEXT.search(text) for text in self.texts_in(node))

    def texts_in(self, node: ast.AST) -> Iterator[str]:
        """The texts below a node, and below what names in it stand for."""
        for inner in walk(node):
            if isinstance(inner, ast.Name) and inner.id in self.constants:
                yield from _strings(self.constants[inner.id])
            elif isinstance(inner, ast.Constant) and isinstance(inner.value, str):
                yield inner.value

    def says(self, test: ast.expr, depth: int = 0) -> bool | None:
        """What a condition says where it holds: True for OOM, False for another error; None where it tells neither."""
        if depth > _DEEPEST:
            return None
        match test:
            case ast.Name() if test.id in self.constants:
                said = self.says(self.constants[test.id], depth + 1)
            case ast.NamedExpr():
                said = self.says(test.value, depth + 1)
            case ast.UnaryOp(op=ast.Not()):
                inner = self.says(test.operand, depth + 1)
                said = None if inner is None else not inner
            case ast.BoolOp():
                answers = {self.says(value, depth + 1) for value in test.values}
                said = True if True in answers else False if False in answers else None
            case ast.Compare(ops=[operator], comparators=[right]):
                said = self._comparison(test.left, operator, right)
            case ast.Call():
                said = self._call(test)
            case _:
                said = None
        return said

    def asks_a_predicate(self, call: ast.Call) -> bool:
        """Whether a function is asked if an error is OOM."""
        name = called_name(call)
        return bool(call.args) and (_PREDICATE.search(name) is not None or self._is_predicate(name))

    def is_text_test(self, node: ast.AST) -> bool:
        """Whether a node by itself compares a text with one about memory."""
        return isinstance(node, ast.Compare | ast.Call) and self.has_texts(node) and self.says(node) is not None

    def tested_texts(self, holder: ast.AST) -> set[str]:
        """The different texts about memory, libraries' own words among them, that conditions below look for."""
        found: set[str] = set()
        for node in walk(holder):
            if isinstance(node, ast.Compare) or (isinstance(node, ast.Call) and called_name(node) in _TEXT_TESTS):
                found.update(text.lower() for text in self.texts_in(node))
        return {text for text in found if _TEXT.search(text) or _OTHER_TEXT.search(text)}

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
        """Whether an expression is a text about memory, as a constant or under a name."""
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
        return self.asks_a_predicate(call) or None

    def _is_predicate(self, name: str) -> bool:
        """Whether a function of the file tells OOM from the rest: what it returns looks at the type or the text."""
        if not self.predicates:
            self.predicates.update({function.name: False for function in self.module.functions})
            self.predicates.update({function.name: True for function in self.module.functions if self._tells(function)})
        return self.predicates.get(name, False)

    def _tells(self, function: Function) -> bool:
        if len(function.node.body) > _SHORT:
            return False
        inner = self.within(function.node)
        values = [node.value for node in walk(function.node) if isinstance(node, ast.Return)]
        return any(value is not None and (inner.has_texts(value) or mentions_type(value)) for value in values)


def mentions_type(holder: ast.AST) -> bool:
    """Whether PyTorch's type of error for OOM is named below a node."""
    for node in walk(holder):
        match node:
            case ast.Attribute(attr=name) | ast.Name(id=name) | ast.Constant(value=str(name)) | ast.alias(name=name):
                if _TYPE.search(name):
                    return True
    return False


def called_name(call: ast.Call) -> str:
    """The last part of what is called: `search` for `re.search(...)`; empty where it has no name."""
    if isinstance(call.func, ast.Attribute):
        return call.func.attr
    return call.func.id if isinstance(call.func, ast.Name) else ""


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
    """What `text.find(...) == -1` and its like say."""
    match right:
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=1)):
            return not isinstance(operator, ast.Eq)
        case ast.Constant(value=0):
            return False if isinstance(operator, ast.Lt) else True if isinstance(operator, ast.GtE | ast.Gt) else None
    return None
