"""Names that are given a model's `state_dict()` itself rather than a copy, and where that is loaded again."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from oomdoctor.lint.code.walking import walk
from oomdoctor.lint.flow.state import text_of
from oomdoctor.lint.patterns.syntax import above, own_nodes, targets_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from oomdoctor.lint.code.functions import Module
    from oomdoctor.lint.patterns.syntax import Parents

_SHALLOW: Final = frozenset({"dict", "OrderedDict", "copy"})
_SAME_TENSOR: Final = frozenset({"detach", "data"})
_COPIES: Final = frozenset({"deepcopy", "clone", "cpu"})
_FUNCTIONS: Final = (ast.FunctionDef, ast.AsyncFunctionDef)
_LOOPS: Final = (ast.For, ast.AsyncFor, ast.While)


@dataclass(frozen=True, slots=True)
class Alias:
    """`best = model.state_dict()`.

    Attributes:
        target: What it is assigned to.
        model: Source text of the model.
        value: What is assigned.
        scope: The function or the module that it stands in.
    """

    target: ast.expr
    model: str
    value: ast.expr
    scope: ast.AST

    @property
    def name(self) -> str:
        """Source text of what it is assigned to."""
        return text_of(self.target)

    def loads(self, parents: Parents) -> Iterator[ast.Call]:
        """Each `model.load_state_dict(best)` of the file."""
        for node in parents:
            if _loads(node, self.name, self.model) and self._reaches(node, parents):
                yield node  # type: ignore[misc]

    def _reaches(self, load: ast.AST, parents: Parents) -> bool:
        """Whether the name means the same there: an attribute anywhere, a local in its function and around it."""
        if self.is_attribute():
            return True
        scope = scope_of(load, parents)
        outer = [self.scope, *(node for node in above(self.scope, parents) if _is_shared(self.name, self.scope))]
        return any(scope is other for other in outer)

    def is_attribute(self) -> bool:
        """Whether it is kept in an object."""
        return isinstance(self.target, ast.Attribute)


def has_aliases(module: Module) -> bool:
    """Whether a file has any; asked first, since it needs no table of the whole tree."""
    return any(aliased_model(value) is not None for node in walk(module.tree) for _, value in _pairs(node))


def aliases(parents: Parents) -> Iterator[Alias]:
    """Each assignment in a file that gives a name to a state dict whose tensors are the model's own."""
    for node in parents:
        for target, value in _pairs(node):
            model = aliased_model(value)
            if model is not None:
                yield Alias(target, model, value, scope_of(node, parents))


def _pairs(node: ast.AST) -> list[tuple[ast.expr, ast.expr]]:
    """What an assignment assigns, and to what; `best, state = score, model.state_dict()` does it twice."""
    if not isinstance(node, ast.Assign) or len(node.targets) != 1:
        return []
    target, value = node.targets[0], node.value
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple) and len(target.elts) == len(value.elts):
        return list(zip(target.elts, value.elts, strict=True))
    return [(target, value)]


def aliased_model(node: ast.expr) -> str | None:
    """Source text of the model whose own tensors an expression holds; None where it copies, or is something else."""
    if isinstance(node, ast.DictComp):
        return _of_comprehension(node)
    if not isinstance(node, ast.Call):
        return None
    function = node.func
    name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
    if name == "state_dict" and isinstance(function, ast.Attribute) and not node.args:
        return _text(function.value)
    if name == "copy" and not node.args and isinstance(function, ast.Attribute):
        return aliased_model(function.value)
    return aliased_model(node.args[0]) if name in _SHALLOW and len(node.args) == 1 else None


def _of_comprehension(node: ast.DictComp) -> str | None:
    """Of `{k: v for k, v in model.state_dict().items()}`, also with `v.detach()` or `v.data`, which share memory."""
    source = node.generators[0].iter
    value = node.value
    if isinstance(value, ast.Call) and not value.args:
        value = value.func
    is_same = isinstance(value, ast.Name) or (isinstance(value, ast.Attribute) and value.attr in _SAME_TENSOR)
    is_items = isinstance(source, ast.Call) and isinstance(source.func, ast.Attribute) and source.func.attr == "items"
    return aliased_model(source.func.value) if is_same and is_items else None  # type: ignore[attr-defined]


def _text(node: ast.expr) -> str | None:
    return text_of(node) if isinstance(node, ast.Name | ast.Attribute) else None


def _loads(node: ast.AST, name: str, model: str) -> bool:
    is_load = (
        isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "load_state_dict"
    )
    if not is_load or not node.args:  # type: ignore[attr-defined]
        return False
    receiver, given = text_of(node.func.value), text_of(node.args[0])  # type: ignore[attr-defined]
    if receiver.rpartition(".")[2] != model.rpartition(".")[2]:
        return False
    return given == name or ("." in name and "[" not in name and given.rpartition(".")[2] == name.rpartition(".")[2])


def _is_shared(name: str, scope: ast.AST) -> bool:
    return any(isinstance(node, ast.Nonlocal | ast.Global) and name in node.names for node in own_nodes(scope))


def scope_of(node: ast.AST, parents: Parents) -> ast.AST:
    """The function that a node stands in, or the module."""
    outer = node
    for outer in above(node, parents):
        if isinstance(outer, _FUNCTIONS):
            return outer
    return outer


def loops_around(node: ast.AST, parents: Parents) -> list[ast.stmt]:
    """The loops of its own function that a node stands in, outermost first."""
    found: list[ast.stmt] = []
    for outer in above(node, parents):
        if isinstance(outer, _FUNCTIONS):
            break
        if isinstance(outer, _LOOPS):
            found.append(outer)
    return found[::-1]


def lines_between(first: ast.AST, second: ast.AST, parents: Parents) -> tuple[int, int]:
    """The lines of a function that may run after one of its nodes and before another, loops that go round included."""
    loops, others = loops_around(first, parents), loops_around(second, parents)
    start = next((loop.lineno for loop in loops if loop not in others), getattr(first, "lineno", 0))
    end = next((loop.end_lineno for loop in others if loop not in loops), getattr(second, "lineno", 0))
    return start, end or 0


def is_set_again(name: str, scope: ast.AST, since: int) -> bool:
    """Whether a function gives a name another meaning from a line on."""
    stored = (node for node in own_nodes(scope) if isinstance(node, ast.Name | ast.Attribute))
    return any(isinstance(node.ctx, ast.Store) and node.lineno >= since and text_of(node) == name for node in stored)


def is_copied_later(alias: Alias) -> bool:
    """Whether the function gives the name a copy further down: `copy.deepcopy(best)`, or one of the newest weights."""
    return any(
        isinstance(node, ast.Assign)
        and any(target is not alias.target and text_of(target) == alias.name for target in targets_of(node))
        and aliased_model(node.value) is None
        and any(_is_copy(part, node, alias) for part in walk(node.value))
        for node in own_nodes(alias.scope)
    )


def _is_copy(part: ast.AST, node: ast.Assign, alias: Alias) -> bool:
    name = part.attr if isinstance(part, ast.Attribute) else getattr(part, "id", "")
    return _is_named(part, alias.name) or (name in _COPIES and node.lineno > alias.target.lineno)


def _is_named(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Name | ast.Attribute) and text_of(node) == name
