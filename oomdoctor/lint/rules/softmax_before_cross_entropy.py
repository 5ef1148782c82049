"""OOM215: a loss that takes logits, or their logarithms, is given probabilities."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from oomdoctor.lint.patterns.activations import Compared, compared
from oomdoctor.lint.rule import Hit, Subject, read_rule

_TAKE_LOGITS: Final = frozenset({"CrossEntropyLoss", "cross_entropy"})
_TAKE_LOGARITHMS: Final = frozenset({"NLLLoss", "nll_loss"})


def _check(subject: Subject) -> Iterator[Hit]:
    for found in compared(subject, _TAKE_LOGITS | _TAKE_LOGARITHMS):
        if found.loss in _TAKE_LOGITS and found.activation in ("softmax", "sigmoid"):
            message = f"`{found.called}` takes logits and gets what `{found.activation}` has made of them"
            yield Hit.at(found.event, message, help=_help(found))
        elif found.loss in _TAKE_LOGARITHMS and found.activation == "softmax":
            message = f"`{found.called}` takes logarithms of probabilities and gets probabilities"
            yield Hit.at(found.event, message, help=f"use `log_softmax` {_where(found)}, or `cross_entropy` on logits")


def _where(found: Compared) -> str:
    return "before it" if found.applied_in is None else f"in `{found.applied_in}`"


def _help(found: Compared) -> str:
    where = "before the loss" if found.applied_in is None else f"in `{found.applied_in}`"
    return f"leave `{found.activation}` out {where}, and apply it where probabilities are shown"


RULE: Final = read_rule(__file__, _check)
