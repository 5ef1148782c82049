"""OOM216: a binary cross-entropy is given values of another kind than it takes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from oomdoctor.lint.patterns.activations import Compared, compared
from oomdoctor.lint.rule import Hit, Subject, read_rule

_TAKE_LOGITS: Final = frozenset({"BCEWithLogitsLoss", "binary_cross_entropy_with_logits"})
_TAKE_PROBABILITIES: Final = frozenset({"BCELoss", "binary_cross_entropy"})
_NO_LOGITS: Final = frozenset({"sigmoid", "softmax", "log_softmax", "relu"})
_NO_PROBABILITIES: Final = frozenset({"linear", "relu", "tanh", "log_softmax"})


def _check(subject: Subject) -> Iterator[Hit]:
    for found in compared(subject, _TAKE_LOGITS | _TAKE_PROBABILITIES):
        where = "before the loss" if found.applied_in is None else f"in `{found.applied_in}`"
        if found.loss in _TAKE_LOGITS and found.activation in _NO_LOGITS:
            message = f"`{found.called}` applies a sigmoid itself and gets the output of `{found.activation}`"
            yield Hit.at(found.event, message, help=f"leave `{found.activation}` out {where}")
        elif found.loss in _TAKE_PROBABILITIES and found.activation in _NO_PROBABILITIES:
            message = f"`{found.called}` takes probabilities and gets {_made(found)}"
            yield Hit.at(found.event, message, help=f"use `{_with_logits(found)}` on what a linear layer gives")


def _made(found: Compared) -> str:
    linear = "the output of a linear layer"
    return linear if found.activation == "linear" else f"the output of `{found.activation}`"


def _with_logits(found: Compared) -> str:
    return "BCEWithLogitsLoss" if found.loss == "BCELoss" else "binary_cross_entropy_with_logits"


RULE: Final = read_rule(__file__, _check)
