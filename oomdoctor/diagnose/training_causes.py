"""Causes in the training step: batch, model, optimizer, checkpoint, and memory that grows."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from oomdoctor.diagnose.device_causes import asks_for_more_than_all, has_free_memory
from oomdoctor.diagnose.evidence import at, at_batch, held_by_process, mostly
from oomdoctor.results import Category, Cause, CauseId, Confidence, TrainingPhase
from oomdoctor.units import GIB, MIB, format_size

if TYPE_CHECKING:
    from oomdoctor.diagnose.evidence import Situation


# Weights arrive one by one and leave hardly a hole; activations and their temporaries leave many.
_TIGHT_SHARE: Final = 50
_TIGHT_BYTES: Final = 32 * MIB
_LARGEST_WEIGHT_BYTES: Final = GIB // 2
_MOSTLY: Final = 0.5
_GOOD_PART: Final = 4  # one part in so many
_LOADED: Final = re.compile(r"torch/(?:serialization|_utils|storage)\.py|safetensors")

GROWS_WITH_THE_BATCH: Final = (Category.ACTIVATIONS, Category.INPUT, Category.WORKSPACE)
"""What grows with the batch: gradients of activations and temporaries are counted as workspace."""

_STATE_IS_MADE: Final = re.compile(r"\bstate\[.*\] = |zeros_like|full_like|torch\.clone\(grad")
_OPTIMIZES: Final = re.compile(r"deepspeed|(?:^|/|\b)optim|\bzero\b|fairscale", re.IGNORECASE)
_LIKE_SHARE: Final = 10  # two sizes are alike that differ by less than one part in so many
_MAKES_STATE: Final = frozenset({"_init_group", "init_state", "_init_state", "state_init"})
_STEP_WORDS: Final = {
    TrainingPhase.FORWARD: "in the forward pass",
    TrainingPhase.BACKWARD: "in the backward pass",
    TrainingPhase.BATCH_TO_DEVICE: "while the batch was copied to the device",
    TrainingPhase.EVALUATION: "in evaluation",
}


def model_too_large(situation: Situation) -> Cause | None:
    """The weights alone fill the device."""
    if not situation.on_gpu:
        return None
    if situation.phase is TrainingPhase.MODEL_TO_DEVICE:
        text = f"It ran out while the model was being moved to the device, before any step{held_by_process(situation)}"
        return Cause(CauseId.MODEL_TOO_LARGE, Confidence.LIKELY, text)
    if situation.handle_refused:
        text = "cuBLAS makes its handle at the first matrix product, and found the device full by then"
        return Cause(CauseId.MODEL_TOO_LARGE, Confidence.POSSIBLE, text)
    if situation.share(Category.WEIGHTS) > _MOSTLY and situation.phase is not TrainingPhase.CHECKPOINT_LOAD:
        truncated = situation.snapshot is not None and situation.snapshot.truncated
        confidence = Confidence.POSSIBLE if truncated and not situation.case.has_reports else Confidence.LIKELY
        return Cause(CauseId.MODEL_TOO_LARGE, confidence, mostly(situation, Category.WEIGHTS))
    if (
        situation.phase is None
        and situation.snapshot is None
        and not _has_trained(situation)
        and _filled_tightly(situation)
    ):
        others = held_by_process(situation)
        text = f"The device is full and hardly any reserved memory is unused, as when weights fill it{others}"
        return Cause(CauseId.MODEL_TOO_LARGE, Confidence.POSSIBLE, text)
    return None


def _has_trained(situation: Situation) -> bool:
    return (situation.case.steps_done or situation.facts.step or 0) > 0


def optimizer_state(situation: Situation) -> Cause | None:
    """It ran out in the optimizer's step, where its state and its temporaries come into being."""
    if not situation.on_gpu:
        return None
    if situation.phase is not TrainingPhase.OPTIMIZER_STEP:
        return _copy_of_weights(situation)
    first = situation.case.steps_done == 0 or (situation.case.steps_done is None and situation.facts.step in (0, 1))
    if first:
        text = (
            f"It ran out in the optimizer's first step, which creates the optimizer's state{held_by_process(situation)}"
        )
        return Cause(CauseId.OPTIMIZER_STATE, Confidence.CERTAIN, text)
    if makes_state(situation):
        text = f"The line that ran out creates the optimizer's state{held_by_process(situation)}"
        return Cause(CauseId.OPTIMIZER_STATE, Confidence.CERTAIN, text)
    text = f"It ran out in the optimizer's step{held_by_process(situation)}"
    return Cause(CauseId.OPTIMIZER_STATE, Confidence.LIKELY, text)


def _copy_of_weights(situation: Situation) -> Cause | None:
    """A request of the size of all that is allocated, under an optimizer or DeepSpeed, is its copy of the weights."""
    tried, allocated = situation.facts.tried_bytes, situation.facts.allocated_bytes
    frames = () if situation.event is None else situation.event.frames
    under = any(_OPTIMIZES.search(f"{frame.path} {frame.code or ''}") for frame in frames)
    if tried is None or not allocated or abs(tried - allocated) * _LIKE_SHARE > allocated or not under:
        return None
    text = f"{format_size(tried)} were asked for, as much as is allocated: an optimizer's copy of all weights"
    return Cause(CauseId.OPTIMIZER_STATE, Confidence.LIKELY, text)


def makes_state(situation: Situation) -> bool:
    """Return whether the line that ran out creates the optimizer's state."""
    frames = () if situation.event is None else situation.event.frames
    return any(frame.function in _MAKES_STATE for frame in frames) or bool(_STATE_IS_MADE.search(situation.code))


def checkpoint_load(situation: Situation) -> Cause | None:
    """A checkpoint was being loaded onto the device, beside what is there already, or has stayed there."""
    if not situation.on_gpu:
        return None
    if situation.phase is not TrainingPhase.CHECKPOINT_LOAD:
        return _checkpoint_alive(situation)
    numbers = held_by_process(situation)
    text = f"It ran out while a checkpoint was being loaded onto the device, beside the memory in use{numbers}"
    return Cause(CauseId.CHECKPOINT_LOAD, Confidence.LIKELY, text)


def _checkpoint_alive(situation: Situation) -> Cause | None:
    if situation.snapshot is None:
        return None
    loaded = [one for one in situation.snapshot.largest if one.innermost and _LOADED.search(one.innermost)]
    alive = sum(one.size_bytes * one.blocks for one in loaded)
    if alive * _GOOD_PART < situation.snapshot.end.allocated_bytes or not loaded:
        return None
    place = loaded[0].place
    where = "" if place is None else f" at {at(place)}"
    text = f"At least {format_size(alive)} of live memory were loaded from a file{where}, and are no part of the model"
    return Cause(CauseId.CHECKPOINT_LOAD, Confidence.LIKELY, text)


def missing_no_grad(situation: Situation) -> Cause | None:
    """Evaluation keeps what only training needs."""
    if situation.phase is not TrainingPhase.EVALUATION or not situation.on_gpu or situation.gradients_off:
        return None
    trained = _has_trained(situation)
    before = "after training steps that fitted, " if trained else ""
    text = f"It ran out in evaluation, {before}and the traceback has no `no_grad` or `inference_mode`"
    return Cause(
        CauseId.MISSING_NO_GRAD, Confidence.LIKELY if trained or situation.leaks else Confidence.POSSIBLE, text
    )


def batch_named_in_code(situation: Situation) -> Cause | None:
    """The line that ran out names its batch size: whatever the numbers are, that is the first thing to change."""
    line, size = situation.facts.user_line, situation.batch_size
    if line is None or line.code is None or size is None or size == 1 or str(size) not in line.code:
        return None
    if not situation.on_gpu or has_free_memory(situation) or situation.phase not in (*_STEP_WORDS, None):
        return None
    return _batch(Confidence.LIKELY, f"The line that ran out asks for batch size {size}{held_by_process(situation)}")


def batch_too_large(situation: Situation) -> Cause | None:
    """Activations and whatever else grows with the batch do not fit."""
    if _cannot_be_the_batch(situation) or batch_named_in_code(situation) is not None:
        return None
    if situation.leaks:
        # What stayed from earlier steps cannot be told from what this one needs, so that no share is claimed.
        return _batch(Confidence.POSSIBLE, f"A smaller batch would leak more slowly{held_by_process(situation)}")
    facts = situation.facts
    fills = None in (facts.allocated_bytes, facts.total_bytes) or not (
        (facts.allocated_bytes or 0) * _GOOD_PART < (facts.total_bytes or 0)
    )
    if situation.share(*GROWS_WITH_THE_BATCH) > _MOSTLY and fills:
        where = "" if situation.phase not in _STEP_WORDS else f"It ran out {_STEP_WORDS[situation.phase]}. "
        return _batch(Confidence.LIKELY, where + mostly(situation, *GROWS_WITH_THE_BATCH))
    if situation.phase in _STEP_WORDS:
        where = _STEP_WORDS[situation.phase]
        return _batch(
            _confidence_in_step(situation), f"It ran out {where}{at_batch(situation)}{held_by_process(situation)}"
        )
    if situation.phase is not None or (facts.allocated_bytes is None and situation.batch_size is None):
        return None
    confidence = Confidence.LIKELY if (situation.batch_size or 0) > 1 else Confidence.POSSIBLE
    return _batch(confidence, f"The batch does not fit on the device{at_batch(situation)}{held_by_process(situation)}")


def _cannot_be_the_batch(situation: Situation) -> bool:
    if not situation.on_gpu or has_free_memory(situation) or asks_for_more_than_all(situation):
        return True
    return situation.handle_refused or situation.facts.allocated_bytes == 0


def _confidence_in_step(situation: Situation) -> Confidence:
    if situation.batch_size == 1:
        return Confidence.POSSIBLE  # one sample cannot be halved: its length or its resolution is what is large
    if situation.phase is TrainingPhase.EVALUATION and not situation.gradients_off:
        return Confidence.POSSIBLE
    return Confidence.LIKELY


def _batch(confidence: Confidence, evidence: str) -> Cause:
    return Cause(CauseId.BATCH_TOO_LARGE, confidence, evidence)


def _filled_tightly(situation: Situation) -> bool:
    facts = situation.facts
    holes, reserved, tried = facts.reserved_unallocated_bytes, facts.reserved_bytes, facts.tried_bytes
    if holes is None or reserved is None or tried is None or facts.total_bytes is None or has_free_memory(situation):
        return False
    small = holes <= max(_TIGHT_BYTES, reserved // _TIGHT_SHARE) and tried <= _LARGEST_WEIGHT_BYTES
    return small and 2 * reserved > facts.total_bytes


_MANY_STEPS: Final = 100  # a step that fitted so often ran out for another reason than its usual size
_MANY_BLOCKS: Final = 8
_GROWN_PART: Final = 4  # one part in so many
_IN_STEP: Final = (TrainingPhase.FORWARD, TrainingPhase.BACKWARD)


def leak_across_steps(situation: Situation) -> Cause | None:
    """Memory that should be freed at the end of a step stays alive."""
    if not situation.on_gpu and situation.event is not None:
        return None
    if situation.snapshot is not None and situation.snapshot.growing:
        line = situation.snapshot.growing[0]
        where = "an unknown line" if line.place is None else at(line.place)
        first, last = _in_blocks(line.first_bytes, line.first_blocks), _in_blocks(line.last_bytes, line.last_blocks)
        text = f"Memory allocated at {where} grew from {first} to {last} and was not freed between steps"
        return Cause(CauseId.LEAK_ACROSS_STEPS, Confidence.LIKELY, text)
    if situation.trend is not None and situation.trend.growing:
        trend = situation.trend
        text = (
            f"Memory rose from {format_size(trend.first_bytes)} at step {trend.first_step} to "
            f"{format_size(trend.last_bytes)} at step {trend.last_step}, {format_size(trend.bytes_per_step)} a step, "
            f"over {trend.readings} readings{_holding_most(situation)}"
        )
        return Cause(CauseId.LEAK_ACROSS_STEPS, Confidence.LIKELY, text)
    if (kept := _kept_by_a_loop(situation)) is not None:
        return Cause(CauseId.LEAK_ACROSS_STEPS, Confidence.POSSIBLE, kept)
    done = situation.facts.step if situation.case.steps_done is None else situation.case.steps_done
    if situation.trend is None and done is not None and done >= _MANY_STEPS and situation.phase in _IN_STEP:
        text = f"It ran {done} steps before it ran out: memory may grow from step to step, or this batch was larger"
        return Cause(CauseId.LEAK_ACROSS_STEPS, Confidence.POSSIBLE, text)
    return None


def _kept_by_a_loop(situation: Situation) -> str | None:
    """A line of the user's that took memory by itself again and again, all of which is alive.

    A forward pass does that too, but in its layers; what the user's own line takes directly it takes once a round.
    """
    if situation.snapshot is None:
        return None
    for one in situation.snapshot.largest:
        place, frame = one.place, one.innermost or ""
        direct = place and frame.startswith(f"{place.function} (") and frame.endswith(f":{place.line})")
        large = one.blocks * one.size_bytes * _GROWN_PART >= situation.snapshot.end.allocated_bytes
        if place is not None and direct and large and one.blocks >= _MANY_BLOCKS:
            size = format_size(one.size_bytes)
            return f"{at(place)} took {one.blocks} blocks of {size}, and all of them are still alive"
    return None


def _in_blocks(size_bytes: int, blocks: int) -> str:
    return f"{format_size(size_bytes)} ({blocks} block{'' if blocks == 1 else 's'})"


def _holding_most(situation: Situation) -> str:
    """The line that holds most of what is alive, where a snapshot knows one."""
    if situation.snapshot is None or not situation.snapshot.end.lines:
        return ""
    line = situation.snapshot.end.lines[0]
    if line.place is None or 2 * line.allocated_bytes < situation.snapshot.end.allocated_bytes:
        return ""
    return f"; {format_size(line.allocated_bytes)} in {line.blocks} blocks were allocated at {at(line.place)}"
