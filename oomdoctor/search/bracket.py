"""Find the exact largest micro-batch that fits, and one that fits with memory to spare, in as few trials as can be.

Each size comes from the prediction, kept inside a window from which bisection can still end in time.

Why it ends within `2 + ceil(log2 N)` trials, N sizes being searched, whatever the trials answer: one of N + 1 answers
is right (none of the sizes, or one of them), which is at most `2 ** (limit - 1)`, `limit` being that bound. With `low`
the largest size that fits and `high` the smallest above it that does not, `high - low` answers are left. Hold that,
with `k` trials left, `high - low <= 2 ** k`; it holds at the start. A trial at `size` leaves `high - size` answers
where it fits and `size - low` where it does not, so the invariant survives either way exactly where
`high - 2 ** (k - 1) <= size <= low + 2 ** (k - 1)`. The middle of the bracket is in that window, so it is never empty,
and every size is taken from it. With no trial left, one answer is left. A refused size 1 only removes an answer.

The bound leaves about one trial to spare over bisection: after one size that fits, far below the target, the next has
to fail, or bisecting is all that can still end in time. So the second size is one that cannot fit by what the first
showed. From there on the bracket is far narrower than the bound asks for, and the prediction is free.

With a replay the limit is wider by the sizes that it rests on, and so is the window: the same invariant holds
with that many trials more. In practice those are what make two further trials enough. A guess needs no trial to rest
on: where it is right, it and the next size are all that is run; the limit is wider by the guesses that may be wrong.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Final, Literal

from oomdoctor.errors import UsageError
from oomdoctor.results import Outcome, Trial
from oomdoctor.search.prediction import predict
from oomdoctor.units import format_size

if TYPE_CHECKING:
    from collections.abc import Sequence


PredictMax = Callable[[int, int], int | None]
Guess = Callable[[], int | None]

FIRST_SIZE: Final = 4
"""The first size that is tried: large enough for growth to show, small enough to fit where training is worthwhile."""

# With nothing known a sample is taken to need this much: the first trial must fit often enough to measure growth, and
# be large enough that growth stands out from what is there at any size.
_FIRST_GUESS_BYTES = 512 << 20
_FIRST_GUESS_MOST = 64
# Where the first size failed and nothing has fitted, the next is this part of it.
_STEP_DOWN = 8
# A second size that fits makes the memory line exact: until there is one, sizes lean to the side that fits, unless the
# prediction is sharp already.
_LEAN, _SHARP = 0.35, 0.02
# Peaks wobble by the allocator's rounding; a smaller size that took more by over this margin is worth a note.
_WOBBLE_BYTES, _WOBBLE_SHARE = 64 << 20, 0.02
# Predicted sizes that may prove wrong before the measured prediction is relied on alone.
_REPLAY_MISSES = 2
# A replay needs two fitting sizes with the same order of allocations: a small one, and one this fraction of the way to
# the prediction; a third where a step of few samples does something else. Sizes that fit tell little of where fitting
# ends, so the bound on trials is wider by so many; otherwise it would ask for sizes far above the prediction.
_REPLAY_STEP = 0.4
_REPLAY_MOST_FITS = 3
_REPLAY_TRIALS = 6
# Guesses that are tried; a second one is had where the capacity has changed. Each may take a trial or two for nothing.
_MOST_GUESSES = 2
_GUESS_TRIALS = 2 * _MOST_GUESSES


def trial_limit(largest: int, smallest: int = 1) -> int:
    """Return the most trials that a search from `smallest` to `largest` can take."""
    # Exact for any integer, where a floating-point logarithm is not.
    return 2 + (largest - smallest).bit_length()


@dataclass(slots=True)
class Bracket:
    """Sizes that are left of a range, and the trials so far.

    Attributes:
        largest: Largest size to consider.
        capacity_bytes: Bytes that PyTorch may take during a trial.
        smallest: Smallest size to consider; 2 once the model has refused 1.
        predict_max: Predicts the largest size that fits, see `find_maximum`.
        guess: Says the largest size that fits, see `find_maximum`.
        low: Largest size that fits; `smallest - 1` stands for none.
        high: Smallest size above it that does not fit; `largest + 1` is never run.
        fits: Trials that fit, by size.
        misses: Trials that ran out of memory or met a limit, by size.
        ran: Trials of this search, in order.
        refusals: Notes about sizes that the model refused.
        failed: The trial that ended the search without an answer, if one did.
    """

    largest: int
    capacity_bytes: int
    smallest: int = 1
    predict_max: PredictMax | None = None
    guess: Guess | None = None
    low: int = field(init=False)
    high: int = field(init=False)
    fits: dict[int, Trial] = field(default_factory=dict)
    misses: dict[int, Trial] = field(default_factory=dict)
    ran: list[Trial] = field(default_factory=list)
    refusals: list[str] = field(default_factory=list)
    failed: Trial | None = None
    _limit: int = field(init=False)
    _predicted: int | None = None
    _replay_misses: int = 0
    _guesses: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.low, self.high = self.smallest - 1, self.largest + 1
        self._limit = trial_limit(self.largest, self.smallest)
        self._limit += (_REPLAY_TRIALS if self.predict_max else 0) + (_GUESS_TRIALS if self.guess else 0)

    @property
    def is_open(self) -> bool:
        """Return whether sizes are left to try."""
        return self.failed is None and self.high - self.low > 1

    def absorb(self, known: Sequence[Trial]) -> None:
        """Take over known trials that are proof at this capacity."""
        for trial in known:
            size = trial.micro_batch
            if not self.smallest <= size <= self.largest:
                continue
            if trial.outcome is Outcome.FITS and trial.allowed_bytes <= self.capacity_bytes:
                self.fits[size] = trial
            elif trial.outcome is Outcome.LIMIT or (
                trial.outcome is Outcome.OOM and trial.allowed_bytes >= self.capacity_bytes
            ):
                self.misses[size] = trial
        self.low = max(self.fits, default=self.low)
        self.high = min((size for size in self.misses if size > self.low), default=self.high)

    def record(self, trial: Trial) -> None:
        """Narrow the bracket by a trial that was run."""
        size = trial.micro_batch
        self.ran.append(trial)
        if trial.outcome is Outcome.FITS:
            self.fits[size], self.low = trial, size
        elif trial.outcome is not Outcome.FAILED:
            self.misses[size], self.high = trial, size
        elif size == self.smallest == 1 and self.largest > 1:
            self.smallest, self.low = 2, 1
            self.refusals.append(f"the model refuses a micro-batch of 1, so that 2 is the smallest: {_reason(trial)}")
        else:
            self.failed = trial
        if self._predicted is not None and not self.low <= self._predicted < self.high:
            self._replay_misses += 1
        elif self._predicted is None and trial.outcome is Outcome.FITS:
            self._replay_misses = 0  # another trial to go by, nearer to what is sought

    def next_size(self) -> int:
        """Choose the size to run: the wanted one, as near as bisection can still end in time from."""
        reach = 1 << max(0, self._limit - len(self.ran) - 1)
        first = max(self.low + 1, self.high - reach)
        last = min(self.high - 1, self.low + reach)
        return min(max(self._wanted_size(reach), first), last)

    def _wanted_size(self, reach: int) -> int:
        bounded = self.high <= self.largest
        guessed = self._guess()
        self._predicted = self._predict_max() if guessed is None else None
        expected = self._predicted if guessed is None else guessed
        if expected is not None:
            fails_first = not bounded and not self._is_near(expected, reach)
            return expected + 1 if fails_first or expected <= self.low else expected
        prediction = predict((*self.fits.values(), *self.misses.values()), self.capacity_bytes)
        if prediction is None:
            return self._blind_size(bounded=bounded)
        if self._wants_another_fit() and prediction.centre < self.largest:
            ahead = min(prediction.centre, self.high) - self.low
            return self.low + max(1, round(_REPLAY_STEP * ahead))
        if not bounded and prediction.centre <= self.low:
            return self.low + (1 << max(0, self._streak() - 1))  # it is contradicted: grow away from it
        if not bounded:
            is_near = self._is_near(prediction.centre, reach)
            return math.ceil(min(prediction.centre if is_near else prediction.ceiling, self.largest))
        sharp = len(self.fits) > 1 or prediction.spread < _SHARP * prediction.centre
        widened = replace(prediction, spread=prediction.spread * 2 ** max(0, self._streak() - 1))
        return round(widened.quantile(self.low, self.high, 0.5 if sharp else _LEAN))

    def _is_near(self, size: float, reach: int) -> bool:
        """Return whether a trial there bounds the range well enough even if it fits: the target is not far above it."""
        return 2 * (self.high - size) <= reach

    def _guess(self) -> int | None:
        """Return the guess, where no trial contradicts it."""
        guess = None if self.guess is None else self.guess()
        if guess is None:
            return None
        self._guesses.add(guess)
        size = min(max(guess, self.smallest - 1), self.largest)
        return size if len(self._guesses) <= _MOST_GUESSES and self.low <= size < self.high else None

    def _predict_max(self) -> int | None:
        if self.predict_max is None or not self.fits or self._replay_misses >= _REPLAY_MISSES:
            return None
        found = self.predict_max(self.low, self.high)
        # One that takes back no more than the size that has just failed knows nothing of what failed.
        return None if self._replay_misses and found == self.high - 1 else found

    def _wants_another_fit(self) -> bool:
        """Return whether two sizes that do the same may yet be found, on which a replay can rest."""
        waiting = self.predict_max is not None and self._replay_misses == 0
        return waiting and 0 < len(self.fits) < _REPLAY_MOST_FITS and self.high - self.low > FIRST_SIZE

    def _streak(self) -> int:
        """Return how many trials in a row, the last included, ended the same way: a sign that the centre is off."""
        last = self.ran[-1].outcome if self.ran else None
        return next((i for i, trial in enumerate(reversed(self.ran)) if trial.outcome is not last), len(self.ran))

    def _blind_size(self, *, bounded: bool) -> int:
        if self.fits:
            return (self.low + self.high) // 2
        if bounded:
            step = max(1, (self.high - self.low) // _STEP_DOWN)
            return self.low + (step if self.predict_max is None else min(step, FIRST_SIZE))
        if self.predict_max is not None:
            return self.largest if self.largest <= 2 * FIRST_SIZE else FIRST_SIZE
        samples = max(1.0, self.capacity_bytes / _FIRST_GUESS_BYTES)
        guess = max(self.smallest, min(_FIRST_GUESS_MOST, 1 << round(math.log2(samples))))
        return self.largest if self.largest <= 2 * guess else guess

    def notes(self) -> tuple[str, ...]:
        """Say what was refused, and where size and memory do not go together."""
        notes = list(self.refusals)
        below = [size for size in self.misses if size < self.low]
        if below:
            notes.append(f"{self.low} fits although {max(below)}, which is smaller, did not")
        peaks = sorted((size, trial.peak_allocated_bytes or 0) for size, trial in self.fits.items())
        for (size, peak), (larger, larger_peak) in pairwise(peaks):
            if peak - larger_peak > _WOBBLE_BYTES + _WOBBLE_SHARE * peak:
                took, larger_took = format_size(peak), format_size(larger_peak)
                notes.append(f"memory does not grow with size: {size} took {took}, and {larger} took {larger_took}")
        return tuple(notes)


def _reason(trial: Trial) -> str:
    lines = (trial.error or "").strip().splitlines()
    return lines[-1] if lines else "it gave no reason"


TryBatch = Callable[[int], Trial]


@dataclass(frozen=True, slots=True)
class SearchResult:
    """Result of one search.

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
    predict_max: PredictMax | None = None,
    guess: Guess | None = None,
) -> SearchResult:
    """Find the largest size that fits.

    Args:
        try_batch: Runs one trial at a size.
        largest: The per-device target; nothing above it is tried.
        capacity_bytes: Bytes that PyTorch may take during a trial.
        smallest: Smallest size to consider.
        known: Trials of this model that have been run already.
        predict_max: Predicts the largest size that fits, between one that does (or `smallest - 1`) and one that does
            not (or `largest + 1`); None when it cannot. A hint: what it says is run like any other size.
        guess: Says the largest size that fits before any was run; None when it cannot. A hint as well, and one that
            goes before `predict_max` until a trial speaks against it. It is asked again before each trial, since the
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
    bracket = Bracket(largest, capacity_bytes, smallest, predict_max, guess)
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


def find_plain(  # noqa: PLR0913 - as of `find_maximum`
    try_plain: TryBatch,
    trials: Sequence[Trial],
    *,
    maximum: int,
    largest: int,
    capacity_bytes: int,
    gradient_bytes: int,
    predict_max: PredictMax,
) -> int:
    """Find the largest size of a step that accumulates nothing.

    Nothing is run where the gradients that accumulation keeps alive have no room for one sample more.

    Args:
        try_plain: Runs one trial at a size, whose steps have one micro-batch.
        trials: All trials so far; that of `largest` accumulated nothing.
        maximum: Largest size that fits where gradients are accumulated, at least 1.
        largest: The per-device target.
        capacity_bytes: Bytes that PyTorch may take during a trial.
        gradient_bytes: Bytes of all gradients.
        predict_max: As for `find_maximum`, from trials of plain steps alone.

    Returns:
        `maximum`, or a larger size that was run and fits, whose successor was run and does not.
    """
    proof = next(trial for trial in trials if trial.micro_batch == maximum and trial.outcome is Outcome.FITS)
    growth = ((proof.peak_allocated_bytes or 0) - (proof.fixed_bytes or 0)) / maximum
    more = (capacity_bytes - (proof.peak_reserved_bytes or 0) + gradient_bytes) / growth if growth > 0 else 0
    # The whole target is one micro-batch, and the search has run it.
    if more < 1 or maximum + 1 >= largest or (first := try_plain(maximum + 1)).outcome is not Outcome.FITS:
        return maximum
    known, bound = [first, *(trial for trial in trials if trial.micro_batch == largest)], maximum
    while True:
        bound = min(largest, bound + 2 * math.ceil(more))  # a short range is searched in few trials
        found = find_maximum(
            try_plain, largest=bound, capacity_bytes=capacity_bytes, smallest=maximum + 1, known=known,
            predict_max=predict_max,
        )  # fmt: skip
        known += found.trials
        if found.limited_by != "target" or bound == largest:
            return found.maximum
