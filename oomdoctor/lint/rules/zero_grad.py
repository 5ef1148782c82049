"""Rules on setting gradients to zero outside accumulation: never, or too early (OOM210, OOM211)."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import Final

from oomdoctor.lint.flow.events import Action, Event, Kind, Loop, Run
from oomdoctor.lint.flow.state import text_of
from oomdoctor.lint.module import Module, walk
from oomdoctor.lint.patterns.iterations import (
    calls_between,
    conditions,
    exclude,
    explained_calls,
    in_same_call,
    sets_gradients_between,
    shared_loop,
    stored_in,
    within,
)
from oomdoctor.lint.patterns.windows import optimizer_of, takes_closure
from oomdoctor.lint.rule import Hit, Subject, read_rules

_ZEROES: Final = re.compile(
    r"\.grad\s*=[^=]|grad(?:\.data)?\.(?:zero_|fill_|mul_)|zero_grad\s*=|(?:clear|reset|clean|null|zero)_\w*grad\w*(?<!zero_grad)\b"
    r"|grad\w*_(?:to_none|to_zero|clear|reset)|post_accumulate_grad_hook",
    re.IGNORECASE,
)
"""Other text that sets gradients to zero or replaces them."""
_MANAGED: Final = (None, "accelerate")
_HELP: Final = "call `{optimizer}.zero_grad()` after each step"


def missing_zero_grad(subject: Subject) -> Iterator[Hit]:
    """OOM210: the optimizer steps in a loop, and nothing sets the gradients to zero."""
    for run in subject.runs:
        for event in run.of(Action.STEP):
            loop = _loop_with_pass(run, event)
            if loop is not None and _is_missing(run, event, loop, subject):
                optimizer = optimizer_of(event)
                message = f"`{optimizer}` steps with the gradients of all batches so far: {_why(run, event)}"
                yield Hit.at(event, message, help=_HELP.format(optimizer=optimizer))


def _loop_with_pass(run: Run, step: Event) -> Loop | None:
    """The innermost loop in whose iteration both a backward pass and the step come."""
    if step.context.managed not in _MANAGED or takes_closure(step) or step.call is None:
        return None
    loops = [shared_loop(step, event) for event in run.of(Action.BACKWARD) if event.context.managed in _MANAGED]
    inner = [loop for loop in loops if loop is not None]
    return max(inner, key=step.context.loops.index, default=None)


def _is_missing(run: Run, step: Event, loop: Loop, subject: Subject) -> bool:
    if _runs_once(loop) or _is_made_in(step, loop):
        return False
    zeroes = [event for event in run.of(Action.ZERO_GRAD) if not _never_before(event, step, loop)]
    if any(loop in event.context.loops for event in zeroes):
        return False
    if any(event.context.loops and event.context.loops[-1].over_batches for event in zeroes):
        return False  # several passes and steps on one batch
    if any(_ZEROES.search(module.text) for module in _modules(run, step)) or _elsewhere(run, subject):
        return False
    return not any(_passes_optimizer_on(subject, step, module) for module in _modules(run, step))


def _runs_once(loop: Loop) -> bool:
    if not isinstance(loop.node, ast.For | ast.AsyncFor | ast.While):
        return not loop.over_batches  # a comprehension
    return isinstance(loop.node.body[-1], ast.Break | ast.Return)


def _is_made_in(step: Event, loop: Loop) -> bool:
    """Return whether each iteration has an optimizer of its own, and so gradients of its own."""
    node = step.value.node
    module = step.module if loop.function is None else loop.function.module
    return isinstance(node, ast.Call) and step.module is module and within(node, loop.node)


def _never_before(zero: Event, step: Event, loop: Loop) -> bool:
    """Return whether a condition that is constant during the loop lets only one of the two happen."""
    one, other = conditions(zero.context.guards), conditions(step.context.guards)
    against = [text for text, holds in one.items() if other.get(text, holds) is not holds]
    changing = stored_in(loop) if against else frozenset()  # each pair of events asks
    return any(not set(re.findall(r"[A-Za-z_][\w.]*", text)) & changing and "(" not in text for text in against)


def _elsewhere(run: Run, subject: Subject) -> bool:
    """Return whether the file zeroes gradients where no run leads, or in a function that others may call between."""
    seen = [event for other in subject.runs for event in other.of(Action.ZERO_GRAD) if event.module is run.module]
    lines = {event.node.end_lineno for event in seen}
    mentioned = {
        number for number, line in enumerate(run.module.text.splitlines(), 1) if ".zero_grad(" in line.partition("#")[0]
    }
    alone = (other for other in subject.runs if other is not run and not any(other.of(Action.BACKWARD)))
    return any(any(other.of(Action.ZERO_GRAD)) for other in alone) or bool(mentioned - lines)


def _modules(run: Run, step: Event) -> set[Module]:
    return {run.module, step.module}


def _passes_optimizer_on(subject: Subject, step: Event, module: Module) -> bool:
    """Return whether the optimizer is passed to an unknown function, which may set the gradients to zero."""
    known = explained_calls(*subject.runs)
    optimizer = optimizer_of(step)
    return any(
        isinstance(node, ast.Call)
        and id(node) not in known
        and any(text_of(argument) == optimizer for argument in _arguments(node))
        and not _MAKES.search(module.qualified(node.func) or text_of(node.func))
        for node in walk(module.tree)
    )


_MAKES: Final = re.compile(r"sched|prepare|setup|LR|^torch\.|warm|anneal|wrap|save|print|isinstance", re.IGNORECASE)
"""Functions that take an optimizer and leave its gradients alone."""


def _arguments(call: ast.Call) -> Iterator[ast.expr]:
    for argument in [*call.args, *(keyword.value for keyword in call.keywords)]:
        if isinstance(argument, ast.Name | ast.Attribute):
            yield argument


def _why(run: Run, step: Event) -> str:
    zeroes = list(run.of(Action.ZERO_GRAD))
    if any(
        event.context.loops for event in zeroes if event.context.loops == step.context.loops[: len(event.context.loops)]
    ):
        if not any(event.context.loops == step.context.loops for event in zeroes):
            return "`zero_grad` stands outside the loop over batches"
        return "`zero_grad` stands in another branch"
    return "`zero_grad` stands before the loop" if zeroes else "nothing calls `zero_grad`"


_PASSES: Final = (Action.BACKWARD, Action.AUTOGRAD)


def zero_grad_between_backward_and_step(subject: Subject) -> Iterator[Hit]:
    """OOM211: gradients are set to zero after the backward pass that made them, and before the step."""
    for run in subject.runs:
        for place, event in enumerate(run.events):
            if event.action is Action.ZERO_GRAD and event.context.managed in _MANAGED and not event.context.handlers:
                step = _step_after(run, place, event)
                if step is not None and _has_pass_before(run, place, event, step):
                    message = f"`{_zeroed(event)}.zero_grad()` throws away the gradients that the next step should use"
                    yield Hit.at(event, message, help=f"move it after the step of `{optimizer_of(step)}`")


def _step_after(run: Run, place: int, zero: Event) -> Event | None:
    """The step that finds no gradients: the same optimizer's, with nothing between that could make new ones."""
    for event in run.events[place + 1 :]:
        if event.action in _PASSES:
            return None
        if event.action is Action.STEP and _is_of(event, zero, run):
            return event if _directly(zero, event, run) else None
    return None


def _directly(zero: Event, step: Event, run: Run) -> bool:
    if not in_same_call(zero, step) or zero.context.loops != step.context.loops or takes_closure(step):
        return False
    if not conditions(zero.context.guards).items() <= conditions(step.context.guards).items():
        return False
    return not sets_gradients_between(zero, step) and not any(calls_between(zero, step, run))


def _is_of(step: Event, zero: Event, run: Run) -> bool:
    """Return whether a step is of the optimizer, or the model, whose gradients were set to zero."""
    if zero.value.kind is Kind.MODEL:
        models = {event.value.identity for event in run.of(Action.FORWARD)}
        return len(models) == 1 and len({optimizer_of(event) for event in run.of(Action.STEP)}) == 1
    return _zeroed(zero) == optimizer_of(step)


def _has_pass_before(run: Run, place: int, zero: Event, step: Event) -> bool:
    """Return whether the gradients' last change was a backward pass, in the same iteration."""
    for event in reversed(run.events[:place]):
        if event.action in (Action.STEP, Action.ZERO_GRAD) and _may_be_same(event, step) and not exclude(event, zero):
            return False
        if event.action is Action.BACKWARD and not exclude(event, zero):
            return event.context.loops[: len(zero.context.loops)] == zero.context.loops
    return False


def _may_be_same(event: Event, step: Event) -> bool:
    owner = optimizer_of(event) if event.action is Action.STEP else _zeroed(event)
    return event.value.kind is Kind.MODEL or owner == optimizer_of(step)


def _zeroed(zero: Event) -> str:
    return "" if zero.call is None else text_of(zero.call.func).rpartition(".")[0]


RULES: Final = read_rules(missing_zero_grad, zero_grad_between_backward_and_step)
