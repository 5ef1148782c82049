"""Causes that the traceback and the snapshot tell: what the program was doing, and what fills the memory."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from oomdoctor.diagnosis.causes.numbers import has_room
from oomdoctor.results import Category, Cause, CauseId, Confidence, TrainingPhase
from oomdoctor.units import GIB, MIB, format_size

if TYPE_CHECKING:
    from oomdoctor.diagnosis.situation import Situation

# Weights arrive one by one and leave hardly a hole; activations and their temporaries leave many.
_TIGHT_SHARE: Final = 50
_TIGHT_BYTES: Final = 32 * MIB
_LARGEST_WEIGHT_BYTES: Final = GIB // 2
_MOSTLY: Final = 0.5

GROWS_WITH_THE_BATCH: Final = (Category.ACTIVATIONS, Category.INPUT, Category.WORKSPACE)
"""What grows with the batch: gradients of activations and temporaries are counted as workspace."""

_STATE_IS_MADE: Final = re.compile(r"exp_avg|zeros_like|_init_group|state\[|momentum_buffer|square_avg|acc_delta")
_STEP_WORDS: Final = {
    TrainingPhase.FORWARD: "in the forward pass",
    TrainingPhase.BACKWARD: "in the backward pass",
    TrainingPhase.BATCH_TO_DEVICE: "while the batch was copied to the device",
    TrainingPhase.EVALUATION: "in evaluation, which keeps no gradients here",
}


def model_too_large(situation: Situation) -> Cause | None:
    """The weights alone fill the device."""
    if not situation.on_gpu:
        return None
    if situation.phase is TrainingPhase.MODEL_TO_DEVICE:
        text = f"It died while the model was being placed on the device, before any step{_held(situation)}"
        return Cause(CauseId.MODEL_TOO_LARGE, Confidence.LIKELY, text)
    if situation.kind == "cublas-allocation" and "Create(handle)" in _message(situation) and _in_forward(situation):
        text = "cuBLAS makes its handle at the first matrix product, and found the device full by then"
        return Cause(CauseId.MODEL_TOO_LARGE, Confidence.LIKELY, text)
    if situation.share(Category.WEIGHTS) > _MOSTLY:
        return Cause(CauseId.MODEL_TOO_LARGE, Confidence.LIKELY, _mostly(situation, Category.WEIGHTS))
    if situation.phase is None and _filled_tightly(situation):
        text = f"The device is full and hardly anything is reserved in vain, as weights leave it{_held(situation)}"
        return Cause(CauseId.MODEL_TOO_LARGE, Confidence.POSSIBLE, text)
    return None


def optimizer_state(situation: Situation) -> Cause | None:
    """It died in the optimizer's step, where its state and its temporaries come into being."""
    if situation.phase is not TrainingPhase.OPTIMIZER_STEP or not situation.on_gpu:
        return None
    first = situation.case.steps_done == 0 or (situation.case.steps_done is None and situation.facts.step in (0, 1))
    if first:
        text = f"It died in the optimizer's first step, which creates the optimizer's state{_held(situation)}"
        return Cause(CauseId.OPTIMIZER_STATE, Confidence.CERTAIN, text)
    if _STATE_IS_MADE.search(situation.code):
        text = f"The line that ran out creates the optimizer's state{_held(situation)}"
        return Cause(CauseId.OPTIMIZER_STATE, Confidence.CERTAIN, text)
    text = f"It died in the optimizer's step{_held(situation)}"
    return Cause(CauseId.OPTIMIZER_STATE, Confidence.LIKELY, text)


def checkpoint_load(situation: Situation) -> Cause | None:
    """A checkpoint was being loaded onto the device, beside what is there already."""
    if situation.phase is not TrainingPhase.CHECKPOINT_LOAD or not situation.on_gpu:
        return None
    text = (
        "It died while a checkpoint was being loaded onto the device it was saved from, beside what is there"
        f"{_held(situation)}"
    )
    return Cause(CauseId.CHECKPOINT_LOAD, Confidence.LIKELY, text)


def missing_no_grad(situation: Situation) -> Cause | None:
    """Evaluation keeps what only training needs."""
    if situation.phase is not TrainingPhase.EVALUATION or not situation.on_gpu or situation.gradients_off:
        return None
    trained = (situation.case.steps_done or situation.facts.step or 0) > 0
    before = "after training steps that fitted, " if trained else ""
    text = f"It died in evaluation, {before}and no `no_grad` or `inference_mode` is in the traceback"
    return Cause(CauseId.MISSING_NO_GRAD, Confidence.LIKELY if trained else Confidence.POSSIBLE, text)


def batch_named_in_code(situation: Situation) -> Cause | None:
    """The line that ran out names its batch size: whatever the numbers are, that is the first thing to change."""
    line, size = situation.facts.user_line, situation.batch_size
    if line is None or line.code is None or size is None or size == 1 or str(size) not in line.code:
        return None
    if not situation.on_gpu or has_room(situation) or situation.phase not in (*_STEP_WORDS, None):
        return None
    return _batch(Confidence.LIKELY, f"The line that ran out asks for batch size {size}{_held(situation)}")


def batch_too_large(situation: Situation) -> Cause | None:
    """What grows with the batch does not fit."""
    if not situation.on_gpu or has_room(situation) or batch_named_in_code(situation) is not None:
        return None
    if situation.share(*GROWS_WITH_THE_BATCH) > _MOSTLY:
        where = "" if situation.phase not in _STEP_WORDS else f"It ran out {_STEP_WORDS[situation.phase]}. "
        return _batch(Confidence.LIKELY, where + _mostly(situation, *GROWS_WITH_THE_BATCH))
    if situation.phase in _STEP_WORDS:
        where = _STEP_WORDS[situation.phase]
        return _batch(_confidence_in_step(situation), f"It ran out {where}{_at_batch(situation)}{_held(situation)}")
    if situation.phase is not None or (situation.facts.allocated_bytes is None and situation.batch_size is None):
        return None
    confidence = Confidence.LIKELY if (situation.batch_size or 0) > 1 else Confidence.POSSIBLE
    return _batch(confidence, f"The device is full{_at_batch(situation)}{_held(situation)}")


def _confidence_in_step(situation: Situation) -> Confidence:
    if situation.batch_size == 1:
        return Confidence.POSSIBLE  # one sample cannot be halved: its length or its resolution is what is large
    if situation.phase is TrainingPhase.EVALUATION and not situation.gradients_off:
        return Confidence.POSSIBLE
    return Confidence.LIKELY


def _batch(confidence: Confidence, evidence: str) -> Cause:
    return Cause(CauseId.BATCH_TOO_LARGE, confidence, evidence)


def _at_batch(situation: Situation) -> str:
    size = situation.batch_size
    return "" if size is None else f" at batch size {size}"


def _held(situation: Situation) -> str:
    """The numbers, as far as there are any: `: 20.43 GiB allocated, 2.59 GiB free, 3.75 GiB asked for`."""
    facts = situation.facts
    parts = [
        f"{format_size(size)} {word}"
        for size, word in (
            (facts.allocated_bytes, "allocated"),
            (facts.free_bytes, "free"),
            (facts.tried_bytes, "asked for"),
        )
        if size is not None
    ]
    return f": {', '.join(parts)}" if parts else ""


def _mostly(situation: Situation, *categories: Category) -> str:
    part = situation.category_bytes(*categories) or 0
    whole = 0 if situation.snapshot is None else situation.snapshot.end.allocated_bytes
    names = [category.value.replace("_", " ") for category in categories]
    listed = " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)
    return f"{listed[:1].upper()}{listed[1:]} are {format_size(part)} of {format_size(whole)} allocated"


def _filled_tightly(situation: Situation) -> bool:
    facts = situation.facts
    holes, reserved, tried = facts.reserved_unallocated_bytes, facts.reserved_bytes, facts.tried_bytes
    if holes is None or reserved is None or tried is None or facts.total_bytes is None or has_room(situation):
        return False
    small = holes <= max(_TIGHT_BYTES, reserved // _TIGHT_SHARE) and tried <= _LARGEST_WEIGHT_BYTES
    return small and 2 * reserved > facts.total_bytes


def _in_forward(situation: Situation) -> bool:
    return situation.phase in (TrainingPhase.FORWARD, None)


def _message(situation: Situation) -> str:
    return "" if situation.event is None else situation.event.message.text
