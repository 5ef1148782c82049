"""Causes that only time tells: memory that grows step after step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from oomdoctor.diagnosis.causes.phrases import at
from oomdoctor.results import Cause, CauseId, Confidence, TrainingPhase
from oomdoctor.units import format_size

if TYPE_CHECKING:
    from oomdoctor.diagnosis.situation import Situation
    from oomdoctor.results import GrowingLine, MemoryTrend, SourceLine

_MANY_STEPS: Final = 100  # a step that fitted so often ran out for another reason than its usual size
_MANY_BLOCKS: Final = 8
_GOOD_PART: Final = 4  # one part in so many
_IN_STEP: Final = (TrainingPhase.FORWARD, TrainingPhase.BACKWARD)


def leak_across_steps(situation: Situation) -> Cause | None:
    """Memory that should have gone at the end of a step stays."""
    if not situation.on_gpu and situation.event is not None:
        return None
    if situation.snapshot is not None and situation.snapshot.growing:
        return Cause(CauseId.LEAK_ACROSS_STEPS, Confidence.LIKELY, _growing_line(situation.snapshot.growing[0]))
    if situation.trend is not None and situation.trend.growing:
        text = _growing_log(situation.trend) + _holding_most(situation)
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
        direct = one.place is not None and one.innermost is not None and _is_own_frame(one.innermost, one.place)
        large = one.blocks * one.size_bytes * _GOOD_PART >= situation.snapshot.end.allocated_bytes
        if one.place is not None and direct and large and one.blocks >= _MANY_BLOCKS:
            size = format_size(one.size_bytes)
            return f"{at(one.place)} took {one.blocks} blocks of {size}, and all of them are still alive"
    return None


def _is_own_frame(innermost: str, place: SourceLine) -> bool:
    return innermost.startswith(f"{place.function} (") and innermost.endswith(f":{place.line})")


def _growing_line(line: GrowingLine) -> str:
    where = "memory without a known line" if line.place is None else at(line.place)
    return (
        f"What {where} allocated grew from {format_size(line.first_bytes)} (blocks: {line.first_blocks}) to "
        f"{format_size(line.last_bytes)} (blocks: {line.last_blocks}) and was not freed between steps"
    )


def _holding_most(situation: Situation) -> str:
    """The line that holds most of what is alive, where a snapshot knows one."""
    if situation.snapshot is None or not situation.snapshot.end.lines:
        return ""
    line = situation.snapshot.end.lines[0]
    if line.place is None or 2 * line.allocated_bytes < situation.snapshot.end.allocated_bytes:
        return ""
    return f"; {format_size(line.allocated_bytes)} in {line.blocks} blocks were allocated at {at(line.place)}"


def _growing_log(trend: MemoryTrend) -> str:
    return (
        f"Memory rose from {format_size(trend.first_bytes)} at step {trend.first_step} to "
        f"{format_size(trend.last_bytes)} at step {trend.last_step}, {format_size(trend.bytes_per_step)} a step, "
        f"over {trend.readings} readings"
    )
