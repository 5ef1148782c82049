"""`--with-eval`: an evaluation between training steps, and whether the next training step still fits."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from run_python import run_program
from running import Run

from oomdoctor.units import format_size

pytestmark = [pytest.mark.null_gpu, pytest.mark.usefixtures("forked_workers")]

MODEL = """\
import torch
from torch import nn


def build_model():
    hidden = nn.Linear(256, 256), nn.Dropout(), nn.ReLU(), nn.Linear(256, 256), nn.ReLU()
    return nn.Sequential(*hidden, nn.Linear(256, 512))


def make_batch(batch_size):
    return torch.zeros(batch_size, 64, 256)


def training_step(model, batch):
    assert model.training
    return model(batch).mean()


@torch.no_grad()
def evaluation_step(model, batch):
    assert not model.training
    output = model(batch)
"""
AS_LARGE = MODEL + "    return output\n"
OF_EIGHT_CROPS = MODEL + "    return torch.cat([output] * 8)\n"
KEEPS_THE_LAST = "last = None\n" + MODEL + "    global last\n    last = None\n    last = torch.cat([output] * 4)\n"
OF_ONE_LARGE_BLOCK = MODEL + '    torch.empty(44 << 20, dtype=torch.uint8, device="cuda")\n'
BUILDS_GRAPH = AS_LARGE.replace("@torch.no_grad()\n", "")
BY_HAND = """
CAPACITY = 64 * 2**20
total = torch.cuda.get_device_properties(0).total_memory
torch.cuda.set_per_process_memory_fraction((CAPACITY + 0.5) / total)


def evaluate(model, size):
    model.eval()
    for _ in range(2):
        batch = make_batch(size).cuda()
        output = evaluation_step(model, batch)
    model.train()


def fits(size, evaluates):
    globals()["last"] = None
    torch._C._cuda_clearCublasWorkspaces()
    torch.cuda.empty_cache()
    model = build_model().cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    try:
        for step in range(6):
            batch = make_batch(size).cuda()
            loss = training_step(model, batch)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            if evaluates and step > 0:
                evaluate(model, EVALUATED or size)
    except torch.OutOfMemoryError:
        return False
    return True


def largest(evaluates):
    low, high = 0, 1024
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle, evaluates) else (low, middle)
    return low


print(largest(True), largest(False))
"""
_GRAPH = re.compile(r"the evaluation builds a graph .*: (\S+ MiB) of its peak of (\S+ MiB) with batches of (\d+); ")
PROBE = ("--gpu", "t4", "--capacity", "64MiB")


def _probed(oomdoctor_here: Run, *options: str) -> Any:
    ended = oomdoctor_here("probe", "model.py", "--with-eval", *PROBE, "--json", *options)
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout)["result"]


@pytest.mark.parametrize(
    "case",
    [
        (AS_LARGE, None, "training"),
        (OF_EIGHT_CROPS, None, "evaluation"),
        (KEEPS_THE_LAST, None, "next_step"),
        (KEEPS_THE_LAST, 48, "next_step"),
    ],
)
def test_the_maximum_is_that_of_a_bisection_by_hand(
    tmp_path: Path,
    oomdoctor_here: Run,
    null_environment: Callable[[int], dict[str, str]],
    case: tuple[str, int | None, str],
) -> None:
    """A loop that trains twice, then evaluates before each step, fits as much; the part that runs out is named."""
    model, batch, limit = case
    (tmp_path / "model.py").write_text(model)
    (tmp_path / "by_hand.py").write_text(model + f"\nEVALUATED = {batch}\n" + BY_HAND)
    ran = run_program(sys.executable, [str(tmp_path / "by_hand.py")], null_environment(2**30), timeout=60)
    largest, without = map(int, ran.stdout.split())
    found = _probed(oomdoctor_here, *(() if batch is None else ("--eval-batch", str(batch))))

    assert found["micro_batch"]["maximum"] == largest > 0
    assert largest <= without
    assert (largest == without) is (limit == "training")
    assert found["evaluation"]["limited_by"] == limit
    assert found["evaluation"]["micro_batch"] == batch or largest
    assert found["warnings"] == []


def test_a_trace_gives_the_same_answer(tmp_path: Path, oomdoctor_here: Run) -> None:
    """Without a CUDA build the evaluation between the steps counts as well, to the byte."""
    (tmp_path / "model.py").write_text(OF_EIGHT_CROPS)
    found, traced = _probed(oomdoctor_here), _probed(oomdoctor_here, "--engine", "trace")

    assert traced["micro_batch"] == found["micro_batch"]
    assert traced["evaluation"] == found["evaluation"]


def test_an_evaluation_that_gives_back_the_cache_does_not_lower_the_recommended_size(
    tmp_path: Path, oomdoctor_here: Run
) -> None:
    """Training does so at no size, and what it leaves free is all that counts; the returns are told."""
    (tmp_path / "model.py").write_text(OF_ONE_LARGE_BLOCK)
    found = _probed(oomdoctor_here)
    fitting = [trial for trial in found["trials"] if trial["outcome"] == "fits"]

    assert found["micro_batch"]["recommended"] == found["micro_batch"]["maximum"] > 1
    assert {trial["alloc_retries"] for trial in fitting} == {trial["evaluation_retries"] for trial in fitting} == {1}


def test_the_phases_have_the_evaluation_between_the_steps(tmp_path: Path, oomdoctor_here: Run) -> None:
    """One evaluation, after the second step; the result's peaks are those of its phases."""
    (tmp_path / "model.py").write_text(AS_LARGE)
    found = _probed(oomdoctor_here)
    step = ["forward", "backward", "optimizer"]
    evaluated = [part["peak_allocated_bytes"] for part in found["phases"] if part["phase"] == "evaluation"]

    assert [part["phase"] for part in found["phases"]] == ["load", *step, *step, "evaluation", *step]
    assert evaluated == [found["evaluation"]["peak_allocated_bytes"]]
    assert found["evaluation"]["training_peak_allocated_bytes"] == found["memory"]["peak_allocated_bytes"]
    assert "evaluation" in {part["phase"] for part in found["memory"]["phases"]}


def test_an_evaluation_that_never_fits_is_named(tmp_path: Path, oomdoctor_here: Run) -> None:
    """Where the batches of the evaluation are too large for any training, the headline says where memory ended."""
    (tmp_path / "model.py").write_text(AS_LARGE)
    ended = oomdoctor_here("probe", "model.py", "--with-eval", "--eval-batch", "4096", *PROBE)

    assert ended.returncode == 1, ended.stderr
    assert "nothing fits; micro-batch 1 runs out in evaluation, iteration 2" in ended.stdout


@pytest.mark.parametrize("batch", [None, 40])
def test_a_forgotten_no_grad_is_named_with_its_bytes(tmp_path: Path, oomdoctor_here: Run, batch: int | None) -> None:
    """They are those of the evaluation, with its own batches, also where the training steps take more."""
    options = () if batch is None else ("--eval-batch", str(batch))
    (tmp_path / "model.py").write_text(AS_LARGE)
    without = _probed(oomdoctor_here, *options, "--target-batch", "24")["evaluation"]
    (tmp_path / "model.py").write_text(BUILDS_GRAPH)
    found = _probed(oomdoctor_here, *options, "--target-batch", "24")

    peak_bytes = found["evaluation"]["peak_allocated_bytes"]
    saved, peak, size = _GRAPH.findall(found["warnings"][0])[0]
    assert peak == format_size(peak_bytes)
    assert saved == format_size(peak_bytes - without["peak_allocated_bytes"])
    assert int(size) == (batch or 24)


def test_what_fits_instead_is_told_where_an_evaluation_lets_nothing_fit(tmp_path: Path, oomdoctor_here: Run) -> None:
    """Its graph and its batches are named where they are to blame, and the weights are not."""
    (tmp_path / "model.py").write_text(BUILDS_GRAPH)
    shown = [
        " ".join(oomdoctor_here("probe", "model.py", "--with-eval", "--eval-batch", str(batch), *PROBE).stdout.split())
        for batch in (96, 4096)
    ]
    graph = "without it micro-batch 1 fits; put `@torch.no_grad()` above `evaluation_step`"

    assert [graph in text for text in shown] == [True, False]
    for text, batch in zip(shown, (96, 4096), strict=True):
        assert "micro-batch 1 fits where nothing is evaluated between the training steps" in text
        assert f"a smaller `--eval-batch` than {batch} may fit with it" in text
        assert "the weights take" not in text


@pytest.mark.parametrize("form", ["text", "markdown", "html", "github"])
def test_every_format_tells_of_the_evaluation(tmp_path: Path, oomdoctor_here: Run, form: str) -> None:
    """What it takes beside training, and whether the next step fits."""
    (tmp_path / "model.py").write_text(KEEPS_THE_LAST)
    shown = oomdoctor_here("probe", "model.py", "--with-eval", *PROBE, "--format", form).stdout

    told = " ".join(shown.split())
    assert "between training steps take" in told
    assert "after it the next training step runs out of memory" in told


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("model.py", "--eval-batch", "8"), "`--eval-batch` is for `--with-eval`, which is missing"),
        (("model.py", "--with-eval", "--mode", "eval"), "`--with-eval` is for training, and `--mode` asks for `eval`"),
        (
            ("model.py", "--with-eval", "--eval-batch", "8", "--largest", "length", "--micro-batch", "1"),
            "`--eval-batch` and `--largest` exclude each other",
        ),
        (
            ("model.py", "--with-eval", "--over", "length=1,2", "--buckets", "json"),
            "`--buckets json` trains on all buckets in turn, without an evaluation between",
        ),
        (("--with-eval", "--", "python", "train.py", "{micro_batch}"), "`--with-eval` is for files"),
    ],
)
def test_what_has_no_evaluation_between_is_refused(
    tmp_path: Path, oomdoctor_here: Run, arguments: tuple[str, ...], error: str
) -> None:
    """Each is an error of usage that names the option."""
    (tmp_path / "model.py").write_text(AS_LARGE)
    ended = oomdoctor_here("probe", *arguments)

    assert ended.returncode == 2
    assert error in ended.stderr
