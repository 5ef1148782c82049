"""Memory that a target's objects keep of a trial is taken from them, where a new process would not have it either."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from oomdoctor.request import ProbeRequest
from oomdoctor.results import Outcome, Trial
from oomdoctor.target.reference import parse_reference
from oomdoctor.trial.client import WorkerTrialSource

pytestmark = [pytest.mark.null_gpu, pytest.mark.usefixtures("forked_workers")]

CAPACITY = 2**30
TARGET = """
import functools
import types
from collections import deque

import torch
from torch import nn

{before}


class Model(nn.Module):
    last = None

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(1024, 1024)
        self.cache = types.SimpleNamespace(last=None)
        self.recent = deque([None], maxlen=1)
        self.is_ready = False

    def forward(self, x):
        y = self.linear(x)
        {keep}
        return y


def build_model():
    model = Model()
    {built}
    return model


def make_batch(batch_size):
    return torch.randn(batch_size, 1024)


def training_step(model, batch):
    return model(batch).mean()
"""
KEEPS = {
    "attribute": ("", "self.hidden = y", "pass"),
    "attribute that was there": ("", "self.is_ready = y.detach()", "pass"),
    "buffer": ("", "self.register_buffer(f'seen_{len(x)}', y.detach())", "pass"),
    "another object": ("", "self.cache.last = y", "pass"),
    "queue": ("", "self.recent.append(y)", "pass"),
    "class": ("", "Model.last = y", "pass"),
    "global": ("kept = {}", "kept['y'] = y", "pass"),
    "global name": ("kept = None", "global kept; kept = y", "pass"),
    "memory of a function": (
        "@functools.lru_cache\ndef mask(size):\n    return torch.ones(size, 1024, device='cuda')",
        "y = y * mask(len(x))",
        "pass",
    ),
    "variable of a hook": (
        "",
        "pass",
        "features = {}\n    model.linear.register_forward_hook(lambda *a: features.update(y=a[2]))",
    ),
    "flag with it": ("", "if not self.is_ready: self.is_ready, self.table = True, torch.ones_like(y)", "pass"),
}


def _source(
    tmp_path: Path,
    environment: Callable[[int], dict[str, str]],
    *,
    before: str = "",
    keep: str = "pass",
    built: str = "",
) -> WorkerTrialSource:
    (tmp_path / "model.py").write_text(TARGET.format(before=before, keep=keep, built=built or "pass"))
    request = ProbeRequest("model.py", tmp_path, target_batch=64, memory_bytes=CAPACITY, engine="null")
    return WorkerTrialSource(request, parse_reference("model.py", directory=tmp_path), environment(CAPACITY))


def _run(source: WorkerTrialSource, size: int) -> Trial:
    return source.run(size, micro_steps=1, allowed_bytes=CAPACITY)


def _memory(trial: Trial) -> tuple[Outcome, int | None, int | None]:
    return trial.outcome, trial.peak_allocated_bytes, trial.peak_reserved_bytes


@pytest.mark.parametrize("place", KEEPS)
def test_one_worker_runs_all_trials_as_new_ones_would(
    place: str, tmp_path: Path, null_environment: Callable[[int], dict[str, str]]
) -> None:
    """Wherever the target keeps an activation, each size takes what it takes in a process of its own."""
    before, keep, built = KEEPS[place]
    target = {"before": before, "keep": keep, "built": built}
    with _source(tmp_path, null_environment, **target) as source:
        source.load()
        found = [_memory(_run(source, size)) for size in (2048, 4096, 2048)]
        assert source.notes.replaced == 0
    fresh = []
    for size in (2048, 4096):
        with _source(tmp_path, null_environment, **target) as source:
            source.load()
            fresh.append(_memory(_run(source, size)))
    assert found == [*fresh, fresh[0]]
    assert {outcome for outcome, _, _ in found} == {Outcome.FITS}


def test_what_cannot_be_found_has_the_worker_replaced(
    tmp_path: Path, null_environment: Callable[[int], dict[str, str]]
) -> None:
    """A list that a library holds keeps its memory, and the next trial runs in a new process."""
    with _source(tmp_path, null_environment, keep="vars(torch).setdefault('kept', []).append(y)") as source:
        source.load()
        first, second = _run(source, 2048), _run(source, 2048)
        assert source.notes.replaced == 1
    assert _memory(first) == _memory(second)


@pytest.mark.parametrize(
    "once",
    ["torch.empty(2**25, device='cuda').zero_()", "setattr(self, 'table', torch.ones_like(y))"],
    ids=["less memory", "an error"],
)
def test_a_step_that_does_other_things_the_next_time_has_the_worker_replaced(
    once: str, tmp_path: Path, null_environment: Callable[[int], dict[str, str]]
) -> None:
    """Where a flag is out of reach, each trial has the first one's memory, from a process of its own."""
    keep = (
        "self.hidden = y\n        if not hasattr(torch, 'was_here'):\n            torch.was_here = True\n"
        f"            {once}\n        y = y + getattr(self, 'table', y)"
    )
    keep = keep if "table" not in once else keep.replace("getattr(self, 'table', y)", "self.table")
    with _source(tmp_path, null_environment, keep=keep) as source:
        source.load()
        trials = [_run(source, 2048) for _ in range(3)]
        assert source.notes.replaced == len(trials) - 1
    assert len({_memory(trial) for trial in trials}) == 1
    assert trials[0].outcome is Outcome.FITS


def test_what_is_on_the_device_from_the_beginning_is_not_held(
    tmp_path: Path, null_environment: Callable[[int], dict[str, str]]
) -> None:
    """A step that lets go of it has its memory."""
    size = 2**28
    before = f"kept = [torch.ones({size // 4}, device='cuda')]"
    with _source(tmp_path, null_environment, before=before, keep="kept.clear()") as source:
        source.load()
        held = _run(source, 2048).peak_allocated_bytes
    with _source(tmp_path, null_environment, before="kept = []", keep="kept.clear()") as source:
        source.load()
        plain = _run(source, 2048).peak_allocated_bytes
    assert held is not None
    assert plain is not None
    assert held < plain + size
