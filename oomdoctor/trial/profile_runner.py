"""Record what memory is made of at one size, once the answer is known."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from oomdoctor.engines.null_gpu.library import with_total_bytes
from oomdoctor.errors import OomdoctorError
from oomdoctor.results import Outcome, Reason
from oomdoctor.search.probe_search import micro_steps
from oomdoctor.trial.answer import ProfiledAnswer
from oomdoctor.trial.worker_answers import ProfileOutcome, differing_peaks
from oomdoctor.units import format_size

if TYPE_CHECKING:
    from collections.abc import Sequence

    from oomdoctor.engines.choice import Engine
    from oomdoctor.progress import Progress
    from oomdoctor.request import ProbeRequest
    from oomdoctor.results import Trial
    from oomdoctor.trial.client import WorkerTrialSource

_LARGER: Final = (8, 64)
"""So many times larger cards are played where a size that was asked for does not fit."""


_VARIES: Final = (
    "fitted in one trial and ran out of memory in another: its steps do not take the same memory each time, as where "
    "layers are dropped at random, and training may run out at it where its trial did not"
)
# Part of the peak by which it may differ with what is drawn: the gradient of an embedding takes more for more tokens.
_ALIKE: Final = 0.002
_NOT_TRACED = "a trace does not show which tensors hold it; `--engine null` and a real GPU do"


@dataclass(frozen=True, slots=True)
class ProfileRunner:
    """Runs the profile of a probe's memory.

    Attributes:
        request: The probe's question.
        engine: Where the trials ran.
        source: What ran them.
        trials: Every trial so far.
        share: Samples of one device in each optimizer step; None where nothing is accumulated.
        progress: Is informed of it.
    """

    request: ProbeRequest
    engine: Engine
    source: WorkerTrialSource
    trials: Sequence[Trial]
    share: int | None
    progress: Progress

    def record(self, maximum: int) -> ProfiledAnswer:
        """Record memory at the size that was asked for, else at the maximum.

        Args:
            maximum: Largest micro-batch that fits; 0 when none does.

        Raises:
            KeyboardInterrupt: The stop was set.
        """
        size = self.request.profile_micro_batch or maximum
        if size == 0:
            return ProfiledAnswer()
        if self.engine.kind == "trace":
            return ProfiledAnswer(reasons=(Reason("memory", _NOT_TRACED),), warnings=self._differing(maximum))
        self.progress.stage(f"recording memory at micro-batch {size}")
        if maximum > 0 and not (
            self._plain_trial(size) is None and any(trial.micro_batch == size for trial in self.trials)
        ):
            found = self._ask(self.source, size, self._plain_trial(size))
            if found.outcome not in (Outcome.OOM, Outcome.LIMIT):
                answer = self._answer(size, found)
                # Where a repeated trial takes other memory already, what is drawn is not to blame.
                is_repeated = found.memory is not None and found.reason is None
                return replace(answer, warnings=self._differing(maximum)) if is_repeated else answer
        if self.engine.kind == "null":
            return self._record_on_larger_cards(size, self._why_larger(size))
        if maximum == 0:
            return ProfiledAnswer(warnings=(f"memory at micro-batch {size} could not be recorded: it does not fit",))
        answer = self._answer(maximum, self._ask(self.source, maximum, self._plain_trial(maximum)))
        warning = f"micro-batch {size} does not fit, so memory was recorded at {maximum}, the largest that does"
        return replace(answer, warnings=(warning, *answer.warnings))

    def _differing(self, maximum: int) -> tuple[str, ...]:
        """Return a warning where the trial at the maximum, run once more, takes other memory."""
        plain = self._plain_trial(maximum)
        if plain is None:
            return ()
        again = self._again(plain, draw=1)
        if again.outcome is not plain.outcome:
            return (f"micro-batch {maximum} {_VARIES}",)
        peaks = [peak for peak in (plain.peak_allocated_bytes, again.peak_allocated_bytes) if peak is not None]
        return (differing_peaks(peaks),) if max(peaks) > min(peaks) * (1 + _ALIKE) else ()

    def _again(self, trial: Trial, draw: int = 0) -> Trial:
        """Run a trial once more, with the same batches or with others that are drawn."""
        steps = micro_steps(trial.micro_batch, self.share)
        return self.source.run(trial.micro_batch, micro_steps=steps, allowed_bytes=trial.allowed_bytes, draw=draw)

    def _why_larger(self, size: int) -> str:
        """Return why a size is not recorded on the card itself; one that fitted is tried once more for that."""
        plain = self._plain_trial(size)
        if plain is None:
            return "does not fit"
        again = self._again(plain)
        if (again.outcome, again.peak_allocated_bytes) == (plain.outcome, plain.peak_allocated_bytes):
            return "just fits, and not while it is recorded"
        return _VARIES

    def _record_on_larger_cards(self, size: int, why: str) -> ProfiledAnswer:
        """Play a card with more memory, so that it can be answered what has become too large."""
        found = ProfileOutcome(None, "it does not fit any null GPU either", Outcome.OOM)
        for factor in _LARGER:
            total_bytes = (self.engine.card.total_bytes if self.engine.card else 0) * factor
            found = self._on_larger_card(size, total_bytes)
            if found.outcome not in (Outcome.OOM, Outcome.LIMIT):
                answer = self._answer(size, found)
                card = f"a null GPU with {format_size(total_bytes)}"
                warning = f"micro-batch {size} {why}; its memory was recorded on {card}"
                return replace(answer, warnings=(warning, *answer.warnings)) if answer.memory else answer
        return self._answer(size, found)

    def _on_larger_card(self, size: int, total_bytes: int) -> ProfileOutcome:
        environment = with_total_bytes(self.engine.environment, total_bytes)
        request = replace(self.request, memory_bytes=None, card_bytes=None)
        try:
            with self.source.on_another_card(request, environment) as source:
                if source.load().placement_error:
                    return ProfileOutcome(None, "the weights alone do not fit", Outcome.OOM)
                return self._ask(source, size, None)
        except OomdoctorError as error:
            return ProfileOutcome(None, error.message, Outcome.FAILED)

    def _ask(self, source: WorkerTrialSource, size: int, plain: Trial | None) -> ProfileOutcome:
        return source.profile(
            size,
            micro_steps=micro_steps(size, self.share),
            allowed_bytes=plain.allowed_bytes if plain else source.capacity_bytes,
            peak_allocated_bytes=plain.peak_allocated_bytes if plain else None,
        )

    def _plain_trial(self, size: int) -> Trial | None:
        """Return the trial at this size with which the profile is compared; of several the one with the most memory."""
        fitting = [trial for trial in self.trials if trial.micro_batch == size and trial.outcome is Outcome.FITS]
        return max(fitting, key=lambda trial: trial.allowed_bytes, default=None)

    def _answer(self, size: int, found: ProfileOutcome) -> ProfiledAnswer:
        if found.memory is None:
            why = found.reason or "nobody can say why"
            return ProfiledAnswer(warnings=(f"memory at micro-batch {size} could not be recorded: {why}",))
        text = f"the history of PyTorch's allocator over a trial of its own at micro-batch {size}"
        return ProfiledAnswer(found.memory, (Reason("memory", text),), (found.reason,) if found.reason else ())
