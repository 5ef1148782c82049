"""Whether one condition is all that a loop's counter decides, so that nothing else goes by the old boundary."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Final

from oomdoctor.lint.code.walking import walk
from oomdoctor.lint.flow.state import text_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from oomdoctor.lint.patterns.accumulation import Accumulation

_SHOWS: Final = frozenset(
    {"print", "log", "info", "debug", "warning", "add_scalar", "add_scalars", "set_postfix", "set_description", "write"}
)
"""Last parts of names of calls that only tell the user where the loop is."""
_DECIDES: Final = (ast.Mod, ast.Compare, ast.BoolOp, ast.IfExp, ast.NamedExpr, ast.Lambda)


def decides_alone(found: Accumulation, counter: str) -> bool:
    """Whether the counter is used for the boundary's condition and to be shown, and for nothing else.

    A second test of it would keep to the old boundary: `zero_grad`, `no_sync`, the scheduler, what is left over.

    Args:
        found: An accumulation with a guard.
        counter: The variable that the loop itself counts with.
    """
    test = None if found.guard is None else found.guard.test
    loop = found.loop
    tree = found.run.module.tree if loop.function is None else loop.function.node
    if test is None or any(isinstance(node, ast.NamedExpr) for node in walk(test)):
        return False
    inside = _parts(loop.node, counter, loop.node)
    if not any(node is test for node in inside) or _is_used(inside, test, counter):
        return False
    if _is_used(_parts(tree, counter, loop.node), test, counter):
        return False
    return not any(_goes_by(node, found.period) for node in _called(found, tree) if not _lies_in(node, test))


def _parts(tree: ast.AST, counter: str, loop: ast.AST) -> list[ast.AST]:
    """A tree's nodes, without other loops and functions that have a variable of that name for themselves."""
    nodes = [tree]
    for node in nodes:  # grows as it is gone through
        nodes += [child for child in ast.iter_child_nodes(node) if child is loop or not _has_its_own(child, counter)]
    return nodes


def _has_its_own(node: ast.AST, counter: str) -> bool:
    if isinstance(node, ast.For | ast.AsyncFor):
        return _sets(node.target, counter)
    if isinstance(node, ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp):
        return any(_sets(generator.target, counter) for generator in node.generators)
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return any(_sets(inner, counter) or getattr(inner, "arg", None) == counter for inner in walk(node))
    return False


def _sets(node: ast.AST, counter: str) -> bool:
    return any(
        isinstance(inner, ast.Name) and inner.id == counter and isinstance(inner.ctx, ast.Store) for inner in walk(node)
    )


def _is_used(nodes: list[ast.AST], test: ast.expr, counter: str) -> bool:
    """Whether the counter is read outside of the condition other than to be shown."""
    allowed = {id(node) for node in walk(test)}
    for node in nodes:
        if isinstance(node, ast.Call) and text_of(node.func).rpartition(".")[2] in _SHOWS:
            allowed |= _shown(node)
    return any(
        isinstance(node, ast.Name) and node.id == counter and isinstance(node.ctx, ast.Load) and id(node) not in allowed
        for node in nodes
    )


def _shown(call: ast.Call) -> set[int]:
    """The nodes of what a call shows; none where something is decided on the way, as in `log(i % k == 0)`."""
    inner = walk(call)
    return set() if any(isinstance(node, _DECIDES) for node in inner) else {id(node) for node in inner}


def _called(found: Accumulation, tree: ast.AST) -> Iterator[ast.AST]:
    """The loop's function, and the functions that are called from the loop."""
    yield from walk(tree)
    seen = {found.loop.function}
    for event in found.run.of(within=found.loop):
        for frame in event.context.frames:
            if frame.function not in seen:
                seen.add(frame.function)
                yield from walk(frame.function.node)


def _goes_by(node: ast.AST, period: str) -> bool:
    """Whether it is a remainder by the same period, or a comparison with it, of whatever counter."""
    match node:
        case ast.BinOp(op=ast.Mod(), right=right):
            return _is_period(right, period)
        case ast.Compare(left=left, comparators=others):
            return any(_is_period(side, period) for side in (left, *others))
        case ast.Call(func=ast.Name(id="divmod")):
            return True
    return False


def _is_period(node: ast.expr, period: str) -> bool:
    return text_of(node).rpartition(".")[2] == period.rpartition(".")[2]


def _lies_in(node: ast.AST, test: ast.expr) -> bool:
    return any(node is inner for inner in walk(test))
