"""Which names of a function may hold a tensor that hangs on a graph, and whether any such leaves the function."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from oomdoctor.lint.code.walking import walk

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from oomdoctor.lint.code.functions import Function

MUTATORS: Final = frozenset({"append", "extend", "insert", "add", "update", "setdefault"})
"""Methods that put what they are given into what they are called on."""
METHODS: Final = frozenset(
    {"to", "cuda", "cpu", "float", "half", "double", "long", "int", "bool", "item", "tolist", "numpy", "detach"}
    | {"clone", "contiguous", "argmax", "argmin", "argsort", "max", "min", "sum", "mean", "std", "var", "prod", "norm"}
    | {"abs", "exp", "log", "sqrt", "pow", "square", "softmax", "log_softmax", "sigmoid", "tanh", "relu", "clamp"}
    | {"round", "floor", "ceil", "eq", "ne", "gt", "lt", "ge", "le", "view", "reshape", "flatten", "squeeze"}
    | {"unsqueeze", "transpose", "permute", "expand", "repeat", "t", "size", "dim", "numel", "topk", "any", "all"}
    | {"view_as", "expand_as", "type_as", "type", "astype", "items", "keys", "values", "get", "copy", "count"}
    | {"index", "pop", "join", "format", "split", "strip", "lower", "upper", "startswith", "endswith"}
)
"""Methods of tensors, arrays, containers and texts, which do nothing but what their names say."""
_CUT: Final = frozenset(
    {"item", "tolist", "numpy", "detach", "argmax", "argmin", "argsort", "size", "dim", "numel", "eq", "ne"}
)
_NUMBERS: Final = frozenset({"int", "float", "bool", "str", "len", "range", "repr", "isinstance", "print", "type"})
_FACTS: Final = frozenset({"shape", "dtype", "device", "data"})
_PARTS: Final = (ast.Tuple, ast.List, ast.Set, ast.Dict, ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.IfExp, ast.Starred)
_ALWAYS: Final = (ast.Constant, ast.JoinedStr, ast.Compare, ast.Slice)
_MADE_HERE: Final = (ast.ListComp, ast.SetComp, ast.DictComp, ast.BinOp, ast.Constant, ast.JoinedStr)
_KEEP_GRAPHS: Final = ("torch", "torchvision", "torchmetrics", "einops", "copy", "collections", "itertools")


@dataclass(slots=True)
class Names:
    """What a function's names are bound to.

    Attributes:
        function: The function.
        qualified: Gives the qualified name of a library's function that an expression means.
        is_given_graphs: Whether its parameters may hang on a graph.
        hanging: Names that may; filled step by step.
        bound: What each name is given, in any way.
        changed: What is put into a name that stays what it is.
        escaping: What is stored outside the function.
    """

    function: Function
    qualified: Callable[[ast.expr], str | None]
    is_given_graphs: bool = False
    hanging: set[str] = field(default_factory=set)
    bound: dict[str, list[ast.expr]] = field(default_factory=dict)
    changed: dict[str, list[ast.expr]] = field(default_factory=dict)
    escaping: list[ast.expr] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Collect the bindings, and follow what hangs on a graph from name to name."""
        for node in walk(self.function.node):
            for target, value in _bindings(node):
                self._bind(target, value, is_change=isinstance(node, ast.AugAssign | ast.Call))
        if self.is_given_graphs:
            self.hanging |= parameters(self.function)
        while self._spread():
            pass

    def _bind(self, target: ast.expr, value: ast.expr, *, is_change: bool) -> None:
        if isinstance(target, ast.Tuple | ast.List):
            is_alike = isinstance(value, ast.Tuple | ast.List) and len(value.elts) == len(target.elts)
            for position, element in enumerate(target.elts):
                given = value.elts[position] if is_alike else value  # type: ignore[attr-defined]
                self._bind(element, given, is_change=is_change)
        elif isinstance(target, ast.Starred):
            self._bind(target.value, value, is_change=is_change)
        elif isinstance(target, ast.Name) and not is_change:
            self.bound.setdefault(target.id, []).append(value)
        else:
            self._change(target, value)

    def _change(self, target: ast.expr, value: ast.expr) -> None:
        while isinstance(target, ast.Subscript):
            target = target.value
        if isinstance(target, ast.Name):
            self.changed.setdefault(target.id, []).append(value)
        else:
            self.escaping.append(value)

    def _spread(self) -> bool:
        before = len(self.hanging)
        for given in (self.bound, self.changed):
            self.hanging |= {name for name, values in given.items() if not all(map(self.is_free, values))}
        return len(self.hanging) > before

    def lets_out(self, *, returned: bool) -> bool:
        """Whether something that may hang on a graph is stored outside the function, or, if asked, returned."""
        outside = {name for name in self.changed if name in self.hanging and not self._is_own(name)}
        results = [node.value for node in walk(self.function.node) if isinstance(node, ast.Return) and node.value]
        values = [*self.escaping, *(results if returned else [])]
        return bool(outside) or not all(map(self.is_free, values))

    def _is_own(self, name: str) -> bool:
        """Whether what a name holds was made in this function, so that nobody else has it."""
        values = self.bound.get(name, [])
        return bool(values) and name not in parameters(self.function) and all(map(self._is_made_here, values))

    def _is_made_here(self, value: ast.expr) -> bool:
        if isinstance(value, ast.List | ast.Tuple | ast.Set):
            return all(map(self._is_made_here, value.elts))
        if isinstance(value, ast.Dict):
            return all(map(self._is_made_here, value.values))
        while isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and not self.qualified(value.func):
            value = value.func.value  # `Accuracy().to(device)`
        return isinstance(value, (ast.Call, *_MADE_HERE))

    def is_free(self, node: ast.expr) -> bool:
        """Whether a value surely hangs on no graph that this function makes."""
        if isinstance(node, ast.Name):
            return node.id not in self.hanging
        if isinstance(node, ast.Attribute | ast.Subscript):
            return getattr(node, "attr", "") in _FACTS or self.is_free(node.value)
        if isinstance(node, ast.Call):
            return self._is_free_call(node)
        if isinstance(node, ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp):
            return self.is_free(node.value if isinstance(node, ast.DictComp) else node.elt)
        inner = (child for child in ast.iter_child_nodes(node) if isinstance(child, ast.expr))
        return isinstance(node, _ALWAYS) or (isinstance(node, _PARTS) and all(map(self.is_free, inner)))

    def _is_free_call(self, node: ast.Call) -> bool:
        name = self.qualified(node.func)
        given = all(map(self.is_free, [*node.args, *(keyword.value for keyword in node.keywords)]))
        if name is not None:
            return given or name.partition(".")[0] not in _KEEP_GRAPHS
        if isinstance(node.func, ast.Name):
            return node.func.id in _NUMBERS or (given and node.func.id in _KEEPING)
        if not isinstance(node.func, ast.Attribute):
            return False
        return node.func.attr in _CUT or (given and node.func.attr in METHODS and self.is_free(node.func.value))


_KEEPING: Final = frozenset(
    {"sum", "max", "min", "abs", "round", "list", "dict", "set", "tuple", "sorted", "reversed", "iter", "next", "zip"}
    | {"enumerate", "any", "all", "divmod", "hasattr"}
)
"""Builtins that give nothing on a graph where they are given nothing on one."""


def parameters(function: Function) -> frozenset[str]:
    """Names of a function's parameters."""
    return frozenset(node.arg for node in walk(function.node.args) if isinstance(node, ast.arg))


def _bindings(node: ast.AST) -> Iterator[tuple[ast.expr, ast.expr]]:
    """What a node binds or changes, with what that is given."""
    if isinstance(node, ast.Assign):
        yield from ((target, node.value) for target in node.targets)
    elif isinstance(node, ast.AnnAssign | ast.AugAssign | ast.NamedExpr) and node.value is not None:
        yield node.target, node.value
    elif isinstance(node, ast.For | ast.AsyncFor | ast.comprehension):
        yield node.target, node.iter
    elif isinstance(node, ast.withitem) and node.optional_vars is not None:
        yield node.optional_vars, node.context_expr
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in MUTATORS:
        given = [*node.args, *(keyword.value for keyword in node.keywords)]
        yield from ((node.func.value, value) for value in given)
