"""What remedies gain on GPT-2, whose figures the documentation has."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from oomdoctor.multi_card.pool import PooledProbe, StagedProgress, probe_all
from oomdoctor.progress import SilentProgress
from oomdoctor.remedies.catalogue import with_remedies
from oomdoctor.request import build_request
from oomdoctor.results import Variant
from oomdoctor.trial.answer import ProbeRun

FIGURES = {(): 16, ("checkpoint",): 27, ("fused-cross-entropy",): 35, ("checkpoint", "fused-cross-entropy"): 214}


@pytest.mark.null_gpu
@pytest.mark.usefixtures("forked_workers")
@pytest.mark.skipif(not hasattr(torch.nn, "LinearCrossEntropyOptions"), reason="needs a fused loss in pieces")
def test_what_the_documentation_says_of_gpt2() -> None:
    """16 samples as it is, 27 and 35 with either remedy, 214 with both."""
    request = build_request("gpt2", target_batch=256, gpu="rtx-4090")
    cases = [
        PooledProbe("+".join(names), replace(request, variant=with_remedies(Variant(), names))) for names in FIGURES
    ]
    answers = probe_all(cases, StagedProgress(SilentProgress(), len(cases)), jobs=1)
    assert all(isinstance(answer, ProbeRun) for answer in answers)
    assert [answer.result.micro_batch.maximum for answer in answers if isinstance(answer, ProbeRun)] == [
        *FIGURES.values()
    ]
