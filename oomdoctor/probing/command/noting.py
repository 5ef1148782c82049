"""What the trials of a command showed besides their outcomes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from oomdoctor.results import Outcome, PhaseName

if TYPE_CHECKING:
    from oomdoctor.probing.command.hearing import Heard
    from oomdoctor.probing.command.judging import Judged
    from oomdoctor.probing.command.messages import Measured


_SAME_SHARE: Final = 0.01
"""Peaks that differ by less than this share are taken for the same."""

_FIRST_COMPLETE: Final = 2
"""The first iteration has no optimizer state, and the second is the first that is like all others."""


@dataclass(slots=True)
class Noted:
    """What the trials showed besides their outcomes.

    Attributes:
        written: Paths that the command wrote to, in order.
        steps: Fewest optimizer steps of a trial that fits.
        gradient_bytes: Bytes of all gradients.
        evaluation_bytes: Micro-batch, and most bytes of its evaluation and of its training, where the first is more.
        oom_in_evaluation: Micro-batches at which an evaluation ran out of memory.
        processes: Largest number of processes that trained together.
        failures: What failed in the hook, in order.
        untrained_bytes: Bytes of parameters that an optimizer held and that had no gradient at its first step.
        rising: Micro-batch of a trial that fits in which each complete step needed more than the one before, or None.
        idle_optimizers: Most optimizers of a trial that fits which were made and took no step in it.
    """

    written: dict[str, None] = field(default_factory=dict)
    steps: int | None = None
    gradient_bytes: int = 0
    evaluation_bytes: tuple[int, int, int] | None = None
    oom_in_evaluation: list[int] = field(default_factory=list)
    processes: int = 1
    failures: dict[str, None] = field(default_factory=dict)
    idle_optimizers: int = 0
    untrained_bytes: int = 0
    rising: int | None = None

    def take(self, heard: Heard, judged: Judged, micro_batch: int) -> None:
        """Take in a trial that has ended."""
        self.processes = max(self.processes, heard.world_size)
        if judged.in_evaluation:
            self.oom_in_evaluation.append(micro_batch)
        for measured in heard.trainers():
            self.failures.update(dict.fromkeys(measured.failures))
            self.gradient_bytes = max(self.gradient_bytes, measured.gradient_bytes or 0)
            self._take_evaluation(measured, micro_batch)
        if judged.trial.outcome is Outcome.FITS:
            idle = [measured.idle_optimizers for measured in heard.trainers()]
            self.idle_optimizers = max([self.idle_optimizers, *idle])
            for measured in heard.trainers():
                self._take_changes(measured, micro_batch)
            self.steps = min(self.steps or heard.done_steps, heard.done_steps)

    def _take_changes(self, measured: Measured, micro_batch: int) -> None:
        """See whether training had become what it will be: all parameters train, and no step needs more."""
        self.untrained_bytes = max(
            self.untrained_bytes, (measured.parameter_bytes or 0) - (measured.gradient_bytes or 0)
        )
        peaks = _peaks(measured)
        if len(peaks) > 1 and peaks[-1] > peaks[-2] * (1 + _SAME_SHARE):
            self.rising = micro_batch

    def _take_evaluation(self, measured: Measured, micro_batch: int) -> None:
        evaluation, training = measured.evaluation_peak_bytes, measured.training_peak_bytes
        if evaluation is not None and training is not None and evaluation > training:
            self.evaluation_bytes = (micro_batch, evaluation, training)


def _peaks(measured: Measured) -> list[int]:
    """Most bytes in the training of each complete iteration after the first."""
    peaks: dict[int, int] = {}
    for phase in measured.phases:
        if phase.phase is not PhaseName.EVALUATION and _FIRST_COMPLETE <= phase.iteration <= measured.steps:
            peaks[phase.iteration] = max(peaks.get(phase.iteration, 0), phase.peak_allocated_bytes)
    return [peaks[iteration] for iteration in sorted(peaks)]
