"""Whether what is kept gets a backward pass later: then its graph is wanted."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Final

from oomdoctor.lint.flow.events import Act, Keeping
from oomdoctor.lint.patterns.syntax import own_nodes, targets_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from oomdoctor.lint.flow.events import Event
    from oomdoctor.lint.flow.values import Value
    from oomdoctor.lint.patterns.keeping import Kept

_GRAPHLESS: Final = frozenset({"item", "detach", "len", "float", "numpy", "tolist", "argmax", "print"})


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
    """Whether the value, or the loss that it is part of, gets a backward pass in the same iteration."""
    value = kept.event.value
    within = kept.run.of(Act.BACKWARD, Act.AUTOGRAD, within=kept.loop)
    return any(
        value.comes_from(other.value) or other.value.comes_from(value) for other in within if other.value.identity
    )


def is_given_back(kept: Kept) -> bool:
    """Whether the run's first function returns something made of the whole, to a caller that nobody here sees."""
    frames, function = kept.event.context.frames, kept.loop.function
    if function is None or frames[0].function is not function:
        return False
    names = {kept.event.target.partition("[")[0]}
    for node in sorted(_statements(function.node), key=lambda node: node.lineno):
        if isinstance(node, ast.Assign) and _mentions(node.value, names):
            names.update(target.id for target in targets_of(node) if isinstance(target, ast.Name))
    returned = (node.value for node in _statements(function.node) if isinstance(node, ast.Return))
    return any(value is not None and _mentions(value, names) for value in returned)


def _statements(function: ast.AST) -> list[ast.stmt]:
    return [node for node in own_nodes(function) if isinstance(node, ast.stmt)]


def _mentions(node: ast.expr, names: set[str]) -> bool:
    """Whether a graph may come from one of these names into an expression: `x.item()` and `len(x)` bring none."""
    if isinstance(node, ast.Call):
        last = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if last in _GRAPHLESS:
            return False
    return (isinstance(node, ast.Name) and node.id in names) or _in_children(node, names)


def _in_children(node: ast.AST, names: set[str]) -> bool:
    return any(_mentions(child, names) for child in ast.iter_child_nodes(node) if isinstance(child, ast.expr))
