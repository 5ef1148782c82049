"""Calls: dispatch by what is called, and following a call into a function of the repository."""

from __future__ import annotations

import ast
from dataclasses import replace
from typing import Final

from oomdoctor.lint.flow import known
from oomdoctor.lint.flow.assignment import fields_of
from oomdoctor.lint.flow.events import UNKNOWN, Action, FollowedCall, GradMode, Graph, Kind, Value
from oomdoctor.lint.flow.expressions import begins_with_import, evaluate
from oomdoctor.lint.flow.hints import (
    bases_of,
    find_method,
    guess,
    kind_of_class,
    line_count,
    relevant_functions,
    value_of_annotation,
)
from oomdoctor.lint.flow.libraries import (
    BUILTINS,
    call_builtin,
    call_library,
    grad_mode_of_function,
    note_backward,
    note_loss,
)
from oomdoctor.lint.flow.methods import call_method, forward, loss
from oomdoctor.lint.flow.state import (
    MOST_FRAMES,
    Arguments,
    Names,
    SettingLoops,
    State,
    base_of,
    join,
    sources,
    text_of,
)
from oomdoctor.lint.flow.statements import execute
from oomdoctor.lint.module import Class, Function


def evaluate_call(state: State, node: ast.Call) -> Value:
    """Evaluate a call: its arguments first, then what it does."""
    function = node.func
    if isinstance(function, ast.Attribute) and not begins_with_import(state, function):
        if _is_super(function.value):
            return _call_super(state, node, function.attr)
        owner = evaluate(state, function.value)
        return _call_attribute(state, node, owner, _given(state, node))
    callee = evaluate(state, function)
    return _call_value(state, node, callee, _given(state, node))


def _given(state: State, node: ast.Call) -> Arguments:
    positional = tuple([evaluate(state, argument) for argument in node.args])
    keywords = {keyword.arg or "**": evaluate(state, keyword.value) for keyword in node.keywords}
    return Arguments(positional, keywords)


def _is_super(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "super"


def _call_super(state: State, node: ast.Call, name: str) -> Value:
    given = _given(state, node)
    function = state.context.frames[-1].function if state.context.frames else None
    if function is None or function.class_ is None:
        return UNKNOWN
    for base in bases_of(function.class_):
        method = find_method(base, name)
        if method is not None:
            receiver = state.names.get("self")
            return state.follow(state, method, node, Arguments(given.positional, given.keywords, receiver))
    return Value(node=node)


def _call_attribute(state: State, node: ast.Call, owner: Value, given: Arguments) -> Value:
    function: ast.Attribute = node.func  # type: ignore[assignment]
    stored = state.names.get(text_of(function)) if isinstance(function.value, ast.Name | ast.Attribute) else None
    if stored is not None and stored.kind is not Kind.UNKNOWN:  # `self.model(x)`, `self.criterion(x, y)`
        return _call_value(state, node, stored, given)
    method = _own_method(owner, function.attr)
    if method is not None:
        return _call_own(state, node, owner, method, given)
    if is_import(owner):
        return call_library(state, node, f"{owner.library}.{function.attr}", given)
    closure = _closure(state, node, given)
    if closure is not None:
        state.follow(state, closure, None, Arguments())
    is_plain = isinstance(function.value, ast.Name | ast.Attribute)
    if is_plain and (owner.kind is Kind.UNKNOWN or owner.class_ is not None):
        callee = evaluate(state, function)  # the attribute of something unknown may itself be a model: `self.net(x)`
        if callee.kind in (Kind.MODEL, Kind.LOSS_FUNCTION, Kind.FUNCTION):
            return _call_value(state, node, callee, given)
    return call_method(state, node, owner, given)


def is_import(value: Value) -> bool:
    """Return whether a value is something of a library itself, not the result of a call of it."""
    return value.library is not None and value.kind is Kind.UNKNOWN and not isinstance(value.node, ast.Call)


def _own_method(owner: Value, name: str) -> Function | None:
    """A method that the repository defines for the class of `owner`; `forward` is an event, not followed."""
    if owner.class_ is None or name in known.FORWARD_METHODS:
        return None
    return find_method(owner.class_, name)


def _call_own(state: State, node: ast.Call, owner: Value, method: Function, given: Arguments) -> Value:
    decorators = {text_of(decorator) for decorator in method.node.decorator_list if not isinstance(decorator, ast.Call)}
    is_static = "staticmethod" in decorators
    positional = given.positional
    if owner.kind is Kind.CLASS and not is_static and "classmethod" not in decorators and positional:
        return state.follow(state, method, node, Arguments(positional[1:], given.keywords, positional[0]))
    receiver = None if is_static else owner
    return state.follow(state, method, node, Arguments(positional, given.keywords, receiver))


def _closure(state: State, node: ast.Call, given: Arguments) -> Function | None:
    """The function that `optimizer.step(closure)` runs."""
    if not (isinstance(node.func, ast.Attribute) and node.func.attr == "step"):
        return None
    values = (*given.positional, *given.keywords.values())
    del state
    return next((value.function for value in values if value.function is not None), None)


def _call_value(state: State, node: ast.Call, callee: Value, given: Arguments) -> Value:
    if callee.function is not None:
        receiver = callee.receiver
        return state.follow(state, callee.function, node, Arguments(given.positional, given.keywords, receiver))
    if callee.kind is Kind.CLASS and callee.class_ is not None:
        return _made(node, callee.class_, given)
    if is_import(callee):
        return call_library(state, node, callee.library or "", given)
    return _call_by_kind(state, node, callee, given)


def _call_by_kind(state: State, node: ast.Call, callee: Value, given: Arguments) -> Value:
    if callee.kind is Kind.MODEL or callee.kind is Kind.ENGINE:
        return forward(state, node, callee, given)
    if callee.kind is Kind.LOSS_FUNCTION:
        result = loss(state, node, given)
        note_loss(state, node, callee.library or "", given, result)
        return result
    if isinstance(node.func, ast.Name) and node.func.id in BUILTINS:
        return call_builtin(state, node, node.func.id, given)
    if text_of(node.func).rpartition(".")[2] in ("loss_scaler", "_loss_scaler") and len(given.positional) > 1:
        note_backward(state, node, given.positional[0], managed="timm")
        state.note(Action.STEP, node, given.positional[1], call=node, managed="timm")
        return Value(node=node)
    return Value(node=node, made_from=sources((*given.positional, *given.keywords.values())))


def _made(node: ast.Call, class_: Class, given: Arguments) -> Value:
    return Value(
        kind=kind_of_class(class_), graph=Graph.NO, node=node, class_=class_, made_from=sources(given.positional)
    )


_SELF: Final = "self."
_LONG: Final = 40
"""Lines of a function with nothing telling in it from which on it is no small helper that computes a loss."""
_UNIMPORTANT: Final = frozenset({Action.CALL, Action.TO_HOST, Action.FORGET, Action.LOSS})
"""Acts that are recorded once for a function in which nothing else happens, not at each call."""
_MOST_FOLLOWED: Final = 5
"""Times that one function is run for one file: more say nothing new."""


def follow(state: State, function: Function, call: ast.Call | None, given: Arguments) -> Value:
    """Run a function's body as part of the run, and give what it returns."""
    if not _may_follow(state, function):
        return Value(node=call, made_from=sources((*given.positional, *given.keywords.values())))
    key = _key(function, given)
    silent = state.shared.silent.get(key)
    if silent is not None:
        return replace(silent, node=call, identity=Value().identity, made_from=sources(given.positional))
    happened = len(state.events)
    returned = _run(state, function, call, given)
    if not returned.parts and all(event.action in _UNIMPORTANT for event in state.events[happened:]):
        state.shared.silent[key] = returned
    return returned


def _key(function: Function, given: Arguments) -> tuple[object, ...]:
    """Return all that the result of a function without events depends on."""
    values = (*given.positional, *given.keywords.values())
    return (function, tuple([(value.kind, value.graph, value.activation) for value in values]))


def _run(state: State, function: Function, call: ast.Call | None, given: Arguments) -> Value:
    state.shared.entered.add(function)
    state.shared.followed[function] += 1
    names, set_in = _bound(state, function, call, given)
    before = (state.module, state.names, state.context, state.set_in, state.returned)
    state.module, state.names, state.set_in, state.returned = function.module, names, set_in, []
    state.context = before[2].replace(
        frames=(*before[2].frames, FollowedCall(function, call)),
        gradients=grad_mode_of_function(function, before[2].gradients),
        managed=managed_by(function) or before[2].managed,
    )
    execute(state, function.node.body)
    returned, inner = state.returned, state.names
    state.module, state.names, state.context, state.set_in, state.returned = before
    own = state.names.get("self")
    same = given.receiver is not None and own is not None and own.identity == given.receiver.identity
    if same:
        state.names.update({name: value for name, value in inner.items() if name.startswith(_SELF)})
    return _joined(returned, call)


def _may_follow(state: State, function: Function) -> bool:
    frames = state.context.frames
    if len(frames) >= MOST_FRAMES or state.budget <= 0 or state.shared.followed[function] >= _MOST_FOLLOWED:
        return False
    if line_count(function) > _LONG and function not in relevant_functions(function.module):
        return False
    return all(frame.function is not function for frame in frames)


def _joined(returned: list[Value], call: ast.Call | None) -> Value:
    if not returned:
        return Value(kind=Kind.NONE, graph=Graph.NO, node=call)
    value = returned[0]
    for other in returned[1:]:
        value = join(value, other)
    if value.kind is not Kind.NONE and any(other.kind is Kind.NONE for other in returned):
        return value.replace(kind=Kind.UNKNOWN)  # None at times, which has none of its methods
    return value


def _bound(state: State, function: Function, call: ast.Call | None, given: Arguments) -> tuple[Names, SettingLoops]:
    """Return the meanings of names at the start of the body, and the loops around each assignment."""
    is_inner = function.parent is not None and any(frame.function is function.parent for frame in state.context.frames)
    names: Names = dict(state.names) if is_inner else dict(state.shared.globals.get(function.module, {}))
    set_in = dict(state.set_in) if is_inner else {}
    parameters = [argument.arg for argument in (*function.node.args.posonlyargs, *function.node.args.args)]
    if given.receiver is not None and parameters:
        _bind_receiver(state, names, set_in, given.receiver, parameters[0])
        parameters = parameters[1:]
    # Parameters that nothing is known of yet: what their annotations and names say.
    arguments = function.node.args
    for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs):
        if argument.arg not in ("self", "cls"):
            annotated = (
                None if argument.annotation is None else value_of_annotation(argument.annotation, function.module)
            )
            names[argument.arg] = annotated or Value(kind=guess(argument.arg, state.uses(argument.arg)))
    for name, value in zip(parameters, given.positional, strict=False):
        names[name] = _recognised(names.get(name), value)
    for name, value in given.keywords.items():
        names[name] = _recognised(names.get(name), value)
    if call is not None:
        _carry_setting_loops(state, parameters, call, set_in)
    return names, set_in


def _recognised(parameter: Value | None, value: Value) -> Value:
    """Return an argument's value, with the knowledge that the parameter's name and annotation add."""
    if parameter is None or value.kind is not Kind.UNKNOWN or value.function is not None:
        return value
    return value.replace(kind=parameter.kind, class_=value.class_ or parameter.class_)


def _bind_receiver(state: State, names: Names, set_in: SettingLoops, receiver: Value, parameter: str) -> None:
    """`self`, and what is known of its attributes: as they are in the method that calls, or as the class sets them."""
    names[parameter] = receiver
    own = state.names.get("self")
    if own is not None and own.identity == receiver.identity:
        names.update({name: value for name, value in state.names.items() if name.startswith(_SELF)})
        set_in.update({name: loops for name, loops in state.set_in.items() if name.startswith(_SELF)})
    elif receiver.class_ is not None:
        names.update(fields_of(state, receiver.class_))


def _carry_setting_loops(state: State, parameters: list[str], call: ast.Call, set_in: SettingLoops) -> None:
    """A list that is given to a function was there since the caller made it."""
    named = {keyword.arg: keyword.value for keyword in call.keywords if keyword.arg is not None}
    pairs = [*zip(parameters, call.args, strict=False), *named.items()]
    for name in parameters:
        set_in[name] = state.context.loops
    for name, argument in pairs:
        base = base_of(argument)
        if base is not None:
            set_in[name] = state.set_in.get(base, ())


def managed_by(function: Function) -> str | None:
    """The framework that zeroes gradients and makes steps around this function, by its class."""
    class_ = function.class_
    if class_ is None:
        return None
    endings = [base.rpartition(".")[2] for base in class_.bases]
    if any(ending in known.LIGHTNING_MODULES for ending in endings):
        return None if "automatic_optimization" in class_.module.text else "lightning"
    if any(known.TRAINER_BASES.search(ending) for ending in endings) and "transformers" in class_.module.text:
        return "transformers"
    return None


def called_by_framework(function: Function) -> bool:
    """Return whether Lightning or Transformers calls this method itself."""
    if function.class_ is None or function.name not in known.CALLED_BY_FRAMEWORKS:
        return False
    endings = [base.rpartition(".")[2] for base in function.class_.bases]
    return any(end in known.LIGHTNING_MODULES or known.TRAINER_BASES.search(end) for end in endings)


def gradients_at_entry(function: Function) -> GradMode:
    """Return the grad mode in which a framework calls this function."""
    class_ = function.class_
    if class_ is None:
        return GradMode.ON
    managed = managed_by(function)
    endings = [base.rpartition(".")[2] for base in class_.bases]
    is_lightning = any(ending in known.LIGHTNING_MODULES for ending in endings)
    if is_lightning and known.LIGHTNING_EVALUATION.search(function.name):
        return GradMode.OFF
    if managed == "transformers" and function.name in known.TRAINER_EVALUATION:
        return GradMode.OFF
    return GradMode.ON
