"""What a program was doing, as its traceback tells.

Every frame is held against `_SIGNS`, first sign first, and at most one names its phase. The innermost frame with a
phase decides, except where `_PRECEDENCE` says that an outer one does.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from oomdoctor.diagnosis.text.ownership import is_library
from oomdoctor.diagnosis.text.phase_signs import ANYWHERE, INNERMOST, OWN_INNERMOST, SIGNS
from oomdoctor.results import TrainingPhase

if TYPE_CHECKING:
    from collections.abc import Sequence

    from oomdoctor.diagnosis.text.phase_signs import Sign
    from oomdoctor.results import SourceLine

_MOST_FRAMES = 1000
_LONGEST_MESSAGE = 2000


@dataclass(frozen=True, slots=True)
class _Precedence:
    """An outer phase that counts although a frame inside it shows another.

    Attributes:
        outer: The phase that counts.
        inner: What it takes precedence over.
        reason: Why.
    """

    outer: TrainingPhase
    inner: frozenset[TrainingPhase]
    reason: str


_Phase = TrainingPhase
_PRECEDENCE = (
    _Precedence(
        _Phase.BACKWARD,
        frozenset({_Phase.FORWARD, _Phase.BATCH_TO_DEVICE, _Phase.EVALUATION}),
        "checkpointing runs the forward again inside the backward pass, beside gradients and other activations",
    ),
    _Precedence(
        _Phase.DATA_LOADING,
        frozenset({_Phase.FORWARD, _Phase.CHECKPOINT_LOAD, _Phase.MODEL_TO_DEVICE}),
        "what a dataset or a worker calls, even a model of its own or a file of tensors, is done to load data",
    ),
    _Precedence(
        _Phase.EVALUATION,
        frozenset({_Phase.FORWARD, _Phase.BATCH_TO_DEVICE}),
        "evaluation is a forward pass too, and what is special is that no graph should be kept",
    ),
    _Precedence(
        _Phase.FORWARD,
        frozenset({_Phase.BATCH_TO_DEVICE}),
        "a tensor that a model moves while it computes is part of its forward pass, not the batch",
    ),
)

_MESSAGES = (
    (re.compile(r"pin memory thread", re.IGNORECASE), TrainingPhase.BATCH_TO_DEVICE),
    (re.compile(r"DataLoader worker|bus error encountered in worker", re.IGNORECASE), TrainingPhase.DATA_LOADING),
    (re.compile(r"copying the param(?:eter)? named", re.IGNORECASE), TrainingPhase.MODEL_TO_DEVICE),
)


def phase_of(frames: Sequence[SourceLine], message: str) -> TrainingPhase | None:
    """What the program was doing when it raised an error.

    Args:
        frames: The traceback, outermost first.
        message: The error's words; where they name a phase, they settle it.

    Returns:
        The phase; None where neither tells.
    """
    said = next((phase for words, phase in _MESSAGES if words.search(message[:_LONGEST_MESSAGE])), None)
    if said is not None:
        return said
    outer: list[TrainingPhase] = []
    innermost: Sign | None = None
    for depth, frame in enumerate(reversed(frames[-_MOST_FRAMES:])):
        sign = _sign_of(frame, innermost_frame=depth == 0, innermost_sign=innermost is None)
        if sign is not None and innermost is None:
            innermost = sign
        elif sign is not None:
            outer.append(sign.phase)
    return None if innermost is None else _settled(innermost, outer)


def _settled(innermost: Sign, outer: list[TrainingPhase]) -> TrainingPhase:
    tentative = innermost.where != ANYWHERE
    for rule in _PRECEDENCE:
        if rule.outer in outer and (innermost.phase in rule.inner or (tentative and rule.outer in _COVERING)):
            return rule.outer
    return innermost.phase


_COVERING = frozenset({TrainingPhase.BACKWARD, TrainingPhase.DATA_LOADING})
"""Phases that a line of code alone does not contradict: hooks and datasets may do anything."""


def _sign_of(frame: SourceLine, *, innermost_frame: bool, innermost_sign: bool) -> Sign | None:
    """The sign that a frame shows.

    Args:
        frame: The frame.
        innermost_frame: Whether no frame lies inside it.
        innermost_sign: Whether no frame inside it shows any sign.
    """
    path = frame.path.replace("\\", "/")
    function = (frame.function or "").rpartition(".")[2]
    code = frame.code or ""
    for sign in SIGNS:
        if sign.where == INNERMOST and not innermost_sign:
            continue
        if sign.where == OWN_INNERMOST and not (innermost_frame and not is_library(frame.path)):
            continue
        if sign.shown_by(path, function, code):
            return sign
    return None
