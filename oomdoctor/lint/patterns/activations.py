"""Loss functions, and the activation that was applied last to what they are given."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from oomdoctor.lint.flow.events import Action, Event, GradMode, Run
from oomdoctor.lint.flow.hints import find_method
from oomdoctor.lint.flow.runs import returned_by
from oomdoctor.lint.flow.state import text_of
from oomdoctor.lint.module import Class, Function, called_name, walk
from oomdoctor.lint.rule import Subject

_GROW: Final = frozenset({"append", "add_module", "extend", "insert", "register_module", "setattr"})
"""Calls that put further layers into a container."""


@dataclass(frozen=True, slots=True)
class Compared:
    """A loss of which the last activation before it is known.

    Attributes:
        event: The call of the loss function.
        loss: Last part of the loss function's name, such as `BCELoss`.
        called: The call's function as the user wrote it.
        activation: `softmax`, `sigmoid` and the like, or `linear` for a layer's own output.
        applied_in: The method of the user's model that applies it, such as `Net.forward`; None where it is applied
            beside the loss.
    """

    event: Event
    loss: str
    called: str
    activation: str
    applied_in: str | None


def compared(subject: Subject, losses: frozenset[str]) -> Iterator[Compared]:
    """Yield the calls of these loss functions that are trained on.

    Args:
        subject: The file.
        losses: Last parts of the loss functions' names.
    """
    for run in subject.runs:
        for event in run.of(Action.LOSS):
            loss = event.name.rpartition(".")[2]
            if loss in losses and event.name.startswith("torch.") and event.context.gradients is not GradMode.OFF:
                activation, applied_in = _last_applied(run, event)
                if activation is not None and event.call is not None:
                    yield Compared(event, loss, text_of(event.call.func), activation, applied_in)


def _last_applied(run: Run, event: Event) -> tuple[str | None, str | None]:
    if event.value.activation is not None:
        return event.value.activation, None
    made = next((made for made in run.of(Action.FORWARD) if made.result.identity == event.value.identity), None)
    class_ = None if made is None else made.value.class_
    method = None if class_ is None else find_method(class_, "forward")
    if class_ is None or method is None or _has_variants(class_, method):
        return None, None
    activation = returned_by(method).activation
    called = {called_name(node) for node in walk(class_.node) if isinstance(node, ast.Call)}
    return (None if activation == "linear" and called & _GROW else activation), f"{class_.name}.forward"


def _has_variants(class_: Class, method: Function) -> bool:
    """Return whether a layer that the method uses is set in several ways."""
    used = {text_of(node) for node in walk(method.node) if isinstance(node, ast.Attribute)}
    stored = Counter(
        text_of(node)
        for node in walk(class_.node)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
    )
    return any(count > 1 and text in used for text, count in stored.items())
