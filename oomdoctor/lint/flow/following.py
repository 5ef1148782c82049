"""A call is followed into a function of the repository, with what it gives and the circumstances around it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from oomdoctor.lint.flow import known
from oomdoctor.lint.flow.annotations import of_annotation
from oomdoctor.lint.flow.context import Frame, Gradients
from oomdoctor.lint.flow.entries import length_of, telling_functions
from oomdoctor.lint.flow.events import Act
from oomdoctor.lint.flow.fields import fields_of
from oomdoctor.lint.flow.gradients import of_function
from oomdoctor.lint.flow.guessing import guess
from oomdoctor.lint.flow.joining import join, sources
from oomdoctor.lint.flow.state import MOST_FRAMES, Births, Given, Names, State, base_of
from oomdoctor.lint.flow.statements import execute
from oomdoctor.lint.flow.values import Graph, Kind, Value

if TYPE_CHECKING:
    import ast

    from oomdoctor.lint.code.functions import Function

_SELF: Final = "self."
_LONG: Final = 40
"""Lines of a function with nothing telling in it from which on it is no small helper that computes a loss."""
_UNIMPORTANT: Final = frozenset({Act.CALL, Act.TO_HOST, Act.FORGET})
"""What is noted once for a function in which nothing else happens, not each time it is called."""
_MOST_FOLLOWED: Final = 5
"""Times that one function is run for one file: more say nothing new."""


def follow(state: State, function: Function, call: ast.Call | None, given: Given) -> Value:
    """Run a function's body as part of the run, and give what it returns."""
    if not _may_follow(state, function):
        return Value(node=call, made_from=sources((*given.positional, *given.keywords.values())))
    key = _key(function, given)
    silent = state.shared.silent.get(key)
    if silent is not None:
        return replace(silent, node=call, identity=Value().identity, made_from=sources(given.positional))
    happened = len(state.events)
    returned = _run(state, function, call, given)
    if not returned.parts and all(event.act in _UNIMPORTANT for event in state.events[happened:]):
        state.shared.silent[key] = returned
    return returned


def _key(function: Function, given: Given) -> tuple[object, ...]:
    """What a silent function's result depends on, as far as anybody looks."""
    values = (*given.positional, *given.keywords.values())
    return (function, tuple([(value.kind, value.graph) for value in values]))


def _run(state: State, function: Function, call: ast.Call | None, given: Given) -> Value:
    state.shared.entered.add(function)
    state.shared.followed[function] += 1
    names, born = _bound(state, function, call, given)
    before = (state.module, state.names, state.context, state.born, state.returned)
    state.module, state.names, state.born, state.returned = function.module, names, born, []
    state.context = before[2].but(
        frames=(*before[2].frames, Frame(function, call)),
        gradients=of_function(function, before[2].gradients),
        managed=managed_by(function) or before[2].managed,
    )
    execute(state, function.node.body)
    returned, inner = state.returned, state.names
    state.module, state.names, state.context, state.born, state.returned = before
    _bring_back(state, inner, given)
    return _joined(returned, call)


def _may_follow(state: State, function: Function) -> bool:
    frames = state.context.frames
    if len(frames) >= MOST_FRAMES or state.budget <= 0 or state.shared.followed[function] >= _MOST_FOLLOWED:
        return False
    if length_of(function) > _LONG and function not in telling_functions(function.module):
        return False
    return all(frame.function is not function for frame in frames)


def _joined(returned: list[Value], call: ast.Call | None) -> Value:
    if not returned:
        return Value(kind=Kind.NONE, graph=Graph.NO, node=call)
    value = returned[0]
    for other in returned[1:]:
        value = join(value, other)
    if value.kind is not Kind.NONE and any(other.kind is Kind.NONE for other in returned):
        return value.but(kind=Kind.UNKNOWN)  # None at times, which has none of its methods
    return value


def _bound(state: State, function: Function, call: ast.Call | None, given: Given) -> tuple[Names, Births]:
    """What names mean at the start of the body, and since when."""
    is_inner = function.parent is not None and any(frame.function is function.parent for frame in state.context.frames)
    names: Names = dict(state.names) if is_inner else dict(state.shared.globals.get(function.module, {}))
    born = dict(state.born) if is_inner else {}
    parameters = [argument.arg for argument in (*function.node.args.posonlyargs, *function.node.args.args)]
    if given.receiver is not None and parameters:
        _bind_receiver(state, names, born, given.receiver, parameters[0])
        parameters = parameters[1:]
    _bind_defaults(state, function, names)
    for name, value in zip(parameters, given.positional, strict=False):
        names[name] = _recognised(names.get(name), value)
    for name, value in given.keywords.items():
        names[name] = _recognised(names.get(name), value)
    if call is not None:
        _carry_births(state, parameters, call, born)
    return names, born


def _recognised(parameter: Value | None, value: Value) -> Value:
    """What is given, and what the parameter's own name and annotation add to it."""
    if parameter is None or value.kind is not Kind.UNKNOWN or value.function is not None:
        return value
    return value.but(kind=parameter.kind, class_=value.class_ or parameter.class_)


def _bind_defaults(state: State, function: Function, names: Names) -> None:
    """Parameters that nothing is known of yet: what their annotations and names say."""
    arguments = function.node.args
    for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs):
        if argument.arg not in ("self", "cls"):
            names[argument.arg] = _parameter(state, function, argument)


def _parameter(state: State, function: Function, argument: ast.arg) -> Value:
    annotated = None if argument.annotation is None else of_annotation(argument.annotation, function.module)
    return annotated or Value(kind=guess(argument.arg, state.uses(argument.arg)))


def _bind_receiver(state: State, names: Names, born: Births, receiver: Value, parameter: str) -> None:
    """`self`, and what is known of its attributes: as they are in the method that calls, or as the class sets them."""
    names[parameter] = receiver
    own = state.names.get("self")
    if own is not None and own.identity == receiver.identity:
        names.update({name: value for name, value in state.names.items() if name.startswith(_SELF)})
        born.update({name: loops for name, loops in state.born.items() if name.startswith(_SELF)})
    elif receiver.class_ is not None:
        names.update(fields_of(state, receiver.class_))


def _carry_births(state: State, parameters: list[str], call: ast.Call, born: Births) -> None:
    """A list that is given to a function was there since the caller made it."""
    named = {keyword.arg: keyword.value for keyword in call.keywords if keyword.arg is not None}
    pairs = [*zip(parameters, call.args, strict=False), *named.items()]
    for name in parameters:
        born[name] = state.context.loops
    for name, argument in pairs:
        base = base_of(argument)
        if base is not None:
            born[name] = state.born.get(base, ())


def _bring_back(state: State, inner: Names, given: Given) -> None:
    """What a method did to its object's attributes holds for the caller too, where it is the same object."""
    own = state.names.get("self")
    same = given.receiver is not None and own is not None and own.identity == given.receiver.identity
    if same:
        state.names.update({name: value for name, value in inner.items() if name.startswith(_SELF)})


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
    """Whether Lightning or Transformers calls this method itself."""
    if function.class_ is None or function.name not in known.CALLED_BY_FRAMEWORKS:
        return False
    endings = [base.rpartition(".")[2] for base in function.class_.bases]
    return any(end in known.LIGHTNING_MODULES or known.TRAINER_BASES.search(end) for end in endings)


def gradients_at_entry(function: Function) -> Gradients:
    """Whether autograd records where a framework calls this function."""
    class_ = function.class_
    if class_ is None:
        return Gradients.ON
    managed = managed_by(function)
    endings = [base.rpartition(".")[2] for base in class_.bases]
    is_lightning = any(ending in known.LIGHTNING_MODULES for ending in endings)
    if is_lightning and known.LIGHTNING_EVALUATION.search(function.name):
        return Gradients.OFF
    if managed == "transformers" and function.name in known.TRAINER_EVALUATION:
        return Gradients.OFF
    return Gradients.ON
