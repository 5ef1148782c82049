"""Expressions: their values, and the events while they are evaluated."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final

from oomdoctor.lint.flow import known
from oomdoctor.lint.flow.events import UNKNOWN, Graph, Keeping, Kind, TensorDevice, Value
from oomdoctor.lint.flow.hints import find_method, guess
from oomdoctor.lint.flow.loops import enter_comprehension
from oomdoctor.lint.flow.state import NUMBER, State, computed_value, graph_of, join, sources, text_of
from oomdoctor.lint.module import Class, Function


def evaluate(state: State, node: ast.expr) -> Value:
    """Evaluate one expression: note what happens in it, in order, and give what is known of its value."""
    evaluator = _EVALUATORS.get(node.__class__)
    return UNKNOWN if evaluator is None else evaluator(state, node)


# --- names -----------------------------------------------------------------------------------------------------------


def _name(state: State, node: ast.Name) -> Value:
    value = state.names.get(node.id)
    if value is None:
        value = _defined(state, node) or _guessed(state, node, node.id)
        state.names[node.id] = value
    return value


def _defined(state: State, node: ast.expr) -> Value | None:
    """A function or a class of the file or of its repository, or something of a library."""
    module = state.module
    qualified = module.qualified(node)
    if qualified is not None:
        definition = None
        if module.project is not None:
            definition = module.project.definition(qualified, module)
        if definition is not None:
            return of_definition(definition, node)
        return Value(kind=Kind.UNKNOWN, node=node, library=known.LIBRARY_ALIASES.get(qualified, qualified))
    if isinstance(node, ast.Name):
        own = module.top.get(node.id) or module.classes.get(node.id)
        if own is not None:
            return of_definition(own, node)
    return None


def of_definition(definition: Function | Class, node: ast.expr) -> Value:
    """The value that a function or a class of the repository is."""
    if isinstance(definition, Class):
        return Value(kind=Kind.CLASS, graph=Graph.NO, node=node, class_=definition)
    return Value(kind=Kind.FUNCTION, graph=Graph.NO, node=node, function=definition)


def _guessed(state: State, node: ast.expr, text: str) -> Value:
    return Value(kind=guess(text, state.uses(text)), node=node)


def _attribute(state: State, node: ast.Attribute) -> Value:
    text = text_of(node)
    value = state.names.get(text)
    if value is not None:
        return value
    imported = _defined(state, node) if begins_with_import(state, node) else None
    if imported is not None:
        return imported
    owner = evaluate(state, node.value)
    return _of_owner(node, owner) or _remembered(state, node, text)


def begins_with_import(state: State, node: ast.expr) -> bool:
    """Return whether a dotted expression begins with an imported name that no assignment has changed."""
    while isinstance(node, ast.Attribute):
        node = node.value
    if not isinstance(node, ast.Name) or node.id not in state.module.names:
        return False
    value = state.names.get(node.id)
    return value is None or value.library is not None or value.class_ is not None


def _remembered(state: State, node: ast.Attribute, text: str) -> Value:
    value = _guessed(state, node, text)
    if isinstance(node.value, ast.Name | ast.Attribute):
        state.names[text] = value
    return value


def _of_owner(node: ast.Attribute, owner: Value) -> Value | None:
    """An attribute of something that is known: a method, or a part of a tensor."""
    if owner.class_ is not None and owner.kind is not Kind.CLASS:
        method = find_method(owner.class_, node.attr)
        if method is not None:
            return Value(kind=Kind.FUNCTION, graph=Graph.NO, node=node, function=method, receiver=owner)
        return None
    if node.attr in known.NUMBER_ATTRIBUTES:
        return NUMBER
    if owner.kind is Kind.MODEL:
        return owner if node.attr == "module" else None
    if owner.graph is Graph.YES or owner.kind in (Kind.TENSOR, Kind.CHECKPOINT):
        return part_of(node, owner, node.attr)
    return None


def part_of(node: ast.expr, owner: Value, name: str | None) -> Value:
    """An element or an attribute of a tensor, of a model's output, or of a checkpoint."""
    graph = Graph.NO if name in known.GRAPHLESS_ATTRIBUTES else owner.graph
    return Value(
        kind=owner.kind if owner.kind in (Kind.TENSOR, Kind.CHECKPOINT, Kind.ARRAY) else Kind.UNKNOWN,
        graph=graph,
        device=owner.device,
        node=node,
        made_from=sources((owner,)),
        divided_by=owner.divided_by,
        is_loss=owner.is_loss if name is None else "loss" in name.lower() or (owner.is_loss and name == "data"),
    )


# --- what is computed ------------------------------------------------------------------------------------------------


def _constant(_state: State, node: ast.Constant) -> Value:
    if node.value is None:
        return Value(kind=Kind.NONE, graph=Graph.NO, node=node)
    return Value(kind=Kind.NUMBER, graph=Graph.NO, node=node)


def _binary(state: State, node: ast.BinOp) -> Value:
    left, right = evaluate(state, node.left), evaluate(state, node.right)
    value = computed_value(node, (left, right), state.records)
    divisor = divisor_in(node.op, node.right) or (
        divisor_in(node.op, node.left) if isinstance(node.op, ast.Mult) else None
    )
    if divisor is not None and right.graph is not Graph.YES:
        value = value.replace(divided_by=tuple(dict.fromkeys((*value.divided_by, divisor))))
    return value


def divisor_in(operator: ast.operator, operand: ast.expr) -> str | None:
    """Source text of what an operation divides by: `k` of `x / k` and of `x * (1 / k)`."""
    if isinstance(operator, ast.Div):
        return text_of(operand)
    if not isinstance(operator, ast.Mult) or not isinstance(operand, ast.BinOp):
        return None
    is_inverse = isinstance(operand.op, ast.Div) and isinstance(operand.left, ast.Constant)
    return text_of(operand.right) if is_inverse else None


def _unary(state: State, node: ast.UnaryOp) -> Value:
    value = evaluate(state, node.operand)
    if isinstance(node.op, ast.Not):
        return Value(kind=Kind.NUMBER, graph=Graph.NO, node=node)
    return computed_value(node, (value,), state.records)


def _condition(state: State, node: ast.expr) -> Value:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.expr):
            evaluate(state, child)
    return Value(kind=Kind.NUMBER, graph=Graph.NO, node=node)


def _either(state: State, node: ast.BoolOp) -> Value:
    values = [evaluate(state, value) for value in node.values]
    if all(value.kind is Kind.NUMBER for value in values):
        return Value(kind=Kind.NUMBER, graph=Graph.NO, node=node)
    joined = values[0]
    for value in values[1:]:
        joined = join(joined, value)
    return joined


def _choice(state: State, node: ast.IfExp) -> Value:
    evaluate(state, node.test)
    return join(evaluate(state, node.body), evaluate(state, node.orelse)).replace(node=node)


def _subscript(state: State, node: ast.Subscript) -> Value:
    text = text_of(node) if isinstance(node.slice, ast.Constant | ast.Name) else None
    owner = evaluate(state, node.value)
    evaluate(state, node.slice)
    if text is not None and text in state.names:
        return state.names[text]
    index = node.slice.value if isinstance(node.slice, ast.Constant) else None
    if owner.parts and isinstance(index, int) and -len(owner.parts) <= index < len(owner.parts):
        return owner.parts[index]
    if owner.graph is Graph.YES or owner.kind in (Kind.TENSOR, Kind.CHECKPOINT, Kind.ARRAY):
        return part_of(node, owner, index if isinstance(index, str) else None)
    if owner.kind in (Kind.OPTIMIZER, Kind.MODEL, Kind.SCHEDULER):
        return owner
    if owner.kind is Kind.CONTAINER and owner.made_from:
        return Value(
            graph=owner.graph, device=owner.device, node=node, made_from=sources((owner,)), is_loss=owner.is_loss
        )
    return _guessed(state, node, text) if text is not None else UNKNOWN


_MANY: Final = 8  # constants in a list: data


def _display(state: State, node: ast.List | ast.Tuple | ast.Set) -> Value:
    if len(node.elts) > _MANY and all(isinstance(element, ast.Constant) for element in node.elts):
        return Value(kind=Kind.CONTAINER, graph=Graph.NO, node=node)
    return container(node, tuple([evaluate(state, element) for element in node.elts]))


def _dictionary(state: State, node: ast.Dict) -> Value:
    for key in node.keys:
        if key is not None and not isinstance(key, ast.Constant):
            evaluate(state, key)
    return container(node, tuple([evaluate(state, value) for value in node.values]))


def container(node: ast.expr, parts: tuple[Value, ...]) -> Value:
    """A list, tuple, set or dictionary that is written out."""
    return Value(
        kind=Kind.CONTAINER,
        graph=graph_of(parts, Graph.YES) if parts else Graph.NO,
        device=parts[0].device if len({part.device for part in parts}) == 1 else TensorDevice.UNKNOWN,
        node=node,
        made_from=sources(parts),
        parts=parts,
        is_loss=any(part.is_loss for part in parts),
    )


def _starred(state: State, node: ast.Starred) -> Value:
    return evaluate(state, node.value)


def _walrus(state: State, node: ast.NamedExpr) -> Value:
    value = evaluate(state, node.value)
    state.bind(node.target.id, value)
    return value


def _comprehension(state: State, node: ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp) -> Value:
    before, names = state.context, dict(state.names)
    for generator in node.generators:
        enter_comprehension(state, node, generator, evaluate(state, generator.iter))
        for test in generator.ifs:
            evaluate(state, test)
    element = node.value if isinstance(node, ast.DictComp) else node.elt
    value = evaluate(state, element)
    state.note_kept(element, value, None, Keeping.YIELD)
    state.context, state.names = before, names
    return Value(
        kind=Kind.CONTAINER,
        graph=value.graph,
        device=value.device,
        node=node,
        made_from=sources((value,)),
        is_loss=value.is_loss,
    )


def _inner(state: State, node: ast.Await | ast.YieldFrom) -> Value:
    return evaluate(state, node.value)


def _yield(state: State, node: ast.Yield) -> Value:
    if node.value is not None:
        evaluate(state, node.value)
    return UNKNOWN


def _text(state: State, node: ast.JoinedStr) -> Value:
    for part in node.values:
        if isinstance(part, ast.FormattedValue):
            evaluate(state, part.value)
    return Value(kind=Kind.NUMBER, graph=Graph.NO, node=node)


def _lambda(_state: State, node: ast.Lambda) -> Value:
    return Value(kind=Kind.FUNCTION, graph=Graph.NO, node=node)


def _call(state: State, node: ast.Call) -> Value:
    return state.call(state, node)


_EVALUATORS: Final[Mapping[type[ast.expr], Callable[[State, Any], Value]]] = MappingProxyType(
    {
        ast.Name: _name,
        ast.Attribute: _attribute,
        ast.Call: _call,
        ast.Constant: _constant,
        ast.BinOp: _binary,
        ast.UnaryOp: _unary,
        ast.Compare: _condition,
        ast.BoolOp: _either,
        ast.IfExp: _choice,
        ast.Subscript: _subscript,
        ast.List: _display,
        ast.Tuple: _display,
        ast.Set: _display,
        ast.Dict: _dictionary,
        ast.Starred: _starred,
        ast.NamedExpr: _walrus,
        ast.ListComp: _comprehension,
        ast.SetComp: _comprehension,
        ast.GeneratorExp: _comprehension,
        ast.DictComp: _comprehension,
        ast.Await: _inner,
        ast.YieldFrom: _inner,
        ast.Yield: _yield,
        ast.JoinedStr: _text,
        ast.Lambda: _lambda,
        ast.Slice: _condition,
    }
)
