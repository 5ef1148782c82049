"""The exact largest micro-batch that fits, in as few trials as its memory allows and never more than bisection needs.

The search holds a bracket: a size that fits and a size that does not. Each next size comes from the prediction, kept
inside a window from which bisection can still end in time.

Why it ends within `2 + ceil(log2 N)` trials, N sizes being searched, whatever the trials answer: the answer is one of
`N + 1` (none of the sizes, or one of them), which is at most `2 ** (limit - 1)`, with `limit` the bound above. Call
`low` the largest size that fits and `high` the smallest that does not; `high - low` answers are left. Hold that, with
`k` trials left, `high - low <= 2 ** k`. It holds at the start. A trial at `size` leaves `high - size` answers where it
fits and `size - low` where it does not, so it keeps the invariant exactly where `high - 2 ** (k - 1) <= size <=
low + 2 ** (k - 1)`. That window is never empty (the middle is in it), and every size is taken from it. With no trial
left one answer is left. Rounding N + 1 up to a power of two leaves one trial of slack and a part of another: the first
two sizes are free, and the prediction earns more freedom as soon as it brackets better than halving does.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

from oomdoctor.errors import UsageError
from oomdoctor.probing.prediction import predict, step_peak
from oomdoctor.results import Outcome

if TYPE_CHECKING:
    from collections.abc import Sequence

    from oomdoctor.results import Trial

    TryBatch = Callable[[int], Trial]

# With nothing known a sample is taken to need this much: the first trial must fit often enough to measure growth, and be
# large enough that growth stands out from what is there at any size.
_FIRST_GUESS_BYTES = 512 << 20
_FIRST_GUESS_MOST = 64
# Where nothing has failed yet, a size that fails says more than one that fits: it bounds the range from the other side.
_LEAN = 0.35


@dataclass(frozen=True, slots=True)
class SearchResult:
    """What a search found.

    Attributes:
        maximum: Largest size that was run and fits; 0 when none does.
        successor: The trial at the next size, which did not fit; None where `largest` fits.
        limited_by: `memory` (the next size ran out), `target` (`largest` fits), `limit` (the next size met a limit that
            is not memory).
        smallest: Smallest size that the model was not seen to refuse.
        trials: The trials that this search ran, in order.
        notes: What its reader should know: refused sizes, memory that does not grow.
        failed: A trial that failed for a reason other than memory, which leaves the search without an answer.
    """

    maximum: int
    successor: Trial | None
    limited_by: Literal["memory", "target", "limit"]
    smallest: int
    trials: tuple[Trial, ...]
    notes: tuple[str, ...] = ()
    failed: Trial | None = None


def trial_limit(largest: int, smallest: int = 1) -> int:
    """Return the most trials that a search from `smallest` to `largest` can take."""
    return 2 + math.ceil(math.log2(largest - smallest + 1))


def find_maximum(
    try_batch: TryBatch,
    *,
    largest: int,
    capacity_bytes: int,
    smallest: int = 1,
    known: Sequence[Trial] = (),
) -> SearchResult:
    """Find the largest size that fits.

    Args:
        try_batch: Runs one trial at a size.
        largest: The per-device target; nothing above it is tried.
        capacity_bytes: Bytes that PyTorch may take during a trial.
        smallest: Smallest size to consider.
        known: Trials of this model that have been run already.

    Returns:
        The answer. With a monotone oracle it is exact; with any oracle it is a size that was run and fits, whose
        successor was run and does not.

    Raises:
        UsageError: The range is empty.
    """
    if not 1 <= smallest <= largest:
        raise UsageError(f"no micro-batch size from {smallest} to {largest} to search")
    search = _Search(largest, capacity_bytes, smallest, trial_limit(largest, smallest))
    search.absorb(known)
    while search.failed is None and search.high - search.low > 1:
        search.record(try_batch(search.next_size()))
    return search.result()


@dataclass(slots=True)
class _Search:
    """The bracket, and what has been seen."""

    largest: int
    capacity_bytes: int
    smallest: int
    limit: int
    low: int = field(init=False)  # the largest size that fits; smallest - 1 stands for none
    high: int = field(init=False)  # the smallest above it that does not; largest + 1 is never run
    fits: dict[int, Trial] = field(default_factory=dict)
    misses: dict[int, Trial] = field(default_factory=dict)
    ran: list[Trial] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    failed: Trial | None = None

    def __post_init__(self) -> None:
        self.low, self.high = self.smallest - 1, self.largest + 1

    def absorb(self, known: Sequence[Trial]) -> None:
        """Take over known trials that are proof at this capacity."""
        for trial in known:
            if trial.outcome is Outcome.FITS and trial.allowed_bytes <= self.capacity_bytes:
                self.fits[trial.micro_batch] = trial
            elif trial.outcome is Outcome.LIMIT or (
                trial.outcome is Outcome.OOM and trial.allowed_bytes >= self.capacity_bytes
            ):
                self.misses[trial.micro_batch] = trial
        inside = [size for size in self.fits if self.smallest <= size <= self.largest]
        self.low = max(inside, default=self.low)
        above = [size for size in self.misses if self.low < size <= self.largest]
        self.high = min(above, default=self.high)

    def record(self, trial: Trial) -> None:
        """Narrow the bracket by a trial that was run."""
        size = trial.micro_batch
        self.ran.append(trial)
        if trial.outcome is Outcome.FITS:
            self.fits[size], self.low = trial, size
        elif trial.outcome is not Outcome.FAILED:
            self.misses[size], self.high = trial, size
        elif size == self.smallest == 1 and self.largest > 1 and self.low < size:
            self.smallest, self.low = 2, 1
            self.notes.append(f"The model refuses micro-batch size 1, so the search begins at 2: {_reason(trial)}")
        else:
            self.failed = trial

    def next_size(self) -> int:
        """Choose the size to run: the prediction's, where bisection can still end in time from it."""
        # `high - low` answers with one trial less: see the invariant above.
        reach = 2 ** max(0, self.limit - len(self.ran) - 1)
        first = max(self.low + 1, self.high - reach)
        last = min(self.high - 1, self.low + reach)
        return min(max(self._wanted_size(), first), last)

    def _wanted_size(self) -> int:
        prediction = predict((*self.fits.values(), *self.misses.values()), self.capacity_bytes)
        bounded = self.high <= self.largest
        if prediction is None:
            return self._blind_size(bounded=bounded)
        if not bounded and prediction.centre >= self.largest:
            return self.largest
        if not bounded:
            return math.ceil(prediction.ceiling)
        spread = prediction.spread * 2 ** max(0, self._streak() - 1)
        # A second size that fits makes the line exact, so the first guess at it leans to the side that fits.
        share = 0.5 if len(self.fits) > 1 or prediction.spread < 0.02 * prediction.centre else _LEAN
        return round(replace(prediction, spread=spread).quantile(self.low, self.high, share))

    def _streak(self) -> int:
        """Return how many trials in a row, the last included, ended the same way."""
        last = self.ran[-1].outcome if self.ran else None
        return next((i for i, trial in enumerate(reversed(self.ran)) if trial.outcome is not last), len(self.ran))

    def _blind_size(self, *, bounded: bool) -> int:
        if self.fits:
            return (self.low + self.high) // 2
        if bounded:
            return self.low + max(1, (self.high - self.low) // 8)
        guess = max(
            self.smallest,
            min(_FIRST_GUESS_MOST, 2 ** round(math.log2(max(1, self.capacity_bytes / _FIRST_GUESS_BYTES)))),
        )
        return self.largest if self.largest <= 2 * guess else guess

    def result(self) -> SearchResult:
        """Return the answer."""
        successor = self.misses.get(self.high)
        limited_by: Literal["memory", "target", "limit"] = "target"
        if successor is not None:
            limited_by = "limit" if successor.outcome is Outcome.LIMIT else "memory"
        maximum = self.low if self.low in self.fits else 0
        return SearchResult(
            maximum,
            successor,
            limited_by,
            self.smallest,
            tuple(self.ran),
            (*self.notes, *self._oddities()),
            self.failed,
        )

    def _oddities(self) -> list[str]:
        return []


def _reason(trial: Trial) -> str:
    lines = (trial.error or "").strip().splitlines()
    return lines[-1] if lines else "it gave no reason"


# Trials that a recommended size may cost before the largest known proof is taken instead.
_RECOMMENDED_TRIALS = 3


def find_recommended(try_batch: TryBatch, *, search: SearchResult, allowed_bytes: int) -> int:
    """Find a size that fits into less memory and never runs at its edge.

    Args:
        try_batch: Runs one trial at a size, with `allowed_bytes`.
        search: How the search at full capacity ended.
        allowed_bytes: Bytes that PyTorch may take: the capacity less the headroom.

    Returns:
        The largest size that was tested and fits into `allowed_bytes` without the allocator giving back its cache and
        without an OOM on the way; 0 when there is none. It is tested, not exact: the next size may fit as well.
    """
    known = list(search.trials)
    low = max((trial.micro_batch for trial in known if _is_comfortable(trial, allowed_bytes)), default=0)
    high = search.maximum + 1
    for spent in range(search.maximum.bit_length() + _RECOMMENDED_TRIALS):
        size = _comfortable_size(known, allowed_bytes, low, high)
        if high - low <= 1 or (low and (spent >= _RECOMMENDED_TRIALS or size <= low)):
            break
        trial = try_batch(size)
        known.append(trial)
        if _is_comfortable(trial, allowed_bytes):
            return size
        high = size
    return low


def _is_comfortable(trial: Trial, allowed_bytes: int) -> bool:
    """Whether a trial proves that its size fits into `allowed_bytes` with nothing given back on the way."""
    return (
        trial.outcome is Outcome.FITS
        and not trial.alloc_retries
        and not trial.swallowed_ooms
        and trial.peak_reserved_bytes is not None
        and trial.peak_reserved_bytes <= allowed_bytes
    )


def _comfortable_size(known: Sequence[Trial], allowed_bytes: int, low: int, high: int) -> int:
    return max(low + 1, min(high - 1, (low + high) // 2))
