"""Loops that accumulate gradients: a backward pass in each iteration, a step in some of them or after them."""

from __future__ import annotations

import ast
import copy
import re
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

from oomdoctor.lint.flow.events import Action, Context, Event, FollowedCall, Guard, Loop, Run, training_loops
from oomdoctor.lint.flow.state import text_of
from oomdoctor.lint.module import Class, Function, Module, walk
from oomdoctor.lint.patterns.boundary import Boundary, boundary_of
from oomdoctor.lint.patterns.counters import (
    LoopConstants,
    LoopCounter,
    TestedCondition,
    body_of,
    count_of,
    definitions,
    is_tested_in,
    loop_counter,
    set_back,
    writes,
)

_INDEX: Final = 2  # (self, batch, batch_idx)


def measured_by(run: Run) -> str:
    """Return the sentence that names the command which measures what a run's accumulation changes."""
    script = f"python {run.module.path.name} --batch-size {{micro_batch}} --grad-accum {{accumulation_steps}}"
    return f"`oomdoctor verify -- {script}`, with the script's own options, runs it and says how much it matters"


def as_loop(run: Run) -> Run | None:
    """A run of such a step as it looks within the loop that Lightning puts around it; None for any other run."""
    function = run.function
    if function is None or function.name != "training_step" or function.class_ is None:
        return None
    parameters = function.node.args.args
    if "automatic_optimization" not in run.module.text or len(parameters) <= _INDEX:
        return None
    loop = _around(function, parameters[_INDEX].arg)
    events = tuple(_within(loop, event) for event in run.events)
    return Run(run.module, function, events, (loop, *run.loops), training_loops(events))


def _around(function: Function, counter: str) -> Loop:
    """The loop of a number of steps: where an epoch ends in it is Lightning's business."""
    steps = ast.Call(ast.Name("range", ast.Load()), [ast.Name("batches", ast.Load())], [])
    node = ast.For(ast.Name(counter, ast.Store()), steps, function.node.body, [])
    ast.fix_missing_locations(ast.copy_location(node, function.node))
    return Loop(node, counter=counter, start=0, over_batches=True, function=function)


def _within(loop: Loop, event: Event) -> Event:
    context = event.context
    guards = tuple(replace(guard, depth=guard.depth + 1) for guard in context.guards)
    return replace(event, context=context.replace(loops=(loop, *context.loops), guards=guards))


_DEEPEST: Final = 6
_MOST_NODES: Final = 120
"""Nodes of a condition that is expanded; people write fewer."""


def is_small(node: ast.expr) -> bool:
    """Return whether an expression is of a size that people write, so that recursion into it is safe."""
    return len(walk(node)) <= _MOST_NODES


def expanded(test: ast.expr, meanings: Mapping[str, ast.expr], class_: Class | None) -> ast.expr:
    """A condition in which names that stand for an expression are that expression.

    Args:
        test: The condition; it stays as it is.
        meanings: Expressions by name or dotted text.
        class_: The class in one of whose methods it is tested, so that `self.should_step(i)` can be looked into.
    """
    return _Expander(meanings, class_).visit(copy.deepcopy(test))  # type: ignore[no-any-return]


def in_caller_terms(test: ast.expr, frames: Sequence[FollowedCall]) -> ast.expr:
    """A condition of a function in the words of its callers: parameters are what the calls give.

    Args:
        test: The condition.
        frames: The calls that lead to it, outermost first.
    """
    for frame in reversed(frames):
        if frame.call is not None and is_small(frame.call) and is_small(test):
            given = arguments(frame.function, frame.call)
            test = _Replacer(given).visit(copy.deepcopy(test))
    return test


def arguments(function: Function, call: ast.Call) -> dict[str, ast.expr]:
    """Return the arguments of a call by parameter; for a method, without `self`."""
    parameters = [argument.arg for argument in (*function.node.args.posonlyargs, *function.node.args.args)]
    if function.class_ is not None and parameters and parameters[0] in ("self", "cls"):
        parameters = parameters[1:]
    given = dict(zip(parameters, call.args, strict=False))
    given.update({keyword.arg: keyword.value for keyword in call.keywords if keyword.arg is not None})
    return given


class _Replacer(ast.NodeTransformer):
    """Puts expressions in the place of names."""

    def __init__(self, given: Mapping[str, ast.expr]) -> None:
        self.given = given

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return self.given.get(node.id, node)


class _Expander(ast.NodeTransformer):
    """Puts what names and calls stand for in their place, again and again."""

    def __init__(self, meanings: Mapping[str, ast.expr], class_: Class | None) -> None:
        self.meanings = meanings
        self.class_ = class_
        self.depth = 0
        self.nodes = 0

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return self._replaced(node, self.meanings.get(node.id))

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        meaning = self.meanings.get(text_of(node))
        if meaning is None:
            return node
        return self._replaced(node, meaning)

    def visit_Call(self, node: ast.Call) -> ast.expr:
        returned = self._returned(node)
        if returned is not None:
            return self._replaced(node, returned)
        return self.generic_visit(node)  # type: ignore[return-value]

    def _replaced(self, node: ast.expr, meaning: ast.expr | None) -> ast.expr:
        if meaning is None or self.depth >= _DEEPEST or not is_small(meaning):
            return node
        self.nodes += len(walk(meaning))
        if self.nodes > _MOST_NODES:
            return node
        self.depth += 1
        replaced: ast.expr = self.visit(copy.deepcopy(meaning))
        self.depth -= 1
        return replaced

    def _returned(self, call: ast.Call) -> ast.expr | None:
        """Return the expression that a method of one `return` gives, in terms of its caller."""
        match call.func:
            case ast.Attribute(value=ast.Name(id="self"), attr=name):
                method = self.class_.methods.get(name) if self.class_ is not None else None
            case ast.Name(id=name) if self.class_ is None:
                return None
            case _:
                return None
        body = [] if method is None else [line for line in method.node.body if not isinstance(line, ast.Expr)]
        if method is None or len(body) != 1 or not isinstance(body[0], ast.Return) or body[0].value is None:
            return None
        if not is_small(body[0].value) or not is_small(call):
            return None
        return _Replacer(arguments(method, call)).visit(copy.deepcopy(body[0].value))  # type: ignore[no-any-return]


_MICRO_STEPS: Final = re.compile(r"accum|micro|(?<![a-z])gas(?![a-z])", re.IGNORECASE)
"""Words in an inner loop's bound or counter by which it iterates over micro-steps."""
_MOST_STEPS: Final = 8
"""Steps in one loop that are looked at, each beside each other one: no loop that people write has more."""
_OPTIMIZER: Final = re.compile(r"opt|sgd|adam", re.IGNORECASE)
"""Words in the argument of `scaler.step` and `xm.optimizer_step` by which it is no closure."""


@dataclass(frozen=True, eq=False)
class AccumulationLoop:
    """A loop in which gradients accumulate.

    Attributes:
        run: The run that has it.
        loop: The loop whose iterations are micro-steps.
        step: The optimizer's step that ends a window.
        period: Text of how many micro-steps a window has.
        backwards: The backward passes whose gradients add up.
        guard: The condition around the step; None where the loop itself is the window, with the step after it.
        boundary: The condition's boundary.
        count: The counter's run; None where that is not known.
        owner: The file that the condition lies in; of the step where there is none.
    """

    run: Run
    loop: Loop
    step: Event
    period: str
    backwards: tuple[Event, ...]
    guard: Guard | None = None
    boundary: Boundary | None = None
    count: LoopCounter | None = None
    owner: Module | None = None

    @cached_property
    def step_offset(self) -> int | None:
        """Micro-batches by which the first step comes too late where windows are whole; negative where too early.

        -1 means that `i % k == 0` is asked with 0 for the first micro-batch; None where it is not known.
        """
        if self.boundary is None or self.count is None or self.count.first is None:
            return None
        step_offset = self.count.first + self.boundary.phase - (1 if self.comes_after_backward(self.step) else 0)
        period = int(self.period) if self.period.isdigit() else 0
        return min(step_offset % period, step_offset % period - period, key=abs) if period else step_offset

    @cached_property
    def steps_alone(self) -> bool:
        """Whether no other optimizer makes steps beside this one."""
        return len({owner_text(event) for event in self.run.of(Action.STEP, within=self.step.loop)}) == 1

    def is_same_optimizer(self, event: Event) -> bool:
        """Return whether an event is about the optimizer that makes the step, or about its model."""
        return self.steps_alone or owner_text(event) == owner_text(self.step)

    def is_in_each_micro_step(self, event: Event) -> bool:
        """Return whether an event happens in every iteration with a backward pass, as far as can be seen."""
        if self.loop not in event.context.loops or event.context.managed is not None:
            return False
        return all(
            (guard.test, guard.holds) in self._shared or self._settings.holds_throughout(guard.test)
            for guard in event.context.guards_in(self.loop)
        )

    @cached_property
    def _shared(self) -> frozenset[tuple[ast.expr, bool]]:
        """The conditions of the backward passes, but for the boundary, which one without `no_sync` may stand under."""
        own = None if self.guard is None else text_of(self.guard.test)
        guards = [guard for event in self.backwards for guard in event.context.guards_in(self.loop)]
        return frozenset((guard.test, guard.holds) for guard in guards if own is None or text_of(guard.test) != own)

    @cached_property
    def _settings(self) -> LoopConstants:
        return LoopConstants(self.loop)

    @cached_property
    def _places(self) -> dict[int, int]:
        """Position of each event in the run, by the event's identity."""
        return {id(event): place for place, event in enumerate(self.run.events)}

    def comes_after_backward(self, event: Event) -> bool:
        """Return whether an event comes later in an iteration than some backward pass."""
        return self._first_backward < self._places[id(event)]

    @cached_property
    def _first_backward(self) -> int:
        return min(self._places[id(backward)] for backward in self.backwards)


def accumulations(run: Run) -> tuple[AccumulationLoop, ...]:
    """Find all of them in a run; those that a framework manages are not among them."""
    if next(run.of(Action.STEP), None) is None or next(run.of(Action.BACKWARD), None) is None:
        return ()
    for known, found in _LATEST:
        if known is run:
            return found
    found = tuple(_found(as_loop(run) or run))
    _LATEST.append((run, found))
    return found


_LATEST: Final[deque[tuple[Run, tuple[AccumulationLoop, ...]]]] = deque(maxlen=8)
"""The accumulations found last: several rules ask for the same runs, one rule after the other."""


def _found(run: Run) -> Iterator[AccumulationLoop]:
    for loop in run.training_loops():
        steps = [event for event in run.of(Action.STEP, within=loop) if event.context.managed is None]
        for step in steps[:_MOST_STEPS]:
            found = _guarded(run, loop, step)
            if found is not None:
                yield found
        if not steps:
            inner = _inner(run, loop)
            if inner is not None:
                yield inner


def owner_text(event: Event) -> str:
    """Text of what an event is about: the optimizer of a step, through a scaler too; the owner of any other method."""
    call = event.call
    if call is None or not isinstance(call.func, ast.Attribute):
        return ""
    if event.action is Action.STEP and call.args and _OPTIMIZER.search(text_of(call.args[0])):
        return text_of(call.args[0])
    return text_of(call.func.value)


def _is_alike(guard: Guard, other: Guard) -> bool:
    """Return whether two conditions read the same and hold alike: one may stand in each branch of another `if`."""
    return guard.holds is other.holds and (guard.test is other.test or text_of(guard.test) == text_of(other.test))


def _guarded(run: Run, loop: Loop, step: Event) -> AccumulationLoop | None:
    """A step that is made in some iterations only."""
    for guard in step.context.guards_in(loop):
        if not is_small(guard.test):
            continue
        read = _read(run, guard, loop, step.context)
        if read is None:
            continue
        boundary, place = read
        backwards = _unguarded_backwards(run, loop, guard)
        if boundary.by_framework or boundary.period == "1" or not backwards or _steps_anyway(run, loop, step, guard):
            return None
        count = count_of(boundary.counter, place)
        inner = place.frames[-1].function if place.frames else loop.function
        owner = run.module if inner is None else inner.module
        return AccumulationLoop(run, loop, step, boundary.period, backwards, guard, boundary, count, owner)
    return None


def _unguarded_backwards(run: Run, loop: Loop, guard: Guard) -> tuple[Event, ...]:
    """The backward passes of every iteration; none where one is made at the boundary: the step is then for that one.

    One at the boundary and another one otherwise, as under `no_sync`, are made in every iteration together.
    """
    backwards = [event for event in run.of(Action.BACKWARD, within=loop) if event.context.managed is None]
    others = [other for event in backwards for other in event.context.guards_in(loop) if other.test is guard.test]
    is_at_boundary_only = {other.holds for other in others} == {guard.holds}
    return () if is_at_boundary_only else tuple(backwards)


def _steps_anyway(run: Run, loop: Loop, step: Event, guard: Guard) -> bool:
    """Return whether the same optimizer makes steps outside the boundary as well."""
    others = [event for event in run.of(Action.STEP, within=loop) if owner_text(event) == owner_text(step)]
    return any(not any(_is_alike(own, guard) for own in event.context.guards_in(loop)) for event in others)


def _read(run: Run, guard: Guard, loop: Loop, context: Context) -> tuple[Boundary, TestedCondition] | None:
    """A condition in the words of the loop's function: what its names stand for, and what the calls give."""
    frames = _frames_between(loop, guard, context)
    place = TestedCondition(guard.test, loop, frames, run.module.tree if loop.function is None else loop.function.node)
    test = guard.test
    if frames:
        inner = frames[-1].function
        test = in_caller_terms(expanded(test, definitions(writes(inner.node.body)), inner.class_), frames)
    counter, _ = loop_counter(loop, place.tree)
    outer = {text: value for text, value in definitions(writes(body_of(loop))).items() if text != counter}
    test = expanded(test, outer, None if loop.function is None else loop.function.class_)
    boundary = boundary_of(test, holds=guard.holds, set_back=set_back(place))
    return None if boundary is None else (boundary, place)


def _frames_between(loop: Loop, guard: Guard, context: Context) -> tuple[FollowedCall, ...]:
    """Calls from the loop's function to the one that tests a condition."""
    functions = [frame.function for frame in context.frames]
    start = 0 if loop.function is None else functions.index(loop.function) + 1
    for end in range(len(functions), start, -1):
        if is_tested_in(functions[end - 1].node, guard.test):
            return context.frames[start:end]
    return ()


def _inner(run: Run, loop: Loop) -> AccumulationLoop | None:
    """A loop over micro-steps with the step after it, in the loop around it."""
    backwards = [event for event in run.of(Action.BACKWARD, within=loop) if event.context.managed is None]
    period = _micro_steps(loop)
    if not backwards or period is None:
        return None
    outer = backwards[0].context.loops
    around = outer[: outer.index(loop)]
    last = next(index for index, event in enumerate(run.events) if event is backwards[-1])
    for step in run.events[last:]:
        loops = step.context.loops
        if (
            step.action is Action.STEP
            and step.context.managed is None
            and loop not in loops
            and loops[: len(around)] == around
        ):
            return AccumulationLoop(run, loop, step, period, tuple(backwards))
    return None


def _micro_steps(loop: Loop) -> str | None:
    """Return the bound `k` of a loop `for micro_step in range(k)`; None for another loop."""
    iterable = loop.node.iter if isinstance(loop.node, ast.For) else None
    match iterable:
        case ast.Call(func=ast.Name(id="range" | "trange"), args=[bound]):
            text = text_of(bound)
            return text if text != "1" and _MICRO_STEPS.search(f"{text} {loop.counter or ''}") else None
    return None
