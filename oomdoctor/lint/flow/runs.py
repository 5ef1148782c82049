"""Runs of a file: from its top level, from each entry function, and from callers in other files."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import replace
from typing import Final, TypeAlias

from oomdoctor.lint.flow.calls import called_by_framework, evaluate_call, follow, gradients_at_entry
from oomdoctor.lint.flow.events import Action, Context, Event, GradMode, Graph, Kind, Loop, Run, Value, training_loops
from oomdoctor.lint.flow.hints import entry_functions, kind_of_class, usage
from oomdoctor.lint.flow.state import MOST_STATEMENTS, Arguments, Shared, State
from oomdoctor.lint.flow.statements import execute
from oomdoctor.lint.module import Function, Module, Repository, walk

_FEWEST_STATEMENTS: Final = 1500
_STATEMENTS_A_LINE: Final = 4
"""Statements that the runs of a file may execute for each of its lines: a bound on time."""


def runs_of(module: Module) -> tuple[Run, ...]:
    """Run a file's top level, then each function with something telling in it that no run has entered yet."""
    shared = Shared(used=usage(module.text), budget=_FEWEST_STATEMENTS + _STATEMENTS_A_LINE * module.text.count("\n"))
    top = _state(module, shared)
    execute(top, module.tree.body)
    shared.globals[module] = {name: value for name, value in top.names.items() if "." not in name}
    runs = [_run(top, None)]
    for function in entry_functions(module):
        if (function not in shared.entered or called_by_framework(function)) and shared.budget > 0:
            state = _state(module, shared)
            _enter(state, function)
            runs.append(_run(state, function))
    return tuple(runs)


def _state(module: Module, shared: Shared) -> State:
    return State(module, follow, evaluate_call, shared=shared, budget=min(MOST_STATEMENTS, shared.budget))


def _enter(state: State, function: Function) -> None:
    state.context = Context(gradients=gradients_at_entry(function))
    receiver = None
    if function.class_ is not None:
        receiver = Value(kind=kind_of_class(function.class_), graph=Graph.NO, class_=function.class_)
    follow(state, function, None, Arguments(receiver=receiver))


def _run(state: State, function: Function | None) -> Run:
    state.shared.budget -= min(MOST_STATEMENTS, state.shared.budget) - max(0, state.budget)
    backward = [event.value for event in state.events if event.action is Action.BACKWARD]
    losses = {value.identity for value in backward}
    sources = frozenset().union(*(value.made_from for value in backward)) if backward else frozenset()
    events = tuple(_with_graph(event, losses, sources) for event in state.events)
    return Run(state.module, function, events, tuple(state.loops), training_loops(events))


def _with_graph(event: Event, losses: set[int], sources: frozenset[int]) -> Event:
    """Give the loss of a backward pass a graph, whatever made the loss."""
    value = event.value
    if (
        event.action is not Action.KEEP
        or value.graph is not Graph.UNKNOWN
        or event.context.gradients is not GradMode.ON
    ):
        return event
    had = value.identity in losses or (value.is_loss and value.identity in sources)
    return replace(event, value=value.replace(graph=Graph.YES)) if had else event


_MOST_OF_A_METHOD: Final = 300
"""Statements that are looked at for what one method returns."""


def returned_by(method: Function) -> Value:
    """Return what a method gives for arguments of which nothing is known; its object is a new one."""
    shared = Shared(used=usage(method.module.text), budget=_MOST_OF_A_METHOD)
    state = State(method.module, follow, evaluate_call, shared=shared, budget=_MOST_OF_A_METHOD)
    receiver = Value(kind=Kind.MODEL, graph=Graph.NO, class_=method.class_)
    return follow(state, method, None, Arguments(receiver=receiver))


_MOST_CALLERS: Final = 8

_CodePosition: TypeAlias = tuple[str, int, int]


def gradients_by_callers(event: Event) -> GradMode | None:
    """Return the grad mode at an event where other files call the function that its run began with.

    Args:
        event: Event of a run that began with a function of `event.module`.

    Returns:
        OFF where each call that was found switches recording off, ON or UNKNOWN where one does not; None where no
        other file calls the function.
    """
    project = event.module.project
    if project is None or not event.context.frames:
        return None
    seen: set[str] = set()
    for module in _callers(event.context.frames[0].function, project):
        seen |= _recorded(project, module).get(_code_position(event), set())
    if not seen:
        return None
    return GradMode(seen.pop()) if len(seen) == 1 else GradMode.UNKNOWN


def _callers(entry: Function, project: Repository) -> list[Module]:
    """Other files that may call a function, or for a method make objects of its class."""
    return project.callers(entry.name if entry.class_ is None else entry.class_.name, entry.module, _MOST_CALLERS)


def _recorded(project: Repository, module: Module) -> dict[_CodePosition, set[str]]:
    """By place in other files, whether autograd records there in the runs that begin in `module`."""
    found = project.recorded.get(module.path)
    if found is None:
        found = project.recorded[module.path] = {}
        for run in runs_of(module):
            for event in run.events:
                if event.module is not module:
                    found.setdefault(_code_position(event), set()).add(event.context.gradients)
    return found


def _code_position(event: Event) -> _CodePosition:
    return str(event.module.path), event.node.lineno, event.node.col_offset


_BACKWARD: Final = frozenset({"backward", "grad"})


def trained_elsewhere(event: Event, loop: Loop) -> bool:
    """Return whether a function of another file that calls, or is called by, the loop's takes a gradient.

    Args:
        event: The forward pass.
        loop: The loop over batches that it is in.
    """
    return any(_takes_gradients(other) for other in _called(loop)) or _is_wanted_by_callers(event)


def _called(loop: Loop) -> Iterator[Function]:
    """Functions of other files that are called in a loop; `forward` of a model is none of them."""
    module = None if loop.function is None else loop.function.module
    if module is None or module.project is None:
        return
    for node in walk(loop.node):
        name = module.qualified(node.func) if isinstance(node, ast.Call) else None
        found = None if name is None else module.project.definition(name, module)
        if isinstance(found, Function):
            yield found


def _takes_gradients(function: Function) -> bool:
    calls = (node.func for node in walk(function.node) if isinstance(node, ast.Call))
    return any(isinstance(called, ast.Attribute) and called.attr in _BACKWARD for called in calls)


def _is_wanted_by_callers(event: Event) -> bool:
    """Return whether a file that calls the function makes a backward pass of the forward pass's result."""
    project, frames = event.module.project, event.context.frames
    if project is None or not frames:
        return False
    return any(_is_wanted_in(module, event) for module in _callers(frames[0].function, project))


def _is_wanted_in(module: Module, event: Event) -> bool:
    for run in runs_of(module):
        passes = [other for other in run.of(Action.FORWARD) if _is_same_place(other, event)]
        losses = [other.value for other in run.of(Action.BACKWARD, Action.AUTOGRAD)] if passes else []
        if any(loss.comes_from(other.result) for loss in losses for other in passes):
            return True
    return False


def _is_same_place(one: Event, other: Event) -> bool:
    places = [(event.module.path, event.node.lineno, event.node.col_offset) for event in (one, other)]
    return places[0] == places[1]
