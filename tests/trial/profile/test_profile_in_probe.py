"""Memory in a probe's answer: at which size it is recorded, and what is said where it cannot be."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
from targets_for_tests import MLP, write_target

from oomdoctor.progress import SilentProgress
from oomdoctor.request import ProbeRequest
from oomdoctor.results import Category, Outcome, ProbeResult
from oomdoctor.trial.probe import probe
from oomdoctor.units import MIB, format_size

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.null_gpu, pytest.mark.slow, pytest.mark.usefixtures("forked_workers")]

LEAKY = MLP.replace(
    "    return model(batch)", "    KEPT.append(model(batch).square())\n    return model(batch)"
).replace("def build_model", "KEPT = []\n\n\ndef build_model")
LOSS = """\
import torch
from torch import nn


def build_model():
    return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2000))


def make_batch(batch_size):
    return torch.randn(batch_size, 512, 64)


def training_step(model, batch):
    logits = model(batch).flatten(0, 1)
    return nn.functional.cross_entropy(logits, torch.zeros(len(logits), dtype=torch.long, device="cuda"))
"""
CONVOLUTIONS = """\
import torch
from torch import nn


def build_model():
    first, last = nn.Conv2d(3, 32, 3, padding=1), nn.Conv2d(96, 32, 3, padding=1)
    return nn.Sequential(first, nn.ReLU(), nn.Conv2d(32, 96, 3, padding=1), nn.GroupNorm(8, 96), last)


def make_batch(batch_size):
    return torch.randn(batch_size, 3, 64, 64)


def training_step(model, batch):
    return model(batch).square().mean()
"""
VARYING = MLP.replace(
    "    return model(batch)",
    '    more = torch.empty(next(CALLS) << 18, dtype=torch.uint8, device="cuda")\n    return more.sum() + model(batch)',
).replace("import torch\n", "import itertools\n\nimport torch\n\nCALLS = itertools.count()\n", 1)
SUICIDAL = MLP.replace(
    "    return model(batch)", "    if model._forward_hooks:\n        os._exit(3)\n    return model(batch)"
).replace("import torch\n", "import os\n\nimport torch\n", 1)


def _probe(
    directory: Path, text: str = MLP, *, mebibytes: int = 512, size: int | None = None, target_batch: int = 4
) -> ProbeResult:
    request = ProbeRequest(
        target=write_target(directory, text),
        directory=directory,
        target_batch=target_batch,
        memory_bytes=mebibytes * MIB,
        engine="null",
        profile_micro_batch=size,
    )
    return probe(request, SilentProgress()).result


def test_memory_is_that_of_the_maximum(tmp_path: Path) -> None:
    """Without a word about it memory is recorded at the answer, and its peak is that of the trial that found it."""
    found = _probe(tmp_path)

    assert found.memory is not None
    assert found.memory.micro_batch == found.micro_batch.maximum
    trial = next(trial for trial in found.trials if trial.micro_batch == found.micro_batch.maximum)
    assert found.memory.peak_allocated_bytes == trial.peak_allocated_bytes
    assert [reason.subject for reason in found.reasons].count("memory") == 1
    assert not found.warnings


def test_memory_is_told_by_line_and_operator(tmp_path: Path) -> None:
    """The line of the loss holds what its backward allocates as well, and all lines sum to the peak."""
    found = _probe(tmp_path, LOSS)
    assert found.memory is not None
    lines = found.memory.source_lines
    assert sum(part.allocated_bytes for part in lines) == found.memory.peak_allocated_bytes
    loss = next(number for number, line in enumerate(LOSS.splitlines(), start=1) if "cross_entropy" in line)
    at_loss = {part.operator for part in lines if part.line == f"model.py:{loss}"}
    assert "aten::_log_softmax_backward_data" in at_loss
    assert {part.operator for part in lines if part.category is Category.WEIGHTS} == {None}


def test_plans_of_other_trials_do_not_change_the_memory_that_is_recorded(tmp_path: Path) -> None:
    """Convolutions whose trial at the edge took smaller workspaces are recorded as in the trial that fitted."""
    target = write_target(tmp_path, CONVOLUTIONS)
    request = ProbeRequest(target, tmp_path, None, memory_bytes=1024 * MIB, engine="null", gpu="rtx-4090")
    found = probe(request, SilentProgress()).result

    assert any(trial.is_tight for trial in found.trials)
    assert found.memory is not None
    trial = next(trial for trial in found.trials if trial.micro_batch == found.micro_batch.maximum)
    assert found.memory.peak_allocated_bytes == trial.peak_allocated_bytes
    assert not any("no two trials" in warning for warning in found.warnings)


def test_memory_at_a_size_of_ones_own_is_no_trial(tmp_path: Path) -> None:
    """A size that was asked for is recorded, and does not appear among the trials."""
    found = _probe(tmp_path, size=7)

    assert found.memory is not None
    assert found.memory.micro_batch == 7
    assert 7 not in [trial.micro_batch for trial in found.trials]


@pytest.mark.parametrize("mebibytes", [170, 16])
def test_a_size_that_does_not_fit_is_recorded_on_a_larger_card(tmp_path: Path, mebibytes: int) -> None:
    """What has become too large is told, also where not even the weights fit, and a warning says where it ran."""
    found = _probe(tmp_path, mebibytes=mebibytes, size=4096)

    assert found.micro_batch.maximum in (0, 4)
    assert found.memory is not None
    assert found.memory.micro_batch == 4096
    assert found.memory.peak_allocated_bytes > found.capacity_bytes
    assert any("4096 does not fit" in warning for warning in found.warnings)


def test_where_nothing_fits_there_is_no_memory_to_record(tmp_path: Path) -> None:
    """Without a size and without an answer nothing is recorded, and nothing is said about it."""
    found = _probe(tmp_path, mebibytes=100)

    assert found.memory is None
    assert found.micro_batch.maximum == 0
    assert not any("recorded" in warning for warning in found.warnings)


def test_what_goes_wrong_while_recording_costs_the_memory_alone(tmp_path: Path) -> None:
    """A target that ends its process when it is watched has its answer, and a warning instead of memory."""
    found = _probe(tmp_path, SUICIDAL)

    assert found.micro_batch.maximum == 4
    assert found.memory is None
    assert any(warning.startswith("memory at micro-batch 4 could not be recorded") for warning in found.warnings)


def test_memory_that_a_trial_left_behind_is_not_in_the_next(tmp_path: Path) -> None:
    """A target that keeps what it computes is recorded in a fresh process, and only its trials count as replaced."""
    found = _probe(tmp_path, LEAKY)

    assert found.memory is not None
    trial = next(trial for trial in found.trials if trial.micro_batch == 4 and trial.outcome is Outcome.FITS)
    assert found.memory.peak_allocated_bytes == trial.peak_allocated_bytes
    assert not any(warning.startswith("memory") for warning in found.warnings)


def test_a_maximum_whose_next_trial_ran_out_is_said_to_be_no_sure_one(tmp_path: Path) -> None:
    """Where a step takes other memory each time, the answer warns that training may run out at it."""
    found = _probe(tmp_path, VARYING, mebibytes=256, target_batch=100_000)

    said = next(text for text in found.warnings if f"micro-batch {found.micro_batch.maximum} " in text)
    assert "fitted in one trial and ran out of memory in another" in said
    assert "training may run out at it" in said


def test_how_far_apart_trials_at_one_size_are_is_told(tmp_path: Path) -> None:
    """Where a trial that is recorded takes other memory than the one before it, both figures are in the warning."""
    found = _probe(tmp_path, VARYING.replace("<< 18", "<< 24"), mebibytes=8192)

    said = next(text for text in found.warnings if text.startswith("no two trials of this target allocate the same"))
    assert found.memory is not None
    assert f" to {format_size(found.memory.peak_allocated_bytes)}" not in said  # of three, the first was kept
    assert "training may need more" in said


def test_trials_that_are_hardly_apart_are_told_by_their_distance(tmp_path: Path) -> None:
    """Where the figures of two trials read the same, the warning says how far apart they are instead of both."""
    text = VARYING.replace("more = ", 'most = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")\n    more = ')
    found = _probe(tmp_path, text.replace("<< 18", "<< 12"), mebibytes=8192)

    said = next(text for text in found.warnings if text.startswith("no two trials of this target allocate the same"))
    assert re.search(r"at this size 1.09 GiB, \S+ KiB apart, and training may need more", said)
