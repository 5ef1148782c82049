"""Rule on `retain_graph` (OOM104)."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import Final

from oomdoctor.lint.flow.events import UNKNOWN, Action, Event, Graph, Kind, Loop, Run, Value
from oomdoctor.lint.flow.state import base_of, text_of
from oomdoctor.lint.module import walk
from oomdoctor.lint.patterns.graphs import is_used_later, node_in_loop
from oomdoctor.lint.patterns.iterations import carried, end_of, explained_calls, start_of, stored_in, within
from oomdoctor.lint.rule import Hit, Subject, read_rules
from oomdoctor.lint.source import Edit
from oomdoctor.results import Severity

_USES_THE_GRAPH: Final = re.compile(r"grad|penalt|backward|jacobian|hessian|second_order|sharpness", re.IGNORECASE)
_KEEPS_STATE: Final = re.compile(r"hidden|memory|recurrent|\bstates?\b|carry|\bbptt\b", re.IGNORECASE)
_MOVES: Final = frozenset({"to", "cuda"})
_HELP: Final = "leave `{}` out: nothing runs backward through this graph again"
_HELP_UNSEEN: Final = "leave `{}` out; if that fails, detach what the model keeps from the iteration before"


def retain_graph_in_loop(subject: Subject) -> Iterator[Hit]:
    """OOM104: the graph is kept after the only backward pass that uses it."""
    retaining = [(run, event) for run in subject.runs for event in run.of(Action.BACKWARD) if _retains(event)]
    needed = {id(event.node) for run, event in retaining if not _is_needless(run, event)}
    for run, event in retaining:
        if id(event.node) not in needed:  # a helper may be called where a later pass follows, too
            yield _hit(run, event)


def _hit(run: Run, event: Event) -> Hit:
    """Return the hit: no more than a note where the model may keep state that the file does not show."""
    how, argument = ("backward(None, True)", "True") if _is_positional(event) else ("retain_graph=True", "retain_graph")
    message = f"`{_loss_of(event)}` keeps its graph with `{how}`, and no other pass here uses it"
    if not all(_is_seen(made.value) for made in _forwards(run, event)):
        return Hit.at(event, message, help=_HELP_UNSEEN.format(argument), severity=Severity.NOTE)
    return Hit.at(event, message, help=_HELP.format(argument), edits=_edits(event) if _is_of_loop(event) else ())


def _is_seen(model: Value) -> bool:
    return model.class_ is not None or (model.library or "").startswith(("torch", "transformers."))


def _forwards(run: Run, event: Event) -> list[Event]:
    """The forward passes in the innermost loop that led to this pass."""
    loop = event.context.loops[-1]
    return [made for made in run.of(Action.FORWARD, within=loop) if event.value.comes_from(made.result)]


def _is_needless(run: Run, event: Event) -> bool:
    if not event.context.loops or not _is_last_use(run, event) or _takes_over(run, event):
        return False
    return not is_used_later(run, event, _forwards(run, event))


def _is_of_loop(event: Event) -> bool:
    """Return whether the event stands in the loop's function, or in a function nested in it."""
    function, owner = event.function, event.context.loops[-1].function
    return function is owner or (function is not None and owner is not None and function.parent is owner)


def _retains(event: Event) -> bool:
    if event.call is None or event.keyword("create_graph") is not None:
        return False
    given = event.keyword("retain_graph") or (event.call.args[1] if _is_positional(event) else None)
    return isinstance(given, ast.Constant) and given.value is True


def _is_positional(event: Event) -> bool:
    """Return whether the call is `loss.backward(None, True)`."""
    arguments = event.call.args if event.call is not None else []
    return (
        event.name == ".backward"
        and len(arguments) == 2  # noqa: PLR2004 - gradient and retain_graph
        and isinstance(arguments[0], ast.Constant)
        and arguments[0].value is None
    )


def _is_last_use(run: Run, event: Event) -> bool:
    """Return whether the graph is made in the same iteration, and nothing after the pass uses it again."""
    loop = event.context.loops[-1]
    forwards = _forwards(run, event)
    if not forwards or any(made.context.loops != event.context.loops for made in forwards):
        return False
    later = run.events[run.events.index(event) + 1 :]
    if any(other.action in (Action.BACKWARD, Action.AUTOGRAD) and loop in other.context.loops for other in later):
        return False
    return not any(_USES_THE_GRAPH.search(text_of(call.func)) for call in _unknown_calls_after(run, event, loop))


def _unknown_calls_after(run: Run, event: Event, loop: Loop) -> Iterator[ast.Call]:
    """Calls further on in the iteration, in the function that has the loop, that are no events."""
    known = explained_calls(run)
    place = node_in_loop(event, loop)
    for node in walk(loop.node):
        if isinstance(node, ast.Call) and id(node) not in known and start_of(node) > end_of(place):
            yield node


def _takes_over(run: Run, event: Event) -> bool:
    """Return whether the graph may reach back: to the iteration before, or to before the loop."""
    loop = event.context.loops[-1]
    forwards = _forwards(run, event)
    if any(_keeps_state(made.value) for made in forwards) or _KEEPS_STATE.search(_text(event, loop)):
        return True
    used = set(_operands(event, loop))
    if any(loop.values.get(text, UNKNOWN).kind is not Kind.NUMBER for text in used & carried(loop)):
        return True
    return any(_may_reach_back(text, loop) for text in used - stored_in(loop))


def _may_reach_back(text: str, loop: Loop) -> bool:
    """Return whether a value from before the loop, or a part such as `.T` of one, may hang on a graph."""
    whole = loop.values.get(text.rpartition(".")[0])
    if text not in loop.values and whole is not None:
        return whole.kind is Kind.TENSOR and whole.graph is Graph.YES
    value = loop.values.get(text)
    if value is None or value.graph is Graph.NO:
        return False
    if value.kind is Kind.TENSOR or value.graph is Graph.YES:
        return True
    return value.kind is Kind.UNKNOWN and (value.node is not None or not loop.over_batches)


def _keeps_state(model: Value) -> bool:
    """Return whether the model's `forward` sets attributes of the model, such as a hidden state."""
    forward = None if model.class_ is None else model.class_.methods.get("forward")
    return forward is not None and any(
        isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and text_of(node.value) == "self"
        for node in walk(forward.node)
    )


def _text(event: Event, loop: Loop) -> str:
    module = event.module if loop.function is None else loop.function.module
    return "\n".join(module.text.splitlines()[loop.node.lineno - 1 : loop.node.end_lineno])


def _operands(event: Event, loop: Loop) -> Iterator[str]:
    """Names and dotted texts that the loss may be computed from: operands and arguments up to the backward pass."""
    place = node_in_loop(event, loop)
    for statement in walk(loop.node):
        if isinstance(statement, ast.Assign | ast.AugAssign | ast.Expr):
            is_before = not isinstance(statement, ast.Expr) and start_of(statement) < start_of(place)
            yield from _operands_of(statement.value) if is_before or within(place, statement) else ()


def _operands_of(expression: ast.expr) -> Iterator[str]:
    for node in walk(expression):
        parts: list[ast.expr] = [node.left, node.right] if isinstance(node, ast.BinOp) else []
        if isinstance(node, ast.Call):
            function = node.func
            parts = [function.value] if isinstance(function, ast.Attribute) else []
            if not (isinstance(function, ast.Attribute) and function.attr in _MOVES):
                parts += [*node.args, *(keyword.value for keyword in node.keywords)]
        for part in parts:
            yield base_of(part.value if isinstance(part, ast.Starred) else part) or ""


def _loss_of(event: Event) -> str:
    if event.call is None:
        return "the loss"
    is_of_tensor = event.name == ".backward" and (not event.call.args or _is_positional(event))
    if is_of_tensor and isinstance(event.call.func, ast.Attribute):
        return text_of(event.call.func.value)
    return text_of(event.call)


def _edits(event: Event) -> tuple[Edit, ...]:
    """Takes the argument out where it is the last one."""
    call = event.call
    if call is None:
        return ()
    if _is_positional(event) and not call.keywords:
        return (Edit(end_of(call.func), end_of(call), "()"),)
    if not call.keywords or call.keywords[-1].arg != "retain_graph":
        return ()
    before = [*call.args, *(keyword.value for keyword in call.keywords[:-1])]
    if not before:
        return (Edit(end_of(call.func), end_of(call), "()"),)
    return (Edit(end_of(before[-1]), end_of(call.keywords[-1]), ""),)


RULES: Final = read_rules(retain_graph_in_loop)
