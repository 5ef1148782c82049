"""Judge two runs of one script, with the whole batch and with its parts, by what each optimizer step did. Pure.

The agent leaves the weights as they are, so every step of both runs starts from the same ones, and each window of
micro-batches can be held against the whole batch of the same samples.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from itertools import pairwise, takewhile
from statistics import fmean
from typing import TYPE_CHECKING, Final

from oomdoctor.results.verify import GradientError, VerifyCause, VerifyCauseId, VerifyRemedy, VerifyResult
from oomdoctor.verification import sketches
from oomdoctor.verification.recording import (
    Recording,
    backwards,
    check_heeded,
    data_backwards,
    early_clip,
    prefix,
    rates_of_second_step,
    rows,
)
from oomdoctor.verification.remedies import COMMAND_REMEDIES, REMEDIES
from oomdoctor.verification.sketches import numbers as _numbers

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from oomdoctor.agent.accumulation_messages import AccumulationWindow
    from oomdoctor.results.verify import VerifyVerdict

_TOLERANCE: Final = 1e-3
_HALF_TOLERANCE: Final = 3e-2
"""Largest relative error of equal gradients, in single precision and with weights in half precision."""
_SPREAD: Final = 1e-2
"""Smallest relative difference of weights that are not the same."""
_LAST: Final = 2
"""Index of the first epoch's last window; those before it are whole."""
_LONGER: Final = 1.5
"""Factor by which a schedule is longer that counts micro-batches."""


@dataclass(slots=True)
class CommandJudge:
    """Judges one command.

    Args:
        micro_batch: Samples of each part.
        steps: Number of parts.
        whole: Run with the whole batch.
        parts: Run with the parts.
        repeat: Runs the whole batch again.
    """

    micro_batch: int
    steps: int
    whole: Recording
    parts: Recording
    repeat: Callable[[], Recording]
    _causes: list[VerifyCause] = field(default_factory=list)
    _notes: list[str] = field(default_factory=list)
    _errors: list[GradientError] = field(default_factory=list)
    _weights: list[float] = field(default_factory=list)

    @property
    def _tolerance(self) -> float:
        return _HALF_TOLERANCE if self.whole.steps[0].is_half else _TOLERANCE

    @property
    def _samples(self) -> int:
        return self.micro_batch * self.steps

    def _micro_batches(self, window: AccumulationWindow) -> float:
        """Return the micro-batches of a window: by its samples where they are known, or by its backwards."""
        whole, parts = self.whole.steps[0], self.parts.steps[0]
        if rows(whole) and rows(whole) == rows(parts):
            return self.steps * rows(window).total() / rows(whole).total()
        return len(data_backwards(window)) / len(data_backwards(whole))

    def judge(self, target: str, notes: Sequence[str] = ()) -> VerifyResult:
        """Return the verdict.

        Args:
            target: The command in one line.
            notes: What else there is to know.

        Raises:
            TargetError: The command ignores its placeholders.
        """
        if unknown := self._incomparable():
            self._causes.append(unknown)
        else:
            self._judge_events()
            self._judge_gradients()
            self._judge_end()
        verdict = self._verdict()
        first = self._errors[0].error if self._errors else 0.0
        return VerifyResult(
            target=target,
            samples=self._samples,
            precision="as_run",
            tolerance=self._tolerance,
            verdict=verdict,
            gradient_error=first,
            weighted_error=None,
            weights_error=None,
            errors=tuple(self._errors),
            random_error=None,
            reversed_error=None,
            random_operators=("dropout",) if self.parts.steps[0].has_dropout else (),
            changed_buffers=(),
            causes=tuple(self._causes),
            remedies=tuple(map(self._remedy, self._causes)),
            notes=(*self._notes, *notes),
        )

    def _verdict(self) -> VerifyVerdict:
        kinds = {cause.id for cause in self._causes}
        if kinds & _UNKNOWN:
            return "cannot_tell" if kinds <= _UNKNOWN else "different"
        if kinds == {"weights"}:
            return "equal_if_weighted"
        if kinds:
            return "different"
        return "random_only" if self.parts.steps[0].has_dropout else "equal"

    def _remedy(self, cause: VerifyCause) -> VerifyRemedy:
        return COMMAND_REMEDIES.get(cause.id) or REMEDIES[cause.id]

    def _blame(self, kind: VerifyCauseId, place: str, evidence: str) -> None:
        if all(cause.id != kind for cause in self._causes):
            self._causes.append(VerifyCause(kind, None, place or None, evidence))

    # --- whether the runs can be compared ----------------------------------------------------------------------------

    def _incomparable(self) -> VerifyCause | None:
        first, other = self.whole.steps[0], self.parts.steps[0]
        if len({window.optimizer for window in (*self.whole.steps, *self.parts.steps)}) > 1:
            return VerifyCause("several_optimizers", None, first.place or None, "several optimizers step in turn")
        longest = max(map(len, first.orders), default=self._samples)
        if longest < self._samples:
            return VerifyCause(
                "samples",
                None,
                None,
                f"an epoch of the data has {longest} samples, and the whole batch {self._samples}",
            )
        if not backwards(first) or not backwards(other):
            return VerifyCause(
                "not_repeatable", None, first.place or None, "no backward was seen before the first step"
            )
        check_heeded(first, other, self.micro_batch, self.steps, self._tolerance)
        if sketches.error(_numbers(other.weights), _numbers(first.weights)) > self._tolerance:
            return VerifyCause("other_weights", None, None, "the two runs begin with other weights")
        return None

    # --- what the script does, and where -----------------------------------------------------------------------------

    def _judge_events(self) -> None:
        first = self.parts.steps[0]
        if not self._is_equal():
            self._judge_boundary()
            self._judge_zeroing(first)
        moved = next((event for event in backwards(first) if event.has_moved), None)
        if moved is not None:
            self._blame("moved_weights", moved.place, "the weights change between the micro-batches of one step")
        early = early_clip(first)
        if early is not None and early_clip(self.whole.steps[0]) is None:
            self._blame(
                "clip", early.place, "gradients are clipped before the last micro-batch of a step has been added"
            )
        self._judge_repeated(
            "scheduler", "the schedule steps {found} times in an optimizer step, {asked} with the whole batch"
        )
        self._judge_repeated(
            "average",
            "the average of weights is updated {found} times in an optimizer step, {asked} with the whole batch",
        )
        self._judge_rates()

    def _is_equal(self) -> bool:
        """Return whether the first two windows stepped with the whole batch's gradients, whatever led to them."""
        pairs = list(zip(self.whole.steps, self.parts.steps, strict=False))[:_LAST]
        return all(
            self._same_samples(index, whole, parts)
            and sketches.error(_numbers(parts.gradient), _numbers(whole.gradient)) <= self._tolerance
            for index, (whole, parts) in enumerate(pairs)
        )

    def _judge_zeroing(self, first: AccumulationWindow) -> None:
        lost = next((event for event in backwards(first) if event.is_lost), None)
        if lost is None:
            return
        before = reversed(first.events[: first.events.index(lost)])
        since = takewhile(lambda event: event.kind != "backward", before)
        place = next((event.place for event in since if event.kind == "zero_grad"), lost.place)
        self._blame("zero_grad", place, "gradients are zeroed between the micro-batches of one step")

    def _judge_rates(self) -> None:
        """See whether learning rates that the script sets itself, without a schedule of PyTorch's, change faster."""
        whole, parts = self.whole.steps, self.parts.steps
        if any(event.kind == "scheduler" for window in (*whole, *parts) for event in window.events):
            return
        if (rates := rates_of_second_step(whole, parts)) is not None:
            asked, found = rates
            evidence = f"the second step's learning rate is {found:.3g}, and {asked:.3g} with the whole batch"
            self._blame("scheduler", parts[1].place, f"{evidence}: it counts micro-batches")

    def _judge_boundary(self) -> None:
        found = list(map(self._micro_batches, self.parts.steps))
        if found[0] == self.steps or (len(found) > 1 and found[0] > self.steps):
            return
        place = self.parts.steps[0].place
        then = f", then after {found[1]:g}" if len(found) > 1 and found[1] != found[0] else ""
        self._blame(
            "boundary", place, f"the first step comes after {found[0]:g} micro-batches{then}, not after {self.steps}"
        )

    def _judge_repeated(self, kind: str, evidence: str) -> None:
        """See whether something is done once a micro-batch that the whole batch has once a step."""
        windows = [run.steps[min(1, len(run.steps) - 1)] for run in (self.whole, self.parts)]
        asked, found = ([event for event in window.events if event.kind == kind] for window in windows)
        least = self.steps if len(self.parts.steps) > 1 else self.steps - 1
        if len(found) < max(least, 2) or len(found) < max(len(asked), 1) * least:
            return
        if kind == "scheduler" and self._is_longer(*windows):
            self._notes.append("the schedule steps in every micro-batch, and is as much longer")
            return
        place = Counter(event.place for event in found).most_common(1)[0][0]
        self._blame(kind, place, evidence.format(found=len(found), asked=len(asked) or "not once"))  # type: ignore[arg-type]

    @staticmethod
    def _is_longer(whole: AccumulationWindow, parts: AccumulationWindow) -> bool:
        return any(length > _LONGER * whole.schedule.get(name, length) for name, length in parts.schedule.items())

    # --- gradients ---------------------------------------------------------------------------------------------------

    def _judge_gradients(self) -> None:
        if any(cause.id in ("boundary", "zero_grad") for cause in self._causes):
            self._note_errors()
            return
        pairs = list(zip(self.whole.steps, self.parts.steps, strict=False))
        for index, (whole, parts) in enumerate(pairs):
            seen = self._same_samples(index, whole, parts)
            if seen:
                self._judge_window(index, whole, parts)
            elif index == 0:
                self._blame(
                    "samples", "", "the two runs did not train on the same samples in their first step, so that their "
                    "gradients cannot be compared"
                )  # fmt: skip
                return

    def _note_errors(self) -> None:
        """Keep the error of a first window that is wrong for a reason that is known."""
        whole, parts = self.whole.steps[0], self.parts.steps[0]
        if self._same_samples(0, whole, parts):
            self._keep_error(whole, parts)

    def _keep_error(self, whole: AccumulationWindow, parts: AccumulationWindow) -> float:
        error = sketches.error(_numbers(parts.gradient), _numbers(whole.gradient))
        micro_batches = int(self._micro_batches(parts))
        self._errors.append(GradientError("as_run", (self.micro_batch,) * max(1, micro_batches), (), error))
        return error

    def _same_samples(self, index: int, whole: AccumulationWindow, parts: AccumulationWindow) -> bool:
        """Return whether two windows saw the same samples: by their values, or by their indices and number."""
        ours, true = rows(parts), rows(whole)
        if ours and ours == true:
            return True
        orders = parts.orders and whole.orders and prefix(parts.orders[0], whole.orders[0])
        sizes = [sum(event.shape[0] for event in backwards(window) if event.shape) for window in (whole, parts)]
        is_first_epoch = index <= _LAST
        return bool(orders) and sizes[0] == sizes[1] > 0 and is_first_epoch and self._is_padded(whole, parts)

    @staticmethod
    def _is_padded(whole: AccumulationWindow, parts: AccumulationWindow) -> bool:
        """Return whether samples of the same indices have other values for being padded to other lengths."""
        shapes = {event.shape[1:] for window in (whole, parts) for event in backwards(window)}
        return len(shapes) > 1

    def _judge_window(self, index: int, whole: AccumulationWindow, parts: AccumulationWindow) -> None:
        error = self._keep_error(whole, parts)
        passes = backwards(parts)
        scale: float | None
        if error <= self._tolerance:
            scale, weights = self._hidden_scale(whole, parts), None
        else:
            scale = sketches.common_scale(_numbers(parts.gradient), _numbers(whole.gradient), self._tolerance)
            weights = None if scale else self._fitted(parts, whole)
        if weights is not None:
            scale = 1 / mean if abs(mean := fmean(weights)) > self._tolerance else None
            self._weights = self._weights or weights
            shares = ", ".join(f"{weight / sum(weights):.3g}" for weight in weights)
            self._blame(
                "weights", passes[-1].place, "each micro-batch's loss counts the same, and in the whole batch their "
                f"shares are {shares}: it is a mean over something other than samples"
            )  # fmt: skip
        if scale is None and weights is None:
            self._judge_unexplained(whole, parts)
        elif scale is not None and abs(scale - 1) > _SPREAD:
            self._judge_scale(scale, index, parts)

    def _hidden_scale(self, whole: AccumulationWindow, parts: AccumulationWindow) -> float:
        """Return the scale of gradients that are equal because code of the script's own gives all the same norm."""
        norms = [window.norm or 0.0 for window in self.whole.steps]
        is_normalised = len(norms) > 1 and max(norms) - min(norms) <= self._tolerance * max(norms)
        before = [sketches.norm(_numbers(backwards(window)[-1].accumulated)) for window in (parts, whole)]
        return before[0] / before[1] if is_normalised and before[1] else 1.0

    def _fitted(self, parts: AccumulationWindow, whole: AccumulationWindow) -> list[float] | None:
        """Return the weights of micro-batches, 1 for what the script gives, that make the whole batch's gradient."""
        passes, each = backwards(parts), len(backwards(whole))
        ends = data_backwards(parts) if len(passes) % each else passes[each - 1 :: each]
        sums = [_numbers(event.accumulated) for event in ends]
        square = sketches.dot(sums[-1], sums[-1])
        unit = sketches.dot(_numbers(parts.gradient), sums[-1]) / square if square else 0.0
        before = [(0.0,) * len(sums[0]), *sums]
        own = [sketches.scaled(sketches.difference(b, a), unit) for a, b in pairwise(before)]
        return sketches.fitted_weights(own, _numbers(whole.gradient), self._tolerance)

    def _judge_scale(self, scale: float, index: int, parts: AccumulationWindow) -> None:
        passes = backwards(parts)
        micro_batches = int(self._micro_batches(parts))
        place = passes[-1].place
        if micro_batches < self.steps and index >= _LAST:
            if any(cause.id in ("division", "divided_twice", "scale") for cause in self._causes):
                return
            evidence = (
                f"the last step of an epoch has {micro_batches} micro-batches, and its gradient is {scale:.3g} times "
                "theirs in one batch"
                + (f": it is divided by {self.steps}" if _near(scale, micro_batches / self.steps) else "")
            )
            self._blame_last_window(parts, evidence)
        elif _near(scale, self.steps):
            self._blame("division", place, f"the gradient is {self.steps} times the whole batch's: nothing divides it")
        elif _near(scale, 1 / self.steps):
            self._blame(
                "divided_twice",
                place,
                f"the gradient is 1/{self.steps} of the whole batch's: a mean is divided twice, or a sum once",
            )
        else:
            self._blame("scale", place, f"the gradient is {scale:.3g} times the whole batch's")

    def _judge_unexplained(self, whole: AccumulationWindow, parts: AccumulationWindow) -> None:
        if any(cause.id in ("batch_norm", "mixing", "moved_weights", *_UNKNOWN) for cause in self._causes):
            return
        if whole.has_drawn or parts.has_drawn:
            self._blame(
                "random_draws", "", "the model draws random numbers other than dropout's, other ones in each run"
            )
            return
        if parts.batch_norms:
            name, more = parts.batch_norms[0], len(parts.batch_norms) - 1
            others = f" and {more} more" if more else ""
            evidence = f"`{name}`{others} takes its statistics from each micro-batch"
            self._causes.append(VerifyCause("batch_norm", name, None, evidence))
            return
        again = self.repeat()
        if (
            not again.steps
            or sketches.error(_numbers(again.steps[0].gradient), _numbers(self.whole.steps[0].gradient))
            > self._tolerance
        ):
            self._blame("not_repeatable", "", "two runs with the whole batch and one seed step with other gradients")
        else:
            place = backwards(parts)[-1].place
            evidence = (
                "no weights make the micro-batches' gradients the whole batch's: the model or the loss mixes samples"
                + (", or hooks of parameters change each micro-batch's gradient" if parts.has_hooks else "")
            )
            self._blame("mixing", place, evidence)

    # --- the end of an epoch -----------------------------------------------------------------------------------------

    def _judge_end(self) -> None:
        if any(cause.id in ("boundary", "zero_grad", *_UNKNOWN) for cause in self._causes):
            return
        last = self._last_window()
        if last is None:
            self._notes.append(
                "no end of an epoch was seen, so the last window of one, which may have fewer micro-batches, is not "
                f"judged; it is seen where a `DataLoader` has the batch size {self.micro_batch} and enough samples"
            )
            return
        found, left = self._micro_batches(last), max(1, self.steps // 2)
        if last.optimizer is None or any(event.is_lost for event in backwards(last)):
            self._note_lost(last, left)
        elif found > self.steps:
            evidence = (
                f"the last {left} micro-batches of an epoch are added to the next epoch's first window, which has "
                f"{int(found)} then"
            )
            self._blame_last_window(last, evidence)
        elif found == self.steps:
            self._judge_full_last(last, left)

    def _judge_full_last(self, last: AccumulationWindow, left: int) -> None:
        """See whether a last window that is full has the end of an epoch in it, or was only begun after it."""
        is_comparable = rows(self.whole.steps[0]) == rows(self.parts.steps[0]) != Counter()
        ending = rows(self.whole.steps[_LAST]) if len(self.whole.steps) > _LAST else Counter[int]()
        if is_comparable and ending.total() == left * self.micro_batch and ending - rows(last):
            self._note_lost(last, left)
        elif is_comparable and ending:
            self._notes.append("windows run on over the end of an epoch, so none has fewer micro-batches")
        else:
            self._notes.append(
                "no window has fewer micro-batches; whether the last ones of an epoch go on in the next or are lost "
                "cannot be told, as their samples could not be compared"
            )

    def _note_lost(self, last: AccumulationWindow, left: int) -> None:
        evidence = f"the last {left} micro-batches of an epoch, fewer than {self.steps}, get no optimizer step"
        self._note_last_window(last, f"{evidence} and are lost (`oomdoctor rule OOM204` has more)")

    def _blame_last_window(self, window: AccumulationWindow, evidence: str) -> None:
        """Name the last window as a cause, or in a note where the script's own epochs have none such."""
        if window.is_even:
            self._note_last_window(window, evidence)
        else:
            self._blame("partial_window", window.place, evidence)

    def _note_last_window(self, window: AccumulationWindow, evidence: str) -> None:
        none_now = "; with as many samples as there are now, no epoch has such a window" if window.is_even else ""
        self._notes.append(f"{evidence}{none_now}")

    def _last_window(self) -> AccumulationWindow | None:
        """Return the third window, which an epoch ends in; None where no end was seen."""
        windows = [window for window in self.parts.windows if backwards(window)]
        is_seen = len(windows) > _LAST and any(window.is_cut for window in windows)
        return windows[_LAST] if is_seen else None


_UNKNOWN: Final[frozenset[VerifyCauseId]] = frozenset(
    {"samples", "several_optimizers", "not_repeatable", "other_weights", "random_draws"}
)
"""Causes for which nothing can be said."""


def _near(value: float, other: float) -> bool:
    return abs(value - other) <= _SPREAD * other
