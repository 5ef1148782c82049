"""Windows of micro-batches that one run of a script recorded, and what is read off them. Pure."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import takewhile
from typing import TYPE_CHECKING, Final

from oomdoctor.errors import TargetError
from oomdoctor.request import ACCUMULATION, MICRO_BATCH
from oomdoctor.verification.sketches import common_scale
from oomdoctor.verification.sketches import numbers as _numbers

if TYPE_CHECKING:
    from collections.abc import Sequence

    from oomdoctor.agent.accumulation_messages import AccumulationEvent, AccumulationWindow

_SAME_RATE: Final = 1e-6
"""Relative difference of learning rates up to which they are the same."""
_CURVATURE: Final = 0.1


@dataclass(frozen=True, slots=True)
class Recording:
    """Windows of one run, in order; where the program ended, the last has no step."""

    windows: Sequence[AccumulationWindow]

    @classmethod
    def of(cls, windows: Sequence[AccumulationWindow]) -> Recording:
        """Return the windows up to the first whose numbers are not finite, or are none, as other code could send."""
        return cls(tuple(takewhile(_is_readable, windows)))

    @property
    def steps(self) -> list[AccumulationWindow]:
        """Windows that a step ended."""
        return [window for window in self.windows if window.optimizer is not None]

    @property
    def rest(self) -> AccumulationWindow | None:
        """The window after the last step; None where the run was ended before."""
        return next((window for window in self.windows if window.optimizer is None), None)


def _is_readable(window: AccumulationWindow) -> bool:
    sent = [window.gradient, window.weights, *(event.accumulated for event in backwards(window))]
    try:
        return window.norm is not None and all(map(_numbers, sent))
    except ValueError:
        return False


def backwards(window: AccumulationWindow) -> list[AccumulationEvent]:
    """Return the backward passes of a window."""
    return [event for event in window.events if event.kind == "backward"]


def data_backwards(window: AccumulationWindow) -> list[AccumulationEvent]:
    """Return the backward passes after a call of the model; all where none was called.

    That of a loss of kept outputs, as gradient caching has it, is of no micro-batch.
    """
    passes = backwards(window)
    return [event for event in passes if event.shape] or passes


def check_heeded(
    whole: AccumulationWindow, parts: AccumulationWindow, micro_batch: int, steps: int, tolerance: float
) -> None:
    """See that the placeholders made a difference: that the first backwards of both runs were not of the same batch.

    Inputs may be the same though batches differ, such as positions; gradients tell those apart.

    Raises:
        TargetError: The command ignores one, or both.
    """
    first, other = data_backwards(whole)[0], data_backwards(parts)[0]
    is_same_batch = bool(first.rows) and (first.rows, first.sizes) == (other.rows, other.sizes)
    if not is_same_batch or not common_scale(_numbers(other.accumulated), _numbers(first.accumulated), tolerance):
        return
    is_stepped_alike = len(backwards(whole)) == len(backwards(parts))
    ignored = f"`{MICRO_BATCH}` and `{ACCUMULATION}`" if is_stepped_alike else f"`{MICRO_BATCH}`"
    raise TargetError(
        f"the command ignores {ignored}: with the whole batch of {micro_batch * steps} and with micro-batches of "
        f"{micro_batch} the same batch of {sum(first.sizes)} reached the model first, so that nothing can be "
        "compared",
        hint="put each placeholder where the command's own size goes, and let the script use it; a configuration file "
        "may set it otherwise",
    )


def rows(window: AccumulationWindow) -> Counter[int]:
    """Return the samples of a window, each as its number and how often it came."""
    return Counter(row for event in backwards(window) for row in event.rows)


def early_clip(window: AccumulationWindow) -> AccumulationEvent | None:
    """Return a clipping that another backward of the window follows; None where there is none."""
    kinds = [event.kind for event in window.events]
    if "backward" not in kinds:
        return None
    between = window.events[kinds.index("backward") : len(kinds) - kinds[::-1].index("backward")]
    return next((event for event in between if event.kind == "clip"), None)


def prefix(first: Sequence[int], second: Sequence[int]) -> bool:
    """Return whether one order begins as the other does."""
    common = min(len(first), len(second))
    return common > 0 and tuple(first[:common]) == tuple(second[:common])


def rates_of_second_step(
    whole: Sequence[AccumulationWindow], parts: Sequence[AccumulationWindow]
) -> tuple[float, float] | None:
    """Return the second step's learning rates, asked and found, where a count of micro-batches decides the found one.

    A rate that follows the progress of training is between those of the whole batch's second and third step: it may be
    read at the last micro-batch. None where it is, or where too few steps were seen.
    """
    if len(whole) < 3 or len(parts) < 2 or not all(window.rates for window in (*whole[:3], parts[1])):  # noqa: PLR2004
        return None
    asked, found, following = whole[1].rates[0], parts[1].rates[0], whole[2].rates[0]
    room = _SAME_RATE * max(map(abs, (asked, found, following))) + _CURVATURE * abs(following - asked)
    is_between = min(asked, following) - room <= found <= max(asked, following) + room
    return None if is_between else (asked, found)
