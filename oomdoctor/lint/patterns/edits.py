"""Edits that rules share: method calls and arguments, `del`, `@torch.no_grad()`, a shifted boundary."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Final

from oomdoctor.lint.flow.state import text_of
from oomdoctor.lint.module import Function, Module, ancestors, block_of, parents_in, walk
from oomdoctor.lint.patterns.accumulation import AccumulationLoop
from oomdoctor.lint.patterns.boundary import linear
from oomdoctor.lint.patterns.checkpoints import Holder
from oomdoctor.lint.source import Edit

_TIGHT = (ast.Name, ast.Attribute, ast.Call, ast.Subscript)


def with_method_call(node: ast.expr, call: str) -> tuple[Edit, ...]:
    """Edits that turn `node` into `node.call`, in parentheses where it needs them.

    Args:
        node: An expression of the file.
        call: Text of the method call, such as `detach()`.
    """
    if node.end_lineno is None or node.end_col_offset is None:
        return ()
    start, end = (node.lineno, node.col_offset), (node.end_lineno, node.end_col_offset)
    if isinstance(node, _TIGHT):
        return (Edit(end, end, f".{call}"),)
    return (Edit(start, start, "("), Edit(end, end, f").{call}"))


def with_keyword(call: ast.Call, name: str, value: str, module: Module) -> tuple[Edit, ...]:
    """The edit that gives a call one more keyword argument, or replaces the one it has; none where the text is unusual.

    Args:
        call: A call with at least one argument.
        name: The keyword.
        value: Its source text.
        module: The file.
    """
    given = next((keyword.value for keyword in call.keywords if keyword.arg == name), None)
    if given is not None:
        return (Edit((given.lineno, given.col_offset), _end(given), value),)
    last = max([*call.args, *(keyword.value for keyword in call.keywords)], key=_end, default=None)
    if last is None or not _is_last(last, call, module):
        return ()
    return (Edit(_end(last), _end(last), f", {name}={value}"),)


def _end(node: ast.expr) -> tuple[int, int]:
    return node.end_lineno or node.lineno, node.end_col_offset or node.col_offset


def _is_last(node: ast.expr, call: ast.Call, module: Module) -> bool:
    """Return whether only a comma and the call's own parenthesis follow: not a parenthesis around the argument."""
    lines = module.text.split("\n")
    (first, start), (last, end) = _end(node), _end(call)
    rest = [lines[number].encode() for number in range(first - 1, last)]
    rest[-1] = rest[-1][:end]
    rest[0] = rest[0][start:]
    text = b"".join(line.partition(b"#")[0] for line in rest)
    return text.replace(b",", b"").strip() == b")"


def deleted_after_use(holder: Holder, names: list[str], line: int | None) -> tuple[Edit, ...]:
    """The edit that deletes local names behind the last statement that reads them; none where something else may.

    Args:
        holder: Statement that sets the first of the names.
        names: Names to delete.
        line: Line at which training begins, in the function that holds the names.
    """
    if holder.function is None or holder.module.path.suffix == ".ipynb":
        return ()  # a name of the module may be imported, or used in a cell that comes later or again
    tree = holder.module.tree
    parents = parents_in(tree)
    block = block_of(holder.statement, parents)
    uses = [node for node in walk(tree) if isinstance(node, ast.Name) and node.id in names]
    if line is None or not block or len(uses) == 0 or any("." in name for name in names):
        return ()
    places = [_statement_index(use, block, parents) for use in uses]
    if any(place is None for place in places):
        return ()
    last = block[max(place for place in places if place is not None)]
    return _after(last, block, names, holder) if (last.end_lineno or 0) < line else ()


def _statement_index(use: ast.AST, block: list[ast.stmt], parents: dict[ast.AST, ast.AST]) -> int | None:
    """Return the index of the block's statement that holds a name; None outside, or in a function run later."""
    for outer in ancestors(use, parents):
        if isinstance(outer, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef | ast.Global):
            return None
        if outer in block:
            return block.index(outer)
    return None


def _after(last: ast.stmt, block: list[ast.stmt], names: list[str], holder: Holder) -> tuple[Edit, ...]:
    lines = holder.module.text.split("\n")
    first, end = block[0], last.end_lineno or last.lineno
    following = block[block.index(last) + 1 :]
    shares_line = any(statement.lineno == end for statement in following) or end >= len(lines)
    indent = lines[first.lineno - 1][: first.col_offset]
    if shares_line or indent.strip():
        return ()
    return (Edit((end + 1, 0), (end + 1, 0), f"{indent}del {', '.join(names)}\n"),)


_HARMLESS_ABOVE: Final = frozenset({"staticmethod", "classmethod"})
_SWITCHES: Final = frozenset({"set_grad_enabled", "enable_grad"})


def with_no_grad(function: Function) -> tuple[Edit, ...]:
    """The edit that switches autograd off in a function; none where that may do something else as well.

    It may where the function has decorators that see what they are put on, switches autograd on itself, is the
    script's own `main`, or where `torch` does not mean the library yet when the function is defined.
    """
    node = function.node
    above = {decorator.id if isinstance(decorator, ast.Name) else "" for decorator in node.decorator_list}
    if above - _HARMLESS_ABOVE or node.name == "main" or not _has_torch(function) or _switches(node):
        return ()
    start = (node.lineno, node.col_offset)
    line = function.module.text.split("\n")[function.node.lineno - 1]
    return (Edit(start, start, "@torch.no_grad()\n" + line[: len(line) - len(line.lstrip())]),)


def _has_torch(function: Function) -> bool:
    """Return whether `import torch` stands at the top of the file, above the function."""
    return any(
        isinstance(statement, ast.Import)
        and statement.lineno < function.node.lineno
        and any(alias.asname is None and alias.name.partition(".")[0] == "torch" for alias in statement.names)
        for statement in function.module.tree.body
    )


def _switches(node: ast.AST) -> bool:
    return any(isinstance(inner, ast.Attribute) and inner.attr in _SWITCHES for inner in walk(node))


_SHOWS: Final = frozenset(
    {"print", "log", "info", "debug", "warning", "add_scalar", "add_scalars", "set_postfix", "set_description", "write"}
)
"""Last parts of names of calls that only tell the user where the loop is."""
_DECIDES: Final = (ast.Mod, ast.Compare, ast.BoolOp, ast.IfExp, ast.NamedExpr, ast.Lambda)


def is_sole_condition(found: AccumulationLoop, counter: str) -> bool:
    """Return whether the counter is used for the boundary's condition and to be shown, and for nothing else.

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
    return not any(
        _compares_with_period(node, found.period)
        for node in _called(found, tree)
        if not any(node is inner for inner in walk(test))
    )


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
    """Return whether the counter is read outside of the condition other than to be shown."""
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


def _called(found: AccumulationLoop, tree: ast.AST) -> Iterator[ast.AST]:
    """The loop's function, and the functions that are called from the loop."""
    yield from walk(tree)
    seen = {found.loop.function}
    for event in found.run.of(within=found.loop):
        for frame in event.context.frames:
            if frame.function not in seen:
                seen.add(frame.function)
                yield from walk(frame.function.node)


def _compares_with_period(node: ast.AST, period: str) -> bool:
    """Return whether a node is a remainder by the same period, or a comparison with it, of any counter."""
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


def shifted_boundary(found: AccumulationLoop) -> tuple[Edit, ...]:
    """The edit that puts a boundary right; none unless the loop counts and its own function has the only remainder.

    Args:
        found: An accumulation whose boundary comes too early or too late.
    """
    count, boundary, guard, step_offset = found.count, found.boundary, found.guard, found.step_offset
    if count is None or boundary is None or guard is None or step_offset is None or found.owner is None:
        return ()
    remainders = [node for node in walk(guard.test) if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod)]
    if count.by_hand or boundary.least is not None or len(remainders) != 1:
        return ()
    number = linear(remainders[0].left)
    if number.name is None or number.name != boundary.counter or not is_sole_condition(found, number.name):
        return ()
    return _replaced(remainders[0], _counted(number.name, number.constant - step_offset), found.owner)


def _counted(counter: str, ahead: int) -> str:
    return counter if ahead == 0 else f"({counter} {'+' if ahead > 0 else '-'} {abs(ahead)})"


def _replaced(remainder: ast.BinOp, text: str, module: Module) -> tuple[Edit, ...]:
    """Replace what is divided, its parentheses with it, where it stands in one line with the `%`."""
    left = remainder.left
    if left.end_col_offset is None or not remainder.lineno == left.end_lineno == remainder.right.lineno:
        return ()
    lines = module.text.encode().split(b"\n")
    line = lines[remainder.lineno - 1] if remainder.lineno <= len(lines) else b""
    sign = line.find(b"%", left.end_col_offset)
    before = line[remainder.col_offset : sign].rstrip()
    if sign < 0 or not _is_same(before, left):
        return ()
    start = (remainder.lineno, remainder.col_offset)
    return (Edit(start, (remainder.lineno, remainder.col_offset + len(before)), text),)


def _is_same(source: bytes, node: ast.expr) -> bool:
    """Return whether a piece of the text is an expression as parsed: not everyone counts lines alike."""
    try:
        parsed = ast.parse(source.decode(), mode="eval").body
    except (SyntaxError, ValueError):
        return False
    return ast.dump(parsed) == ast.dump(node)
