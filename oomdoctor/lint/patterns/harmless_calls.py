"""Whether a function does nothing but evaluate, so that it can run without gradients whoever calls it."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING, Final

from oomdoctor.lint.code.walking import walk
from oomdoctor.lint.flow.events import Act
from oomdoctor.lint.patterns.graphless import METHODS, MUTATORS, Names, parameters

if TYPE_CHECKING:
    from collections.abc import Iterable

    from oomdoctor.lint.code.functions import Function
    from oomdoctor.lint.flow.events import Event

_LIBRARIES: Final = frozenset(
    {"torch", "torchvision", "torchmetrics", "numpy", "math", "tqdm", "sklearn", "scipy", "pandas", "time", "os"}
    | {"sys", "json", "logging", "random", "collections", "itertools", "statistics", "pathlib", "einops", "PIL", "cv2"}
)
_GRADIENTS: Final = re.compile(
    r"^torch\.(?:autograd|func|optim|utils|hub|jit|library|ops|cuda\.graph|enable_grad|set_grad)|\.grad$|register"
)
_BUILTINS: Final = frozenset(
    {"print", "len", "range", "enumerate", "zip", "int", "float", "str", "bool", "sum", "max", "min", "abs", "round"}
    | {"list", "dict", "set", "tuple", "sorted", "reversed", "iter", "next", "isinstance", "any", "all", "type", "repr"}
)
_LOSS: Final = re.compile(r"(?:^|_)(?:criterion|crit|loss|loss_?fn|loss_?func|loss_function)\d*$")
_REFUSED: Final = (
    *(ast.AsyncFunctionDef, ast.Await, ast.Yield, ast.YieldFrom, ast.Global, ast.Nonlocal),
    *(ast.Lambda, ast.ClassDef, ast.AsyncFor, ast.AsyncWith, ast.Match),
)
_KNOWN_ACTS: Final = (Act.FORWARD, Act.EVAL_MODE, Act.TRAIN_MODE)
_DEEPEST: Final = 3


def only_evaluates(function: Function, events: Iterable[Event]) -> bool:
    """Whether all that a function calls is harmless, and nothing that hangs on a graph leaves it.

    Harmless are the model itself, loss functions, functions of well-known libraries, builtins, methods of tensors and
    containers, and functions of the same file of which the same holds.

    Args:
        function: The function.
        events: What happens in the run; calls of models are known from there.
    """
    known = {id(event.call) for event in events if event.act in _KNOWN_ACTS and event.call is not None}
    return _is_harmless(function, known, 0)


def _is_harmless(function: Function, known: set[int], depth: int) -> bool:
    nodes = list(walk(function.node))
    others = (node for node in nodes if node is not function.node)
    if isinstance(function.node, ast.AsyncFunctionDef) or any(
        isinstance(node, (*_REFUSED, ast.FunctionDef)) for node in others
    ):
        return False
    body = _Body(function, known, depth)
    calls = [node for statement in function.node.body for node in walk(statement) if isinstance(node, ast.Call)]
    return all(map(body.may_call, calls)) and not body.names.lets_out(returned=depth == 0)


class _Body:
    """One function's body, and what may be called in it."""

    def __init__(self, function: Function, known: set[int], depth: int) -> None:
        self.function, self.known, self.depth = function, known, depth
        self.given = parameters(function)
        self.own = {
            node.id for node in walk(function.node) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
        }
        self.names = Names(function, self.library, is_given_graphs=depth > 0)

    def library(self, node: ast.expr) -> str | None:
        """Qualified name of a function of a well-known library that does nothing about gradients."""
        root = _root(node)
        name = self.function.module.qualified(node)
        if name is None or root is None or root.id in self.given | self.own:
            return None
        is_known = name.partition(".")[0] in _LIBRARIES and not name.startswith(".")
        return name if is_known and _GRADIENTS.search(name) is None else None

    def may_call(self, node: ast.Call) -> bool:
        """Whether a call surely takes no gradient and keeps no graph for others."""
        if id(node) in self.known or self.library(node.func) is not None:
            return True
        if isinstance(node.func, ast.Name):
            return self._may_call_name(node.func.id, node)
        return isinstance(node.func, ast.Attribute) and self._may_call_method(node.func)

    def _may_call_name(self, name: str, node: ast.Call) -> bool:
        if self._is_of_library(name):
            return True
        if name in self.given | self.own or name in self.function.module.names:
            return _LOSS.search(name) is not None and name in self.given
        if name in self.function.module.top:
            return self._may_follow(self.function.module.top[name])
        if _LOSS.search(name) is not None:
            return self.function.parent is not None or self._is_set_at_top(name)
        return name in _BUILTINS and not any(keyword.arg == "key" for keyword in node.keywords)

    def _may_follow(self, other: Function) -> bool:
        is_plain = not other.node.decorator_list and other is not self.function and self.depth < _DEEPEST
        return is_plain and _is_harmless(other, self.known, self.depth + 1)

    def _is_set_at_top(self, name: str) -> bool:
        stored = (node for statement in self.function.module.tree.body for node in _targets(statement))
        return any(isinstance(node, ast.Name) and node.id == name for node in stored)

    def _may_call_method(self, method: ast.Attribute) -> bool:
        root = _root(method)
        if isinstance(method.value, ast.Name) and method.value.id in ("self", "cls"):
            return _LOSS.search(method.attr) is not None and self._is_set_in_class(method.attr)
        if method.attr in METHODS or (root is not None and self._is_of_library(root.id)):
            return True
        return method.attr in MUTATORS and self._holds_values(method.value)

    def _holds_values(self, receiver: ast.expr) -> bool:
        """Whether it is a list or a dictionary that the function writes out itself; another's `update` may do more."""
        while isinstance(receiver, ast.Subscript):
            receiver = receiver.value
        values = self.names.bound.get(receiver.id, []) if isinstance(receiver, ast.Name) else []
        return bool(values) and all(map(self._is_container, values))

    def _is_container(self, value: ast.expr) -> bool:
        if isinstance(value, ast.Call):
            is_builtin = isinstance(value.func, ast.Name) and value.func.id in ("list", "dict", "set")
            return is_builtin or (self.library(value.func) or "").startswith("collections.")
        return isinstance(value, ast.List | ast.Dict | ast.Set | ast.ListComp | ast.DictComp | ast.SetComp)

    def _is_set_in_class(self, name: str) -> bool:
        class_ = self.function.class_
        if class_ is None or name in class_.methods:
            return False
        return any(
            isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and node.attr == name
            for node in walk(class_.node)
        )

    def _is_of_library(self, name: str) -> bool:
        """Whether a name is a local that only ever holds what a library made, such as a metric or a progress bar."""
        values = self.names.bound.get(name, [])
        return bool(values) and name not in self.given and all(map(self._is_made_by_library, values))

    def _is_made_by_library(self, value: ast.expr) -> bool:
        while isinstance(value, ast.Call) and self.library(value.func) is None:
            value = value.func.value if isinstance(value.func, ast.Attribute) else value.func
        return isinstance(value, ast.Call)


def _root(node: ast.expr) -> ast.Name | None:
    while isinstance(node, ast.Attribute):
        node = node.value
    return node if isinstance(node, ast.Name) else None


def _targets(statement: ast.stmt) -> list[ast.expr]:
    return statement.targets if isinstance(statement, ast.Assign) else []
