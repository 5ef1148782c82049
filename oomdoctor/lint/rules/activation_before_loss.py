"""Rules on losses that are given another kind of values than they take (OOM215, OOM216)."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from oomdoctor.lint.flow.events import UNKNOWN, Action, Event, GradMode, Run, Value
from oomdoctor.lint.flow.hints import find_method
from oomdoctor.lint.flow.runs import returned_by
from oomdoctor.lint.flow.state import text_of
from oomdoctor.lint.module import Class, Function, called_name, targets_of, walk
from oomdoctor.lint.patterns.iterations import function_around
from oomdoctor.lint.rule import Hit, Subject, read_rules

_GROW: Final = frozenset({"append", "add_module", "extend", "insert", "register_module", "setattr"})
"""Calls that put further layers into a container."""


@dataclass(frozen=True, slots=True)
class _Compared:
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

    @property
    def place(self) -> str:
        """Where the activation is applied, in words."""
        return "before the loss" if self.applied_in is None else f"in `{self.applied_in}`"


def _compared(subject: Subject, losses: frozenset[str]) -> Iterator[_Compared]:
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
                    yield _Compared(event, loss, text_of(event.call.func), activation, applied_in)


def _last_applied(run: Run, event: Event) -> tuple[str | None, str | None]:
    if event.value.activation is not None:
        return event.value.activation, None
    for made in run.of(Action.FORWARD):
        class_ = made.value.class_
        method = None if class_ is None else find_method(class_, "forward")
        index = None if method is None else _output(event, made)
        if class_ is not None and method is not None and index is not None and not _has_variants(class_, method):
            output = returned_by(method)
            activation = _part(output, index).activation
            called = {called_name(node) for node in walk(class_.node) if isinstance(node, ast.Call)}
            return (None if activation == "linear" and called & _GROW else activation), f"{class_.name}.forward"
    return None, None


def _output(event: Event, made: Event) -> int | None:
    """Return which of a model's outputs a loss is given: -1 for all that it returns, None for none of this pass."""
    if made.result.identity == event.value.identity:
        return -1
    given = event.call.args[0] if event.call is not None and event.call.args else None
    if not isinstance(given, ast.Name) or made.result.identity not in event.value.made_from:
        return None
    nodes = [
        node
        for node in walk(function_around(event))
        if isinstance(node, ast.Assign) and given.id in map(text_of, targets_of(node))
    ]
    targets = [target for node in nodes for target in node.targets]
    if not any(node.value is made.call for node in nodes) or not all(isinstance(each, ast.Tuple) for each in targets):
        return None
    names = [list(map(text_of, target.elts)) for target in targets if isinstance(target, ast.Tuple)]
    places = {each.index(given.id) for each in names if given.id in each}
    return places.pop() if len(places) == 1 else None


def _part(output: Value, index: int) -> Value:
    if index < 0:
        return output
    return output.parts[index] if index < len(output.parts) else UNKNOWN


def _has_variants(class_: Class, method: Function) -> bool:
    """Return whether a layer that the method uses is set in several ways."""
    used = {text_of(node) for node in walk(method.node) if isinstance(node, ast.Attribute)}
    stored = Counter(
        text_of(node)
        for node in walk(class_.node)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
    )
    return any(count > 1 and text in used for text, count in stored.items())


_TAKE_LOGITS: Final = frozenset({"CrossEntropyLoss", "cross_entropy"})
_TAKE_LOGARITHMS: Final = frozenset({"NLLLoss", "nll_loss"})


def softmax_before_cross_entropy(subject: Subject) -> Iterator[Hit]:
    """OOM215: a loss that takes logits, or their logarithms, is given probabilities."""
    for found in _compared(subject, _TAKE_LOGITS | _TAKE_LOGARITHMS):
        if found.loss in _TAKE_LOGITS and found.activation in ("softmax", "sigmoid"):
            message = f"`{found.called}` takes logits and gets what `{found.activation}` has made of them"
            help_ = f"leave `{found.activation}` out {found.place}, and apply it where probabilities are shown"
            yield Hit.at(found.event, message, help=help_)
        elif found.loss in _TAKE_LOGARITHMS and found.activation == "softmax":
            message = f"`{found.called}` takes logarithms of probabilities and gets probabilities"
            yield Hit.at(found.event, message, help=f"use `log_softmax` {_where(found)}, or `cross_entropy` on logits")


def _where(found: _Compared) -> str:
    return "before it" if found.applied_in is None else f"in `{found.applied_in}`"


_BINARY_LOGITS: Final = frozenset({"BCEWithLogitsLoss", "binary_cross_entropy_with_logits"})
_BINARY_PROBABILITIES: Final = frozenset({"BCELoss", "binary_cross_entropy"})
_NO_LOGITS: Final = frozenset({"sigmoid", "softmax", "log_softmax", "relu"})
_NO_PROBABILITIES: Final = frozenset({"linear", "relu", "tanh", "log_softmax"})


def wrong_activation_for_bce(subject: Subject) -> Iterator[Hit]:
    """OOM216: a binary cross-entropy is given values of another kind than it takes."""
    for found in _compared(subject, _BINARY_LOGITS | _BINARY_PROBABILITIES):
        if found.loss in _BINARY_LOGITS and found.activation in _NO_LOGITS:
            message = f"`{found.called}` applies a sigmoid itself and gets the output of `{found.activation}`"
            yield Hit.at(found.event, message, help=f"leave `{found.activation}` out {found.place}")
        elif found.loss in _BINARY_PROBABILITIES and found.activation in _NO_PROBABILITIES:
            message = f"`{found.called}` takes probabilities and gets {_made(found)}"
            yield Hit.at(found.event, message, help=f"use `{_with_logits(found)}` on what a linear layer gives")


def _made(found: _Compared) -> str:
    linear = "the output of a linear layer"
    return linear if found.activation == "linear" else f"the output of `{found.activation}`"


def _with_logits(found: _Compared) -> str:
    return "BCEWithLogitsLoss" if found.loss == "BCELoss" else "binary_cross_entropy_with_logits"


RULES: Final = read_rules(softmax_before_cross_entropy, wrong_activation_for_bce)
