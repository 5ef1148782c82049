"""Assignments, and the attributes that a class's methods assign."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Final

from oomdoctor.lint.flow import known
from oomdoctor.lint.flow.events import UNKNOWN, Action, Event, Graph, Keeping, Kind, Value
from oomdoctor.lint.flow.expressions import divisor_in, evaluate
from oomdoctor.lint.flow.hints import bases_of, guess
from oomdoctor.lint.flow.state import Names, State, computed_value, text_of
from oomdoctor.lint.module import Class, Function

_EMPTY: Final = (ast.List, ast.Dict, ast.Constant, ast.Tuple, ast.Set)


def assign(state: State, statement: ast.stmt, target: ast.expr, value: Value) -> None:
    """Assign a value to a target: a name, an attribute, an element, or several of them."""
    if isinstance(target, ast.Name):
        _to_name(state, statement, target, value)
    elif isinstance(target, ast.Tuple | ast.List):
        fits = len(value.parts) == len(target.elts)
        for index, inner in enumerate(target.elts):
            assign(state, statement, inner, value.parts[index] if fits else _part(value))
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
    state.bind(target.id, named_value(state, target.id, value))


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
    """Return the operand joined to the target in `target = torch.cat([target, x])`, in one branch of a choice too."""
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
    """Return the operand added in `total = total + x` or `total = x + total`, however the operands are scaled."""
    value = statement.value if isinstance(statement, ast.Assign) else None
    if not isinstance(value, ast.BinOp) or not isinstance(value.op, ast.Add):
        return None
    text = text_of(target)
    for side, other in ((value.left, value.right), (value.right, value.left)):
        if any(isinstance(part, ast.Name | ast.Attribute) and text_of(part) == text for part in _operands(side)):
            return other
    return None


def _operands(node: ast.expr) -> list[ast.expr]:
    """Return the operands of a sum or product; arguments of calls in it do not count: `f(total)` is not `total`."""
    if isinstance(node, ast.BinOp):
        return [*_operands(node.left), *_operands(node.right)]
    return [node]


def _is_reset(statement: ast.stmt) -> bool:
    value = getattr(statement, "value", None)
    return isinstance(value, _EMPTY) and not getattr(value, "elts", None)


def _note_forgotten(state: State, node: ast.stmt, target: str, before: Value) -> None:
    state.events.append(Event(Action.FORGET, node, state.module, state.context, before, target=target))


def named_value(state: State, text: str, value: Value) -> Value:
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
    return value.replace(kind=kind, is_loss=is_loss)


def _part(value: Value) -> Value:
    """Return one of several values that a value is unpacked into; a part of a model's output has the same graph."""
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
        state.note(Action.ZERO_GRAD, statement, owner, name=".grad")
        return
    if target.attr == "requires_grad":
        is_off = isinstance(value.node, ast.Constant) and value.node.value is False
        state.note(Action.FREEZE if is_off else Action.NEEDS_GRADIENT, statement, owner, name=".requires_grad")
        return
    before = state.names.get(text)
    if _grows(state, statement, target, value):
        return
    if before is not None and _is_reset(statement):
        _note_forgotten(state, statement, text, before)
    state.note_kept(statement, value, target, Keeping.ATTRIBUTE)
    state.bind(text, named_value(state, text, value))


def assign_in_place(state: State, node: ast.AugAssign, value: Value) -> None:
    """`target += value` and its like."""
    target = node.target
    before = evaluate(state, target)
    result = computed_value(target, (before, value), state.records)
    divisor = divisor_in(node.op, node.value)
    if divisor is not None:
        result = result.replace(divided_by=(*result.divided_by, divisor))
    if isinstance(node.op, ast.Add | ast.Sub):
        _note_added(state, node, value)
    text = text_of(target)
    if isinstance(target, ast.Name | ast.Attribute):
        is_list = before.kind is Kind.CONTAINER
        state.names[text] = result.replace(kind=Kind.CONTAINER) if is_list else result


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


_MOST_BASES: Final = 6


def fields_of(state: State, class_: Class, depth: int = 0) -> Names:
    """Meaning of `self.x` for each `x` that the class or its bases in the repository assign; `__init__` comes first.

    Args:
        state: The run that asks; nothing is noted in it.
        class_: The class.
        depth: Number of classes followed so far.
    """
    known_fields = state.shared.fields.get(class_)
    if known_fields is not None:
        return known_fields
    state.shared.fields[class_] = found = {}
    if depth <= _MOST_BASES:
        for base in bases_of(class_):
            found.update(fields_of(state, base, depth + 1))
    methods = sorted(class_.methods.values(), key=lambda method: method.name != "__init__")
    for method in methods:
        _add_fields(state, method, found)
    return found


def _add_fields(state: State, method: Function, found: Names) -> None:
    is_constructor = method.name == "__init__"
    assignments = [
        (assignment, target)
        for assignment in _assignments(method.node.body)
        for target in assignment.targets
        if _is_wanted(target, found, is_constructor=is_constructor)
    ]
    if assignments:
        quiet = _quiet(state, method)
        for assignment, target in assignments:
            _add_target(quiet, target, evaluate(quiet, assignment.value), found)


def _quiet(state: State, method: Function) -> State:
    """A run of the method whose events nobody asks for."""
    quiet = State(
        module=method.module,
        follow=_not_followed,
        call=state.call,
        names=dict(state.shared.globals.get(method.module, {})),
        shared=state.shared,
    )
    for argument in method.node.args.args:
        quiet.names[argument.arg] = Value(kind=guess(argument.arg, state.uses(argument.arg)))
    return quiet


def _is_wanted(target: ast.expr, found: Names, *, is_constructor: bool) -> bool:
    """Return whether an assignment can add knowledge; of local names only a constructor's lead to attributes often."""
    if isinstance(target, ast.Tuple):
        return any(_is_wanted(inner, found, is_constructor=is_constructor) for inner in target.elts)
    if isinstance(target, ast.Attribute):
        before = found.get(text_of(target))
        return before is None or before.kind in (Kind.UNKNOWN, Kind.NONE)
    return is_constructor and isinstance(target, ast.Name)


def _not_followed(state: State, function: Function, call: ast.Call | None, given: object) -> Value:
    del state, function, given
    return Value(node=call)


def _add_target(state: State, target: ast.expr, value: Value, found: Names) -> None:
    if isinstance(target, ast.Tuple):
        parts = value.parts if len(value.parts) == len(target.elts) else (Value(),) * len(target.elts)
        for inner, part in zip(target.elts, parts, strict=True):
            _add_target(state, inner, part, found)
    elif isinstance(target, ast.Name):
        state.names[target.id] = value
    elif isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name) and target.value.id == "self":
        text = text_of(target)
        before = found.get(text)
        if before is None or before.kind in (Kind.UNKNOWN, Kind.NONE):
            # A field keeps no graph from one method to the next as far as anybody knows.
            kind = guess(text, state.uses(text)) if value.kind is Kind.UNKNOWN else value.kind
            if kind in (Kind.NUMBER, Kind.NONE):
                # Whatever the constructor begins with, other methods may set.
                guessed = guess(text, state.uses(text))
                kind = guessed if guessed is not Kind.UNKNOWN else kind
            found[text] = value.replace(kind=kind, graph=Graph.UNKNOWN if kind is Kind.TENSOR else value.graph)
        state.names[text] = found[text]


def _assignments(body: list[ast.stmt]) -> Iterator[ast.Assign]:
    """Assignments of a body at whatever depth, but not those of functions in it."""
    for statement in body:
        if isinstance(statement, ast.Assign):
            yield statement
        elif isinstance(statement, ast.AnnAssign) and statement.value is not None:
            yield ast.Assign(targets=[statement.target], value=statement.value)
        elif not isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            for name in ("body", "orelse", "finalbody"):
                yield from _assignments(getattr(statement, name, []))
