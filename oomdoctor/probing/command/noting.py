"""What the trials of a command showed besides their outcomes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from oomdoctor.results import Outcome

if TYPE_CHECKING:
    from oomdoctor.probing.command.hearing import Heard
    from oomdoctor.probing.command.judging import Judged
    from oomdoctor.probing.command.messages import Measured


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

    def take(self, heard: Heard, judged: Judged, micro_batch: int) -> None:
        """Take in a trial that has ended."""
        self.written.update(heard.written)
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
            self.steps = min(self.steps or heard.done_steps, heard.done_steps)

    def _take_evaluation(self, measured: Measured, micro_batch: int) -> None:
        evaluation, training = measured.evaluation_peak_bytes, measured.training_peak_bytes
        if evaluation is not None and training is not None and evaluation > training:
            self.evaluation_bytes = (micro_batch, evaluation, training)
