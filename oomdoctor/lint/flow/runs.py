"""The runs of a file: from its top level, and from each function that nobody in the file calls."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from oomdoctor.lint.flow.calls import call
from oomdoctor.lint.flow.classes import kind_of_class
from oomdoctor.lint.flow.context import Context, Gradients
from oomdoctor.lint.flow.entries import entries
from oomdoctor.lint.flow.events import Act, Event, Run, training_loops
from oomdoctor.lint.flow.following import called_by_framework, follow, gradients_at_entry
from oomdoctor.lint.flow.guessing import usage
from oomdoctor.lint.flow.state import MOST_STATEMENTS, Given, Shared, State
from oomdoctor.lint.flow.statements import execute
from oomdoctor.lint.flow.values import Graph, Value

if TYPE_CHECKING:
    from oomdoctor.lint.code.functions import Function, Module

_FEWEST_STATEMENTS: Final = 1500
_STATEMENTS_A_LINE: Final = 4
"""That the runs of a file may look at, for each of its lines: a bound on time where everything calls everything."""


def runs_of(module: Module) -> tuple[Run, ...]:
    """Run a file's top level, then each function with something telling in it that no run has entered yet."""
    shared = Shared(used=usage(module.text), budget=_budget(module))
    top = _state(module, shared)
    execute(top, module.tree.body)
    shared.globals[module] = {name: value for name, value in top.names.items() if "." not in name}
    runs = [_run(top, None)]
    for function in entries(module):
        if (function not in shared.entered or called_by_framework(function)) and shared.budget > 0:
            state = _state(module, shared)
            _enter(state, function)
            runs.append(_run(state, function))
    return tuple(runs)


def _budget(module: Module) -> int:
    return _FEWEST_STATEMENTS + _STATEMENTS_A_LINE * module.text.count("\n")


def _state(module: Module, shared: Shared) -> State:
    return State(module, follow, call, shared=shared, budget=min(MOST_STATEMENTS, shared.budget))


def _enter(state: State, function: Function) -> None:
    state.context = Context(gradients=gradients_at_entry(function))
    receiver = None
    if function.class_ is not None:
        receiver = Value(kind=kind_of_class(function.class_), graph=Graph.NO, class_=function.class_)
    follow(state, function, None, Given(receiver=receiver))


def _run(state: State, function: Function | None) -> Run:
    state.shared.budget -= min(MOST_STATEMENTS, state.shared.budget) - max(0, state.budget)
    backward = [event.value for event in state.events if event.act is Act.BACKWARD]
    losses = {value.identity for value in backward}
    sources = frozenset().union(*(value.made_from for value in backward)) if backward else frozenset()
    events = tuple(_with_graph(event, losses, sources) for event in state.events)
    return Run(state.module, function, events, tuple(state.loops), training_loops(events))


def _with_graph(event: Event, losses: set[int], sources: frozenset[int]) -> Event:
    """What a backward pass was made of hung on a graph, whatever made it."""
    value = event.value
    if event.act is not Act.KEEP or value.graph is not Graph.UNKNOWN or event.context.gradients is not Gradients.ON:
        return event
    had = value.identity in losses or (value.is_loss and value.identity in sources)
    return replace(event, value=value.but(graph=Graph.YES)) if had else event
