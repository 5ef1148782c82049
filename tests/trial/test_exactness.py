"""The answer is the one that a bisection in fresh processes finds; `tests/bench/trials.py` does this for every case."""

from __future__ import annotations

import pytest
from trials import Case, bisect, fits_in_a_fresh_process

from oomdoctor.progress import SilentProgress
from oomdoctor.results import Outcome
from oomdoctor.trial.probe import probe

pytestmark = [
    pytest.mark.usefixtures("forked_workers"),
    pytest.mark.null_gpu,
    pytest.mark.slow,
    pytest.mark.timeout(600),
]


@pytest.mark.parametrize("case", [Case("gpt2", "bf16", 8)], ids=str)
def test_the_maximum_equals_a_bisection_by_hand(case: Case) -> None:
    """The search's answer is the bisection's, and was run: the maximum fits, and its successor does not."""
    found = probe(case.request, SilentProgress()).result
    maximum, _ = bisect(case.request)

    assert found.micro_batch.maximum == maximum
    outcomes = {
        trial.micro_batch: trial.outcome for trial in found.trials if trial.allowed_bytes == found.capacity_bytes
    }
    assert outcomes[maximum] is Outcome.FITS
    assert outcomes[maximum + 1] is Outcome.OOM


@pytest.mark.parametrize("case", [Case("resnet50", "fp32", 8), Case("unet", "fp32", 40)], ids=str)
def test_the_maximum_fits_in_a_fresh_process_and_its_successor_does_not(case: Case) -> None:
    """What the search ran among other trials holds in a process that ran nothing else."""
    maximum = probe(case.request, SilentProgress()).result.micro_batch.maximum

    assert maximum > 0
    assert fits_in_a_fresh_process(case.request, maximum)
    assert not fits_in_a_fresh_process(case.request, maximum + 1)
