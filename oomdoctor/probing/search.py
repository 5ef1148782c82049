"""The exact largest micro-batch that fits, and one that fits with memory to spare, in as few trials as can be."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from oomdoctor.errors import UsageError
from oomdoctor.probing.bracket import Bracket, Foresee, Guess
from oomdoctor.probing.prediction import memory_line, unused_share
from oomdoctor.results import Outcome, Trial

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["SearchResult", "find_maximum", "find_recommended"]

TryBatch = Callable[[int], Trial]

# A proof this near to the predicted size is taken at once.
_NEAR = 0.97


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
        notes: What its reader should know: a refused size, memory or outcomes that do not grow with size.
        failed: A trial that failed for a reason other than memory, which leaves the search without an answer.
    """

    maximum: int
    successor: Trial | None
    limited_by: Literal["memory", "target", "limit"]
    smallest: int
    trials: tuple[Trial, ...]
    notes: tuple[str, ...] = ()
    failed: Trial | None = None


def find_maximum(  # noqa: PLR0913 - each is a fact of its own, and all but one are named by the caller
    try_batch: TryBatch,
    *,
    largest: int,
    capacity_bytes: int,
    smallest: int = 1,
    known: Sequence[Trial] = (),
    foresee: Foresee | None = None,
    guess: Guess | None = None,
) -> SearchResult:
    """Find the largest size that fits.

    Args:
        try_batch: Runs one trial at a size.
        largest: The per-device target; nothing above it is tried.
        capacity_bytes: Bytes that PyTorch may take during a trial.
        smallest: Smallest size to consider.
        known: Trials of this model that have been run already.
        foresee: Foretells the largest size that fits, between one that does (or `smallest - 1`) and one that does not
            (or `largest + 1`); None when it cannot. A hint: what it says is run like any other size.
        guess: Says the largest size that fits before any was run; None when it cannot. A hint as well, and one that
            goes before `foresee` until a trial speaks against it. It is asked again before each trial, since the
            capacity may have changed.

    Returns:
        The answer. With a monotone oracle it is exact; with any oracle it is a size that was run and fits, whose
        successor was run and does not.

    Raises:
        UsageError: The range is empty.
    """
    if not 1 <= smallest <= largest:
        raise UsageError(
            f"there is no micro-batch size from {smallest} to {largest}",
            hint="the smallest size must be 1 or more, and the per-device target no smaller than it",
        )
    bracket = Bracket(largest, capacity_bytes, smallest, foresee, guess)
    bracket.absorb(known)
    while bracket.is_open:
        bracket.record(try_batch(bracket.next_size()))
    return _result(bracket)


def _result(bracket: Bracket) -> SearchResult:
    successor = bracket.misses.get(bracket.high)
    limited_by: Literal["memory", "target", "limit"] = "target"
    if successor is not None:
        limited_by = "limit" if successor.outcome is Outcome.LIMIT else "memory"
    return SearchResult(
        maximum=bracket.low if bracket.low in bracket.fits else 0,
        successor=successor,
        limited_by=limited_by,
        smallest=bracket.smallest,
        trials=tuple(bracket.ran),
        notes=bracket.notes(),
        failed=bracket.failed,
    )


def find_recommended(
    try_batch: TryBatch, *, search: SearchResult, allowed_bytes: int, foresee: Foresee | None = None
) -> int:
    """Find a size that fits into less memory and never runs at its edge.

    Args:
        try_batch: Runs one trial at a size, with `allowed_bytes`.
        search: How the search at full capacity ended.
        allowed_bytes: Bytes that PyTorch may take: the capacity less the headroom.
        foresee: As for `find_maximum`, for a size that fits without the allocator giving back its cache.

    Returns:
        The largest size that was tested and fits into `allowed_bytes` without the allocator giving back its cache and
        without an OOM on the way; 0 when there is none. It is tested, not exact: the next size may fit as well.
    """
    known = list(search.trials)
    low = max((trial.micro_batch for trial in known if _is_comfortable(trial, allowed_bytes)), default=0)
    low, high, failures = max(low, search.smallest - 1), search.maximum + 1, 0
    foretold = None if foresee is None else foresee(low, high)
    while high - low > 1:
        size, foretold = foretold or _comfortable_size(known, allowed_bytes, high, failures), None
        if low >= _NEAR * size:
            break
        trial = try_batch(size)
        known.append(trial)
        if _is_comfortable(trial, allowed_bytes):
            return size
        high, failures = size, failures + 1
    return low if low >= search.smallest else 0


def _is_comfortable(trial: Trial, allowed_bytes: int) -> bool:
    return (
        trial.outcome is Outcome.FITS
        and not trial.alloc_retries
        and not trial.swallowed_ooms
        and trial.peak_reserved_bytes is not None
        and trial.peak_reserved_bytes <= allowed_bytes
    )


def _comfortable_size(known: Sequence[Trial], allowed_bytes: int, high: int, failures: int) -> int:
    """Return the size below `high` whose reserved memory is predicted to fill `allowed_bytes`."""
    # What failed is approached from below in growing steps, so that few trials end well: 6 %, 12 %, 25 %, a half.
    size = high - max(1, high >> max(1, 4 - failures))
    fits = sorted((trial for trial in known if trial.outcome is Outcome.FITS), key=lambda trial: trial.micro_batch)
    line = memory_line(fits)
    if line is not None:
        predicted = math.floor(line.size_at(allowed_bytes * (1 - unused_share(fits))))
        size = predicted if 0 < predicted < high else size
    return max(1, size)
