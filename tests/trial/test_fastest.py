"""`--fastest`: what is timed on a real GPU, and what is said without one."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from oomdoctor.errors import NoAnswerError
from oomdoctor.progress import SilentProgress
from oomdoctor.request import build_request
from oomdoctor.trial.fastest import ThroughputRunner
from oomdoctor.trial.process import CancelToken
from oomdoctor.trial.worker_answers import HeldMemory, StepTimed

if TYPE_CHECKING:
    from collections.abc import Callable

TARGET = """
import torch

steps = []

def build_model():
    return torch.nn.Sequential(torch.nn.Linear(256, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 256))

def make_batch(batch_size):
    return torch.randn(batch_size, 256)

def training_step(model, batch):
    return model(batch).square().mean()
"""


@pytest.fixture
def target(tmp_path: Path) -> Path:
    """A file with a small model."""
    path = tmp_path / "model.py"
    path.write_text(TARGET, encoding="utf-8")
    return path


pytestmark = pytest.mark.usefixtures("forked_workers")


@pytest.mark.null_gpu
def test_without_a_gpu_sizes_are_counted_and_the_exit_code_is_3(
    oomdoctor_here: Callable[..., Any], target: Path
) -> None:
    """A null GPU has no clock: each size has its steps, operations, bytes and peak, and no time."""
    done = oomdoctor_here(
        "probe", str(target), "--gpu", "rtx-4090", "--capacity", "200MiB", "--target-batch", "16384", "--fastest",
        "--json",
    )  # fmt: skip
    assert done.returncode == 3, done.stderr
    found = json.loads(done.stdout)["result"]["throughput"]
    assert found["fastest"] is None
    assert "null GPU has no clock" in found["problem"]
    sizes = found["sizes"]
    assert len(sizes) == 4
    for larger, smaller in pairwise(sizes):
        assert larger["micro_batch"] > smaller["micro_batch"]
        assert larger["steps"] < smaller["steps"]
        assert larger["flops"] == smaller["flops"] > 0, "accumulation recomputes nothing"
        assert larger["touched_bytes"] < smaller["touched_bytes"], "the weights are read in each step"
        assert larger["peak_reserved_bytes"] > smaller["peak_reserved_bytes"]
        assert larger["samples_per_second"] is None


@pytest.mark.null_gpu
def test_a_step_is_taken_warm_and_leaves_memory_as_it_was(target: Path) -> None:
    """The worker takes whole optimizer steps of the micro-batches that it is told, and gives back what they took."""
    from oomdoctor.target.reference import parse_reference
    from oomdoctor.trial.client import WorkerTrialSource
    from oomdoctor.trial.probe import engine_for

    request = build_request(target, gpu="rtx-4090", memory="2GiB")
    reference = parse_reference(request.target, directory=request.directory)
    with WorkerTrialSource(request, reference, engine_for(request).environment, CancelToken()) as source:
        held = source.load().held
        done = source.time_step((64, 64, 63))
        assert done.seconds is not None
        assert done.seconds > 0
        assert done.peak_reserved_bytes > held.reserved_bytes
        assert done.held == held
        assert source.time_step((1 << 20,)).seconds is None, "memory runs out"


class Clock:
    """Answers like a worker whose card trains fastest at one size."""

    def __init__(self, best: int, *, fails: bool = False) -> None:
        self.best, self.fails = best, fails

    def time_step(self, step: tuple[int, ...]) -> StepTimed:
        """Return what such a worker would."""
        if self.fails:
            raise NoAnswerError("the worker died")
        seconds = sum(size * (1 + abs(size - self.best) / self.best) for size in step) / 1000
        return StepTimed(seconds, 1000 * step[0], HeldMemory(0, 0))

    def count_cost(self, _: int) -> None:
        """Nothing can be counted once it is dead."""


def runner(clock: Clock, target_batch: int | None) -> ThroughputRunner:
    """Return what times the steps of such a worker."""
    request = build_request("model.py", target_batch=target_batch, world_size=1)
    search: Any = SimpleNamespace(
        micro_steps=lambda _: 2, tried=lambda size, _: SimpleNamespace(peak_reserved_bytes=1000 * size)
    )
    source: Any = clock
    return ThroughputRunner(request, source, search, is_real=True, progress=SilentProgress())


def test_the_plan_is_that_of_the_fastest_size() -> None:
    """The answer names the size, the plan that reaches the target with it, and the memory of each size."""
    found = runner(Clock(best=64), 1024).run(300, 280)
    assert found.fastest == 64
    assert found.accumulation is not None
    assert found.accumulation.micro_batches == (64,) * 16
    assert found.is_settled
    assert {size.peak_reserved_bytes for size in found.sizes} == {1000 * size.micro_batch for size in found.sizes}
    best = next(size for size in found.sizes if size.micro_batch == 64)
    assert best.samples_per_second == pytest.approx(1000)
    assert found.timed_steps == sum(size.timed_steps for size in found.sizes)


def test_plain_steps_are_compared_where_there_is_no_target() -> None:
    """Without a target batch each step is one micro-batch, and there is no plan."""
    found = runner(Clock(best=32), None).run(100, 96)
    assert found.fastest == 32
    assert found.accumulation is None
    assert {size.steps for size in found.sizes} == {1}


def test_a_worker_that_dies_costs_the_times_alone() -> None:
    """The probe keeps its answer, and says why nothing was timed."""
    found = runner(Clock(best=32, fails=True), 256).run(100, 96)
    assert found.fastest is None
    assert found.problem == "the worker died"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--fastest", "--target-batch", "8", "--", "python", "t.py", "{micro_batch}"), "times the steps of a file"),
        (("lstm", "--fastest", "--gpu", "t4", "--over", "sequence_length=8"), "`--fastest` tries one question"),
    ],
)
def test_what_cannot_be_timed_is_refused(oomdoctor_here: Callable[..., Any], words: tuple[str, ...], told: str) -> None:
    """A command, or several questions at once, are refused with what to do instead."""
    done = oomdoctor_here("probe", *words)
    assert done.returncode == 2
    assert told in done.stderr
