"""What an assignment does: names get new meanings, and values are kept in what outlives them."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Final

from oomdoctor.lint.flow import known
from oomdoctor.lint.flow.events import Act, Event, Keeping
from oomdoctor.lint.flow.expressions import divisor_in, evaluate
from oomdoctor.lint.flow.guessing import guess
from oomdoctor.lint.flow.joining import computed
from oomdoctor.lint.flow.state import text_of
from oomdoctor.lint.flow.values import UNKNOWN, Graph, Kind, Value

if TYPE_CHECKING:
    from oomdoctor.lint.flow.state import State

_EMPTY: Final = (ast.List, ast.Dict, ast.Constant, ast.Tuple, ast.Set)


def assign(state: State, statement: ast.stmt, target: ast.expr, value: Value) -> None:
    """Assign a value to a target: a name, an attribute, an element, or several of them."""
    if isinstance(target, ast.Name):
        _to_name(state, statement, target, value)
    elif isinstance(target, ast.Tuple | ast.List):
        _to_several(state, statement, target, value)
    elif isinstance(target, ast.Attribute):
        _to_attribute(state, statement, target, value)
    elif isinstance(target, ast.Subscript):
        evaluate(state, target.value)
        evaluate(state, target.slice)
        state.note_kept(statement, value, target, Keeping.ITEM)
        state.names.pop(text_of(target), None)
    elif isinstance(target, ast.Starred):
        assign(state, statement, target.value, UNKNOWN)


def _to_name(state: State, statement: ast.stmt, target: ast.Name, value: Value) -> None:
    before = state.names.get(target.id)
    if before is not None and _grows(state, statement, target, value):
        return
    if before is not None and _is_reset(statement):
        _note_forgotten(state, statement, target.id, before)
    state.bind(target.id, recognised(state, target.id, value))


def _grows(state: State, statement: ast.stmt, target: ast.expr, value: Value) -> bool:
    """Note `total = total + loss` and `every = torch.cat([every, scores])`: what was there stays, and more is kept."""
    joined = _concatenated(state, statement, target)
    if joined is not None:
        state.note_kept(statement, state.names.get(text_of(joined), value), target, Keeping.APPEND)
    elif _added(statement, target) is not None:
        state.note_kept(statement, value, target, Keeping.SUM)
    else:
        return False
    state.names[text_of(target)] = value
    return True


def _concatenated(state: State, statement: ast.stmt, target: ast.expr) -> ast.expr | None:
    """What is joined to the target in `target = torch.cat([target, x])`, in one branch of a choice too."""
    value = statement.value if isinstance(statement, ast.Assign) else None
    for call in (value.body, value.orelse) if isinstance(value, ast.IfExp) else (value,):
        match call:
            case ast.Call(args=[ast.List(elts=elements) | ast.Tuple(elts=elements), *_]):
                texts = [text_of(element) for element in elements]
                is_library = (state.module.qualified(call.func) or "").startswith(("torch.", "numpy."))
                if is_library and text_of(target) in texts:
                    others = [element for element in elements if text_of(element) != text_of(target)]
                    return others[-1] if others else None
    return None


def _added(statement: ast.stmt, target: ast.expr) -> ast.expr | None:
    """What is added in `total = total + x` or `total = x + total`, however the operands are scaled."""
    value = statement.value if isinstance(statement, ast.Assign) else None
    if not isinstance(value, ast.BinOp) or not isinstance(value.op, ast.Add):
        return None
    text = text_of(target)
    for side, other in ((value.left, value.right), (value.right, value.left)):
        if any(isinstance(part, ast.Name | ast.Attribute) and text_of(part) == text for part in _operands(side)):
            return other
    return None


def _operands(node: ast.expr) -> list[ast.expr]:
    """What a sum or product is made of; not what calls in it are given, so that `f(total)` is not `total`."""
    if isinstance(node, ast.BinOp):
        return [*_operands(node.left), *_operands(node.right)]
    return [node]


def _is_reset(statement: ast.stmt) -> bool:
    value = getattr(statement, "value", None)
    return isinstance(value, _EMPTY) and not getattr(value, "elts", None)


def _note_forgotten(state: State, node: ast.stmt, target: str, before: Value) -> None:
    state.events.append(Event(Act.FORGET, node, state.module, state.context, before, target=target))


def recognised(state: State, text: str, value: Value) -> Value:
    """A value that gets a name: its kind may be guessed by it, and a loss by the name `loss`."""
    if value is UNKNOWN:
        value = Value()
    kind = value.kind
    if kind is Kind.UNKNOWN and value.function is None and value.class_ is None:
        kind = guess(text, state.uses(text))
    is_loss = value.is_loss or (
        kind in (Kind.UNKNOWN, Kind.TENSOR) and bool(known.IS_LOSS_NAME.search(text.rpartition(".")[2]))
    )
    if kind is value.kind and is_loss is value.is_loss:
        return value
    return value.but(kind=kind, is_loss=is_loss)


def _to_several(state: State, statement: ast.stmt, target: ast.Tuple | ast.List, value: Value) -> None:
    fits = len(value.parts) == len(target.elts)
    for index, inner in enumerate(target.elts):
        assign(state, statement, inner, value.parts[index] if fits else _part(value))


def _part(value: Value) -> Value:
    """One of several that a value is taken apart into: of a model's output it hangs on the same graph."""
    if value.kind in (Kind.TENSOR, Kind.CHECKPOINT, Kind.ARRAY) or value.graph is Graph.YES:
        # Only a tensor's parts are known to be tensors: of an output some may hang on no graph.
        graph = Graph.UNKNOWN if value.graph is Graph.YES else value.graph
        return Value(
            kind=value.kind if value.kind is not Kind.CONTAINER else Kind.UNKNOWN,
            graph=graph,
            device=value.device,
            made_from=value.made_from | {value.identity},
        )
    return Value(graph=value.graph if value.kind is Kind.LOADER else Graph.UNKNOWN)


def _to_attribute(state: State, statement: ast.stmt, target: ast.Attribute, value: Value) -> None:
    owner = evaluate(state, target.value)
    text = text_of(target)
    if target.attr == "grad" and value.kind is Kind.NONE:
        state.note(Act.ZERO_GRAD, statement, owner, name=".grad")
        return
    if target.attr == "requires_grad":
        is_off = isinstance(value.node, ast.Constant) and value.node.value is False
        state.note(Act.FREEZE if is_off else Act.NEEDS_GRADIENT, statement, owner, name=".requires_grad")
        return
    before = state.names.get(text)
    if _grows(state, statement, target, value):
        return
    if before is not None and _is_reset(statement):
        _note_forgotten(state, statement, text, before)
    state.note_kept(statement, value, target, Keeping.ATTRIBUTE)
    state.bind(text, recognised(state, text, value))


def assign_in_place(state: State, node: ast.AugAssign, value: Value) -> None:
    """`target += value` and its like."""
    target = node.target
    before = evaluate(state, target)
    result = computed(target, (before, value), state.records)
    divisor = divisor_in(node.op, node.value)
    if divisor is not None:
        result = result.but(divided_by=(*result.divided_by, divisor))
    if isinstance(node.op, ast.Add | ast.Sub):
        _note_added(state, node, value)
    text = text_of(target)
    if isinstance(target, ast.Name | ast.Attribute):
        is_list = before.kind is Kind.CONTAINER
        state.names[text] = result.but(kind=Kind.CONTAINER) if is_list else result


def _note_added(state: State, node: ast.AugAssign, value: Value) -> None:
    if isinstance(node.value, ast.List) and value.parts:
        for part in value.parts:
            state.note_kept(node, part, node.target, Keeping.APPEND)
        return
    is_item = isinstance(node.target, ast.Subscript)
    how = Keeping.ITEM_SUM if is_item else Keeping.APPEND if value.kind is Kind.CONTAINER else Keeping.SUM
    state.note_kept(node, value, node.target, how)


def forget(state: State, node: ast.stmt, target: ast.expr) -> None:
    """`del target`."""
    if isinstance(target, ast.Tuple | ast.List):
        for inner in target.elts:
            forget(state, node, inner)
        return
    text = text_of(target)
    _note_forgotten(state, node, text, state.names.get(text, UNKNOWN))
    state.names.pop(text, None)
