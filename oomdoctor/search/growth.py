"""Growth of memory from step to step: whether it goes on, as a leak does, or ends, as a queue's of fixed length does.

What is judged is the memory at the end of each optimizer step. The first step makes the optimizer's state and is left
out. Pure: the steps themselves are run by `oomdoctor.trial`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from oomdoctor.units import format_size

if TYPE_CHECKING:
    from collections.abc import Sequence

PLAIN_ITERATIONS: Final = 2
"""Optimizer steps of a trial: the first creates the optimizer's state, and the second has the peak of training."""

MOST_ITERATIONS: Final = 64
"""Steps of a command after which growth that has not ended is taken for a leak."""

LONGEST_GROWTH: Final = 520
"""The same of a file, whose steps cost less, at its first size: queues have up to some hundred entries."""

ANSWER_ITERATIONS: Final = 8
"""Steps that are run at the answer where memory goes on growing, and at each size where the allocator gave back its
cache: which blocks are in each other's way is another matter in each step then."""

_STEADY: Final = 3
"""Steps in a row that have to end alike for growth to be over."""


@dataclass(frozen=True, slots=True)
class StepGrowth:
    """Growth of memory over the steps of one trial.

    Attributes:
        goes_on: Whether it had not ended when the trial did.
        iterations: Optimizer steps that a trial needs to show the peak of training; 2 where more would show nothing.
        bytes_a_step: Bytes by which each step leaves more behind; 0 where it has ended.
        holder: What holds the memory, in words; None where that could not be found.
        micro_batch: Size at which it was seen.
        dies_in_step: Step in which that size runs out of memory; None where it does not go on, or was not tried.
        was_seen_to_die: Whether it was run; else this is the step after which no memory is left to be handed out, and
            the allocator fails before it where what is free lies in pieces.
    """

    goes_on: bool
    iterations: int
    bytes_a_step: int
    holder: str | None
    micro_batch: int
    dies_in_step: int | None = None
    was_seen_to_die: bool = False

    def warning(self, step: str = "step") -> str | None:
        """Return a sentence for the result; None for what stays the same from the second step on.

        Args:
            step: What a step is: `step` for one of the optimizer, or `batch` in an evaluation.
        """
        each = "optimizer step" if step == "step" else step
        held = f"; {self.holder} holds it" if self.holder else ""
        if self.goes_on:
            latest = "" if self.was_seen_to_die else " at the latest"
            died = f", and runs out of memory in {step} {self.dies_in_step}{latest}" if self.dies_in_step else ""
            kept = f"micro-batch {self.micro_batch} keeps {format_size(self.bytes_a_step)} more with each {each}"
            return f"a leak: {kept}{died}{held}"
        if self.iterations > PLAIN_ITERATIONS:
            steps = self.iterations - 1
            return f"growth ends in {each} {steps}, so each trial took {self.iterations} of them{held}"
        return None


def is_settled(ends: Sequence[int]) -> bool:
    """Return whether the last steps ended with the same bytes, the first step not counted."""
    last = ends[1:][-_STEADY:]
    return len(last) == _STEADY and len(set(last)) == 1


def growth_of(ends: Sequence[int], micro_batch: int, holder: str | None, *, ran_out: bool) -> StepGrowth:
    """Judge how memory grew over the steps of a trial.

    Args:
        ends: Bytes in live tensors at the end of each step.
        micro_batch: Its size.
        holder: What holds the memory that is left, in words.
        ran_out: Whether the trial ended because memory did.
    """
    later = list(ends[1:])
    rises = [after - before for before, after in pairwise(later)]
    has_grown = bool(later) and max(later) > later[0] and all(rise >= 0 for rise in rises)
    if not has_grown:
        return StepGrowth(False, PLAIN_ITERATIONS, 0, holder, micro_batch)  # noqa: FBT003 - named by its field
    if ran_out or not is_settled(ends):
        slope = (later[-1] - later[0]) // len(rises)
        return StepGrowth(True, PLAIN_ITERATIONS, slope, holder, micro_batch)  # noqa: FBT003 - as above
    reached = 2 + later.index(max(later))  # steps count from 1, and the first is left out
    return StepGrowth(False, reached + 1, 0, holder, micro_batch)  # noqa: FBT003 - as above


def last_step(ends: Sequence[int], bytes_a_step: int, room_bytes: int, *, ran_out: bool) -> int | None:
    """Return the step in which memory runs out, at the latest; None where it would not.

    Args:
        ends: Bytes in live tensors at the end of each step that was run.
        bytes_a_step: Bytes by which each leaves more behind.
        room_bytes: Bytes that were left at the peak of the last.
        ran_out: Whether the step after the last ran out.
    """
    if ran_out:
        return len(ends) + 1
    return None if bytes_a_step <= 0 else len(ends) + 1 + room_bytes // bytes_a_step


def outlasted(
    growth: StepGrowth, ends: Sequence[int], micro_batch: int, room_bytes: int, *, ran_out: bool
) -> StepGrowth:
    """Return growth that goes on as it shows at another size, with the step in which that runs out.

    Args:
        growth: It, as it was judged at the first size.
        ends: Bytes in live tensors at the end of each step at the other size.
        micro_batch: The other size.
        room_bytes: As for `last_step`.
        ran_out: As for `last_step`.
    """
    seen = growth_of(ends, micro_batch, growth.holder, ran_out=True)
    bytes_a_step = seen.bytes_a_step or growth.bytes_a_step * micro_batch // growth.micro_batch
    dies_in_step = last_step(ends, bytes_a_step, room_bytes, ran_out=ran_out)
    return replace(
        growth,
        micro_batch=micro_batch,
        bytes_a_step=bytes_a_step,
        dies_in_step=dies_in_step,
        was_seen_to_die=ran_out,
    )
