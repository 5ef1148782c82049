"""Prove the cells of a frontier as the buckets of one training run, which batches of all their sizes share."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Final, TypeAlias

from oomdoctor.errors import NoAnswerError, UsageError
from oomdoctor.multi_card.workers import WorkerPool
from oomdoctor.option_values import one_of
from oomdoctor.results import Axis, Bucket, Buckets, Outcome
from oomdoctor.trial.probe import TrialsOfBuckets
from oomdoctor.trial.process import CancelToken

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from oomdoctor.progress import Progress
    from oomdoctor.request import ProbeRequest
    from oomdoctor.results import BucketFormat, FrontierCell

_Starter: TypeAlias = "Callable[[ProbeRequest], TrialsOfBuckets]"

_MOST_AXES: Final[Mapping[BucketFormat, int | None]] = {"nemo": 2, "lhotse": 1, "json": None}
"""Sizes by which a tool's buckets differ at most, as NeMo's of duration and text do."""

_MOST_LENGTHS: Final = 64
"""Lengths at which a budget is tried: a sampler with one meets all of them, and not only the listed ones."""

_MOST_BUDGETS: Final = 8
"""Budgets that are tried, each a tenth smaller: sizes that fit alone may fragment together."""


def check_buckets(request: ProbeRequest, form: BucketFormat, axes: Sequence[str], *, is_searched: bool) -> None:
    """See that the question is one for buckets.

    Raises:
        UsageError: It is not.
    """
    most = _MOST_AXES[one_of("--buckets", form, tuple(_MOST_AXES))]
    if request.command is not None:
        why, hint = "is for files, and a command is probed", "put model, batch and step into a file"
    elif request.variant.generation is not None:
        why, hint = "trains or evaluates on all buckets in turn, and generates nothing", "drop `--mode generate`"
    elif request.variant.evaluation is not None:
        why, hint = "trains on all buckets in turn, without an evaluation between", "drop `--with-eval`, or this"
    elif is_searched:
        why, hint = "has a micro-batch for each size, and a size is searched", "drop `--largest`, or this"
    elif not axes:
        why, hint = "needs the sizes of the buckets", "name them, as in `--over sequence_length=256,512,1024`"
    elif most is not None and len(axes) > most:
        why, hint = f"tells buckets by {most} of {len(axes)} sizes only", "ask for `json`, or vary fewer sizes"
    else:
        return
    raise UsageError(f"`--buckets {form}` {why}", hint=hint)


def find_buckets(
    request: ProbeRequest, form: BucketFormat, cells: Sequence[FrontierCell], progress: Progress
) -> Buckets:
    """Find the micro-batch of each cell with which one process trains on all of them in turn.

    Each begins with what its cell recommends. Where all together run out, the largest percentage of it that does not is
    searched for.

    Args:
        request: The question of one of the cells.
        form: The tool that reads them.
        cells: The cells, each of which fits.
        progress: Told of the trials.

    Raises:
        UsageError: A cell fits nothing, so that there is no bucket of its sizes.
        TargetError: The user's file is at fault.
        NoAnswerError: Not even a sample of each fits.
    """
    if missing := [cell for cell in cells if not cell.recommended]:
        sizes = ", ".join(f"{axis.name} {axis.size}" for axis in missing[0].sizes)
        raise UsageError(
            f"no micro-batch is recommended at {sizes}, so there is no bucket of it", hint="leave that size out"
        )
    alone = tuple(Bucket(cell.sizes, cell.recommended) for cell in cells)
    with WorkerPool(CancelToken()) as workers:
        return _proven(request, form, alone, partial(TrialsOfBuckets, progress=progress, start=workers.start))


def _proven(request: ProbeRequest, form: BucketFormat, alone: tuple[Bucket, ...], trials_of: _Starter) -> Buckets:
    with trials_of(_with(request, alone)) as together:
        found = _largest_percent(together)
    if found.percent == 0:
        raise NoAnswerError(
            f"a sample of each bucket runs out of memory where they take turns: {found.ran_out}",
            hint="leave the largest size out, or name a larger card",
        )
    percent, trials = found.percent, found.trials
    rows = tuple(replace(bucket, micro_batch=max(1, bucket.micro_batch * percent // 100)) for bucket in alone)
    budget, tried, why = _proven_budget(request, form, rows, trials_of)
    return Buckets(form, rows, percent, budget, trials + tried, found.returns, why, found.ran_out)


def prove_buckets(request: ProbeRequest, rows: tuple[Bucket, ...], progress: Progress) -> Buckets:
    """Return whether one process trains on buckets in turn, or with which percentage of their samples it does.

    Args:
        request: The question.
        rows: The buckets.
        progress: Told of the trials.

    Raises:
        UsageError: The question contradicts itself.
        TargetError: The user's file is at fault.
        NoAnswerError: No device, a crash, or a time limit.
    """
    with (
        WorkerPool(CancelToken()) as workers,
        TrialsOfBuckets(_with(request, rows), progress, workers.start) as together,
    ):
        found = _largest_percent(together)
    return Buckets("json", rows, found.percent, None, found.trials, found.returns, None, found.ran_out)


def _proven_budget(
    request: ProbeRequest, form: BucketFormat, rows: tuple[Bucket, ...], trials_of: _Starter
) -> tuple[int | None, int, str | None]:
    """Return the largest budget with which one process trains on all, the number of trials, or why there is none."""
    if form != "json" and any(len(bucket.sizes) > 1 for bucket in rows):
        return None, 0, f"{form}'s budget is of one size, and the buckets differ by {len(rows[0].sizes)}"
    least = max(map(_elements, rows))
    budget = min((bucket.micro_batch + 1) * _elements(bucket) - 1 for bucket in rows)
    lengths = _all_lengths(rows)
    trials = 0
    while budget >= least and trials < _MOST_BUDGETS:
        within = tuple(replace(bucket, micro_batch=budget // _elements(bucket)) for bucket in lengths)
        with trials_of(_with(request, within)) as together:
            trials += 1
            if together.run(100).outcome is Outcome.FITS:
                return budget, trials, None
        budget = budget * 9 // 10
    if trials:
        return None, trials, "one process ran out of memory with each that was tried"
    return None, 0, f"{budget:,} would suit the other sizes, and a sample of the largest is {least:,}"


def _all_lengths(rows: tuple[Bucket, ...]) -> tuple[Bucket, ...]:
    """Return the buckets of one size, with one of each length between that is a multiple of what all have in common.

    At most `_MOST_LENGTHS`, spread evenly over the range, besides those of the buckets; of several sizes only these.
    """
    if any(len(bucket.sizes) > 1 for bucket in rows):
        return rows
    name, listed = rows[0].sizes[0].name, [_elements(bucket) for bucket in rows]
    unit = math.gcd(*listed)
    step = unit * -(-(max(listed) - min(listed)) // (unit * _MOST_LENGTHS)) or unit
    between = set(range(min(listed), max(listed), step)) - {*listed}
    return (*rows, *(Bucket((Axis(name, length),), 1) for length in sorted(between)))


def _elements(bucket: Bucket) -> int:
    return math.prod(axis.size for axis in bucket.sizes)


def _with(request: ProbeRequest, buckets: tuple[Bucket, ...]) -> ProbeRequest:
    names = {axis.name for bucket in buckets for axis in bucket.sizes}
    given: tuple[Axis, ...] = tuple(axis for axis in request.variant.axes if axis.name not in names)
    return replace(request, variant=replace(request.variant, axes=given, buckets=buckets))


@dataclass(frozen=True, slots=True)
class _LargestPercent:
    """Largest percentage at which all fit together, its cache returns, the number of trials, and what the next met."""

    percent: int
    returns: int
    trials: int
    ran_out: str | None


def _largest_percent(together: TrialsOfBuckets) -> _LargestPercent:
    low, high, size, trials, returns, ran_out = 0, 101, 100, 0, 0, None
    while high - low > 1:
        trial = together.run(size)
        trials += 1
        if trial.outcome is Outcome.FITS:
            low, returns = size, trial.alloc_retries
        else:
            high, ran_out = size, (trial.error or "").partition(". ")[0]
        size = (low + high) // 2
    return _LargestPercent(low, returns, trials, ran_out)
