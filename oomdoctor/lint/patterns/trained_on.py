"""Whether what is kept gets a backward pass later: then its graph is wanted."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Final

from oomdoctor.lint.code.walking import walk
from oomdoctor.lint.flow.builtin import BUILTINS
from oomdoctor.lint.flow.events import Act, Keeping
from oomdoctor.lint.flow.state import base_of
from oomdoctor.lint.patterns.syntax import own_nodes, targets_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from oomdoctor.lint.code.functions import Module
    from oomdoctor.lint.flow.events import Event
    from oomdoctor.lint.flow.values import Value
    from oomdoctor.lint.patterns.keeping import Kept

_LIBRARIES: Final = (
    "torch.",
    "numpy.",
    "math.",
    "statistics.",
    "json.",
    "matplotlib.",
    "pandas.",
    "scipy.",
    "sklearn.",
)
_GRAPHLESS: Final = frozenset({".item", ".detach", "len", "float", ".numpy", ".tolist", ".argmax", "print"})
"""Functions and methods that bring no graph along; `x.float()` does, while `float(x)` does not."""


def is_trained_on(kept: Kept) -> bool:
    """Whether the sum or the container, not only the value that goes into it, leads to a backward pass."""
    event = kept.event
    passes = [other.value for other in kept.run.of(Act.BACKWARD, Act.AUTOGRAD)]
    if any(value.comes_from(whole) for value in passes for whole in _wholes(event)):
        return True
    return not own_backward(kept) and any(value.comes_from(event.value) for value in passes)


def _wholes(event: Event) -> Iterator[Value]:
    """What the sum or container was before, and where that is known, is afterwards."""
    if event.target_value.identity > 0:
        yield event.target_value
    if event.how is Keeping.SUM and isinstance(event.node, ast.Assign):
        yield event.value


def own_backward(kept: Kept) -> bool:
    """Whether the value, or a loss that goes through the same forward passes, gets a backward pass in the iteration."""
    value, forwards = kept.event.value, kept.forwards()
    within = [event.value for event in kept.run.of(Act.BACKWARD, Act.AUTOGRAD, within=kept.loop)]
    if any(value.comes_from(other) or other.comes_from(value) for other in within if other.identity > 0):
        return True
    return bool(forwards) and all(any(other.comes_from(made.result) for other in within) for made in forwards)


def is_read_back(kept: Kept) -> bool:
    """Whether a list's elements are read in the loop that fills it, so that a later loss may hang on an earlier graph.

    Passing the list to a function whose body nobody here sees counts too: it may make the backward pass.
    """
    is_meter = kept.event.target.endswith(("']", '"]'))  # a mapping's entry by name: its others are others
    if kept.event.how not in (Keeping.APPEND, Keeping.ITEM) or is_meter:
        return False
    name, own = kept.event.target.partition("[")[0], {id(node) for node in walk(kept.event.node)}
    return any(_reads(node, name) for node in own_nodes(kept.loop.node) if id(node) not in own)


def _reads(node: ast.AST, name: str) -> bool:
    match node:
        case ast.Subscript(value=ast.Name(id=base), ctx=ast.Load()) if base == name:
            return True
        case ast.Call(func=ast.Name(id=function), args=arguments) if function not in _GRAPHLESS:
            return any(isinstance(argument, ast.Name) and argument.id == name for argument in arguments)
    return False


def is_handed_on(kept: Kept) -> bool:
    """Whether what is kept is passed to a function that is no library's and not Python's own: it may train on it."""
    function, name = kept.loop.function, kept.event.target.partition("[")[0]
    if function is None or "." in name:
        return False
    return any(_is_handed(node, name, function.module) for node in own_nodes(function.node))


def _is_handed(node: ast.AST, name: str, module: Module) -> bool:
    if not isinstance(node, ast.Call) or not any(isinstance(each, ast.Name) and each.id == name for each in node.args):
        return False
    called = module.qualified(node.func) or _last(node)
    return not called.startswith((".", *_LIBRARIES)) and called not in BUILTINS


def is_given_back(kept: Kept) -> bool:
    """Whether the function whose loop it is returns something made of the whole, for its callers to train on."""
    function = kept.loop.function
    if function is None:
        return False
    names = {kept.event.target.partition("[")[0]}
    for node in sorted(_statements(function.node), key=lambda node: node.lineno):
        if isinstance(node, ast.Assign) and _mentions(node.value, names):
            names.update(base for base in map(base_of, targets_of(node)) if base is not None and "." not in base)
    returned = (node.value for node in _statements(function.node) if isinstance(node, ast.Return))
    return any(value is not None and _mentions(value, names) for value in returned)


def _statements(function: ast.AST) -> list[ast.stmt]:
    return [node for node in own_nodes(function) if isinstance(node, ast.stmt)]


def _mentions(node: ast.expr, names: set[str]) -> bool:
    """Whether a graph may come from one of these names into an expression: `x.item()` and `len(x)` bring none."""
    waiting: list[ast.AST] = [node]
    while waiting:
        inner = waiting.pop()
        if isinstance(inner, ast.Name) and inner.id in names:
            return True
        if not isinstance(inner, ast.Call) or _last(inner) not in _GRAPHLESS:
            waiting += ast.iter_child_nodes(inner)
    return False


def _last(call: ast.Call) -> str:
    function = call.func
    return f".{function.attr}" if isinstance(function, ast.Attribute) else getattr(function, "id", "")
