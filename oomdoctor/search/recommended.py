"""Find the recommended size: one that fits with memory to spare and never runs at its edge. Pure.

Whether a size is comfortable is not monotone, since the allocator's cache differs from size to size. So the size is
tested and not exact: it comes from the prediction, and is raised a little where that proved wrong.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from oomdoctor.results import Outcome, Trial
from oomdoctor.search.prediction import memory_line, unused_share

if TYPE_CHECKING:
    from collections.abc import Sequence

    from oomdoctor.search.bracket import PredictMax, SearchResult, TryBatch

# A proof this near to the predicted size is taken at once.
_NEAR = 0.97
# A size this much below one that turned out uncomfortable leaves memory unused, perhaps for nothing: it is raised by
# bisection, in so many trials, since no size would be exact anyway.
_GAP, _RAISES = 0.08, 2


def find_recommended(
    try_batch: TryBatch, *, search: SearchResult, allowed_bytes: int, predict_max: PredictMax | None = None
) -> int:
    """Find a size that fits into less memory and never runs at its edge.

    Args:
        try_batch: Runs one trial at a size, with `allowed_bytes`.
        search: How the search at full capacity ended.
        allowed_bytes: Bytes that PyTorch may take: the capacity less the headroom.
        predict_max: As for `find_maximum`, for a size that fits without the allocator giving back its cache.

    Returns:
        The largest size that was tested and fits into `allowed_bytes` without the allocator giving back its cache and
        without an OOM on the way; 0 when there is none. It is tested, not exact: the next size may fit as well.
    """
    known = list(search.trials)
    low = max((trial.micro_batch for trial in known if _is_comfortable(trial, allowed_bytes)), default=0)
    low, high, failures = max(low, search.smallest - 1), search.maximum + 1, 0
    predicted = None if predict_max is None else predict_max(low, high)
    while high - low > 1:
        size, predicted = predicted or _comfortable_size(known, allowed_bytes, high, failures), None
        if low >= _NEAR * size:
            break
        trial = try_batch(size)
        known.append(trial)
        if _is_comfortable(trial, allowed_bytes):
            low = size
            break
        high, failures = size, failures + 1
    if low < search.smallest:
        return 0
    return _raised(try_batch, low=low, high=high, allowed_bytes=allowed_bytes) if failures else low


def _raised(try_batch: TryBatch, *, low: int, high: int, allowed_bytes: int) -> int:
    """Return `low`, or a larger size that is as comfortable, below `high`, which is not."""
    for _ in range(_RAISES):
        if high - low <= max(1, _GAP * low):
            break
        middle = (low + high) // 2
        if _is_comfortable(try_batch(middle), allowed_bytes):
            low = middle
        else:
            high = middle
    return low


def revised(recommended: int, trials: Sequence[Trial], *, maximum: int, allowed_bytes: int) -> int:
    """Return the recommended size, or a larger one that trials after its search showed to be as good.

    Args:
        recommended: What `find_recommended` found.
        trials: All trials.
        maximum: Largest size that fits.
        allowed_bytes: The capacity less the headroom.
    """
    failed = [trial.micro_batch for trial in trials if trial.outcome is not Outcome.FITS]
    bound = min((size for size in failed if size > recommended), default=maximum + 1)
    sizes = [trial.micro_batch for trial in trials if _is_comfortable(trial, allowed_bytes)]
    return max((size for size in sizes if size <= maximum and size < bound), default=recommended)


def _is_comfortable(trial: Trial, allowed_bytes: int) -> bool:
    return (
        trial.outcome is Outcome.FITS
        and trial.alloc_retries == trial.evaluation_retries
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
