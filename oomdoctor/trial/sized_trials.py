"""Run the trials of a search over another size than the micro-batch, such as a sequence length. Runs in the worker.

Where `build_model` takes the size as well, each trial builds a model of its own and begins with placing it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from oomdoctor.target.sizes import model_takes, with_sizes
from oomdoctor.trial.trial import run_trial
from oomdoctor.trial.variants import build_model

if TYPE_CHECKING:
    from oomdoctor.results import SearchedSize
    from oomdoctor.target.contract import Target
    from oomdoctor.trial.protocol import RunTrial
    from oomdoctor.trial.trial import Attempt, TrialSetup


class SizedTrials:
    """Runs a trial of any size at the one micro-batch.

    Args:
        plain: The user's functions, without sizes.
        setup: The setup of the smallest size; its model leaves the device where each size has a model of its own.
        searched: The size.
    """

    def __init__(self, plain: Target, setup: TrialSetup, searched: SearchedSize) -> None:
        self._plain = plain
        self._setup = setup
        self._searched = searched
        self._rebuilds = model_takes(plain, searched.name)
        if self._rebuilds:
            setup.model.to("cpu")

    def run(self, question: RunTrial) -> Attempt:
        """Run one trial, whose size counts multiples of the searched size.

        Raises:
            TargetError: The user's file does not keep the contract.
        """
        target = with_sizes(self._plain, self._setup.variant.sizes_at(question.micro_batch))
        setup = replace(self._setup, target=target)
        if self._rebuilds:
            setup = replace(setup, model=build_model(target, setup.changes).train(), places_model=True)
        attempt = run_trial(setup, replace(question, micro_batch=self._searched.micro_batch))
        return replace(attempt, trial=replace(attempt.trial, micro_batch=question.micro_batch))
