"""Causes that only time tells: memory that grows step after step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from oomdoctor.results import Cause, CauseId, Confidence, TrainingPhase
from oomdoctor.units import format_size

if TYPE_CHECKING:
    from oomdoctor.diagnosis.situation import Situation
    from oomdoctor.results import GrowingLine, MemoryTrend

_MANY_STEPS: Final = 100  # a step that fitted so often ran out for another reason than its usual size
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
    done = situation.facts.step if situation.case.steps_done is None else situation.case.steps_done
    if situation.trend is None and done is not None and done >= _MANY_STEPS and situation.phase in _IN_STEP:
        text = f"It ran {done} steps before it ran out: memory may grow from step to step, or this batch was larger"
        return Cause(CauseId.LEAK_ACROSS_STEPS, Confidence.POSSIBLE, text)
    return None


def _growing_line(line: GrowingLine) -> str:
    where = "memory without a known line" if line.place is None else f"`{line.place.path}:{line.place.line}`"
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
    where = f"`{line.place.path}:{line.place.line}`"
    return f"; {format_size(line.allocated_bytes)} in {line.blocks} blocks were allocated at {where}"


def _growing_log(trend: MemoryTrend) -> str:
    return (
        f"Memory rose from {format_size(trend.first_bytes)} at step {trend.first_step} to "
        f"{format_size(trend.last_bytes)} at step {trend.last_step}, {format_size(trend.bytes_per_step)} a step, "
        f"over {trend.readings} readings"
    )
