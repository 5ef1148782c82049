"""Models of one file are probed in one worker, one after the other, where none can tell that another was there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from targets_for_tests import write_target

from oomdoctor.errors import TargetError
from oomdoctor.integrations.sizing import Sizer, build_question
from oomdoctor.multi_card.workers import WorkerPool
from oomdoctor.results import ProbeResult
from oomdoctor.trial.process import CancelToken
from oomdoctor.trial.worker_process import WorkerHandle

pytestmark = pytest.mark.null_gpu

MODELS = """
import torch
from torch import nn

from layers import block

BUILT = []


def build_model(width=64, keep=None):
    {kept}
    return nn.Sequential(*(block(width) for _ in range(2)), nn.Flatten(), nn.LazyLinear(1))


def make_batch(batch_size):
    return torch.zeros(batch_size, 3, 64, 64)


def training_step(model, batch):
    return model(batch).square().mean()
"""
MODELS = MODELS.replace("nn.LazyLinear(1)", "nn.Linear(3 * 64 * 64, 1)")
# Convolutions without workspaces: plans that one trial chose for want of room take another worker in the next.
LAYERS = """
from torch import nn


def block(width):
    return nn.Sequential(nn.Conv2d(3, width, 1), nn.GELU(), nn.Conv2d(width, 3, 1))
"""
KEEPS = {
    "nothing": "pass",
    "a tensor on the GPU": "BUILT.append(torch.zeros(8, device='cuda'))",
    "a list": "BUILT.append(width)",
    "a setting": "torch.set_default_dtype(torch.float64) if width == 32 else None",
    "a patch": "nn.GELU.forward = nn.GELU.forward if width == 64 else (lambda self, x: x * 1)",
}


class _Counted(Sizer):
    """A sizer that counts the workers that it starts, forked from one process for all tests."""

    def __init__(self, pool: WorkerPool) -> None:
        super().__init__()
        self.started = 0

        def counted(environment: Mapping[str, str], questions_fd: int, answers_fd: int) -> WorkerHandle:
            self.started += 1
            return pool.start(environment, questions_fd, answers_fd)

        self._pool.start = counted  # type: ignore[method-assign]
        self._workers._start = counted


@pytest.fixture(scope="module")
def pool() -> Iterator[WorkerPool]:
    """The process that workers are forked from."""
    with WorkerPool(CancelToken()) as made:
        yield made


@pytest.fixture
def sizer(pool: WorkerPool) -> Iterator[_Counted]:
    """A sizer without a worker."""
    made = _Counted(pool)
    yield made
    made.close()


@pytest.fixture
def alone(pool: WorkerPool) -> Iterator[_Counted]:
    """A sizer that starts a worker for each model."""
    made = _Counted(pool)
    made._workers.take = lambda *_: None  # type: ignore[method-assign]
    yield made
    made.close()


def _ask(sizer: Sizer, folder: Path, call: str, **more: Any) -> ProbeResult:
    """Ask about a model of the file in a folder."""
    options = {"capacity": "144MiB", **more}
    question = build_question(f"model.py:build_model({call})", {}, 64, options.pop("gpu", "t4"), options)  # type: ignore[arg-type]
    result = sizer.ask(replace(question, directory=folder)).result
    return replace(result, trials=tuple(replace(trial, seconds=0.0) for trial in result.trials))


def _write(folder: Path, kept: str = "pass") -> None:
    write_target(folder, LAYERS, "layers.py")
    write_target(folder, MODELS.format(kept=kept))


def test_models_share_a_worker(sizer: _Counted, alone: _Counted, tmp_path: Path) -> None:
    """Five models of a file on one card take one worker, also where none fits or the optimizer is another."""
    _write(tmp_path)
    asked = [("width=40", {"optimizer": "SGD"}), ("width=96", {}), ("width=9000", {}), ("width=64", {})]
    asked += [("width=64", {"precision": "bf16"})]
    found = [_ask(sizer, tmp_path, call, **more) for call, more in asked]
    assert sizer.started == 1
    assert len({result.micro_batch.maximum for result in found}) == len(asked)
    assert found[2].micro_batch.maximum == 0
    assert found[3:] == [_ask(alone, tmp_path, call, **more) for call, more in asked[3:]]
    assert alone.started == 2


@pytest.mark.parametrize("kept", KEEPS)
def test_what_a_model_leaves_reaches_no_other(sizer: _Counted, alone: _Counted, tmp_path: Path, kept: str) -> None:
    """Where a file keeps state, each of its models has a worker of its own, and the same answer as alone."""
    _write(tmp_path, KEEPS[kept])
    first, second = _ask(sizer, tmp_path, "width=32"), _ask(sizer, tmp_path, "width=64")
    assert sizer.started == (1 if kept == "nothing" else 2)
    assert second == _ask(alone, tmp_path, "width=64")
    assert first != second


def test_another_card_and_an_edited_module_have_another_worker(sizer: _Counted, tmp_path: Path) -> None:
    """A worker plays one card, and has imported the file's modules as they were."""
    _write(tmp_path)
    before = _ask(sizer, tmp_path, "width=32")
    _ask(sizer, tmp_path, "width=32", gpu="rtx-4090")
    assert sizer.started == 2
    write_target(tmp_path, LAYERS.replace("nn.GELU()", "nn.GELU(), nn.GELU()"), "layers.py")
    assert _ask(sizer, tmp_path, "width=32, keep=1").micro_batch.maximum < before.micro_batch.maximum
    assert sizer.started == 3


def test_an_error_in_a_shared_worker_is_that_of_one_alone(sizer: _Counted, tmp_path: Path) -> None:
    """A model that cannot be built is asked about in a worker of its own before that is said; others go on."""
    _write(tmp_path)
    _ask(sizer, tmp_path, "width=32")
    with pytest.raises(TargetError, match="negative dimension"):
        _ask(sizer, tmp_path, "width=-1")
    assert sizer.started == 2
    _ask(sizer, tmp_path, "width=64")
