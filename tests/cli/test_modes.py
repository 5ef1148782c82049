"""`--mode eval`: the largest batch of an evaluation, and the mistakes that evaluations make."""

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
    assert model.training == torch.is_grad_enabled()
    return model(batch).mean()
"""
KEEPS_OUTPUT = """

@torch.no_grad()
def evaluation_step(model, batch):
    return model(batch)
"""
BUILDS_GRAPH = KEEPS_OUTPUT.replace("@torch.no_grad()\n", "")
BUILDS_GRAPH_UNSEEN = BUILDS_GRAPH.replace("return model(batch)", "model(batch)")
KEEPS_ALL = """
kept = []

@torch.no_grad()
def evaluation_step(model, batch):
    kept.append(model(batch))
"""
BY_HAND = """
CAPACITY = 64 * 2**20
total = torch.cuda.get_device_properties(0).total_memory
torch.cuda.set_per_process_memory_fraction((CAPACITY + 0.5) / total)
model = build_model().cuda().eval()


def fits(size):
    torch._C._cuda_clearCublasWorkspaces()
    torch.cuda.empty_cache()
    try:
        for _ in range(2):
            batch = make_batch(size).cuda()
            with torch.no_grad():
                output = model(batch)
    except torch.OutOfMemoryError:
        return False
    return True


low, high = 0, 1024
while high - low > 1:
    middle = (low + high) // 2
    low, high = (middle, high) if fits(middle) else (low, middle)
print(low)
"""
PROBE = ("--gpu", "t4", "--capacity", "64MiB")


def _evaluated(oomdoctor_here: Run, folder: Path, step: str = "", *options: str) -> Any:
    (folder / "model.py").write_text(MODEL + step)
    ended = oomdoctor_here("probe", "model.py", "--mode", "eval", *PROBE, "--json", *options)
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout)["result"]


@pytest.mark.parametrize("options", [(), ("--engine", "trace")])
def test_the_maximum_is_that_of_a_bisection_by_hand(
    tmp_path: Path, oomdoctor_here: Run, null_environment: Callable[[int], dict[str, str]], options: tuple[str, ...]
) -> None:
    """The file's own step fits at the size at which a plain loop over the same model does, and not one above."""
    (tmp_path / "by_hand.py").write_text(MODEL + BY_HAND)
    ran = run_program(sys.executable, [str(tmp_path / "by_hand.py")], null_environment(2**30), timeout=60)
    found = _evaluated(oomdoctor_here, tmp_path, KEEPS_OUTPUT, *options)

    assert found["micro_batch"]["maximum"] == int(ran.stdout) > 0
    assert found["accumulation"] is None
    assert found["warnings"] == []


def test_an_evaluation_fits_more_than_training(tmp_path: Path, oomdoctor_here: Run) -> None:
    """Without gradients more fits; the mode is in the result, and no optimizer."""
    found = _evaluated(oomdoctor_here, tmp_path)
    trained = json.loads(oomdoctor_here("probe", "model.py", *PROBE, "--json").stdout)["result"]

    assert found["micro_batch"]["maximum"] > trained["micro_batch"]["maximum"]
    assert (found["variant"]["mode"], trained["variant"]["mode"]) == ("eval", "train")
    assert found["optimizer"] == ""
    assert {phase["phase"] for phase in found["phases"]} == {"load", "forward"}


@pytest.mark.parametrize("form", ["text", "markdown", "html", "github", "junit"])
def test_every_format_says_that_it_is_an_evaluation(tmp_path: Path, oomdoctor_here: Run, form: str) -> None:
    """The headline names an evaluation batch, and nothing speaks of accumulation."""
    (tmp_path / "model.py").write_text(MODEL)
    shown = oomdoctor_here("probe", "model.py", "--mode", "eval", *PROBE, "--format", form).stdout

    assert re.search(r"[Aa]n evaluation batch of \d+ fits", shown)
    assert "accumulation_steps" not in shown
    assert "--target-batch" not in shown


def test_other_sizes_and_buckets_say_that_they_are_of_an_evaluation(tmp_path: Path, oomdoctor_here: Run) -> None:
    """The legend has no optimizer and no training, and the model only ever evaluates."""
    sized = MODEL.replace("make_batch(batch_size)", "make_batch(batch_size, *, length=64)").replace(
        "64, 256)", "length, 256)"
    )
    (tmp_path / "model.py").write_text(sized)
    ended = oomdoctor_here("probe", "model.py", "--mode", "eval", *PROBE, "--over", "length=32,64", "--buckets", "json")
    assert ended.returncode == 0, ended.stderr
    assert "model.py, fp32, evaluation.\n" in ended.stdout
    assert "One process evaluated every bucket" in ended.stdout
    assert "evaluating all buckets in turn" in ended.stderr
    assert "train" not in ended.stdout + ended.stderr


@pytest.mark.parametrize("step", [BUILDS_GRAPH, BUILDS_GRAPH_UNSEEN])
def test_a_forgotten_no_grad_is_named_with_its_bytes(tmp_path: Path, oomdoctor_here: Run, step: str) -> None:
    """At the maximum, what the graph costs; also where the step returns nothing that has one."""
    found = _evaluated(oomdoctor_here, tmp_path, step)
    size = found["micro_batch"]["maximum"]
    told = re.fullmatch(
        rf"the evaluation builds a graph .*: ([\d.]+) MiB of its peak of [\d.]+ MiB with batches of {size}; "
        r"put `@torch.no_grad\(\)` above `evaluation_step`",
        found["warnings"][0],
    )
    assert told, found["warnings"]
    assert float(told[1]) > 0


def test_kept_outputs_are_named_with_their_line(tmp_path: Path, oomdoctor_here: Run) -> None:
    """Logits in a list: what each batch adds, which is 128 KiB a sample, when that ends, and who holds it."""
    found = _evaluated(oomdoctor_here, tmp_path, KEEPS_ALL)
    size = found["micro_batch"]["maximum"]
    told = re.fullmatch(
        rf"a leak: micro-batch {size} keeps ([\d.]+) MiB more with each batch, and runs out of memory in batch "
        r"(\d+)( at the latest)?; `kept` \(model.py:\d+\) holds it",
        found["warnings"][0],
    )
    assert told, found["warnings"]
    assert float(told[1]) == pytest.approx(size * 64 * 512 * 4 / 2**20, abs=0.01)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("model.py", "--target-batch", "8"), "`--target-batch` is for training, and `--mode` asks for `eval`"),
        (("model.py", "--optimizer", "SGD"), "`--optimizer` is for training"),
        (("model.py", "--fastest"), "`--fastest` is for training"),
        (("model.py", "--world-size", "2"), "`--world-size` is for training"),
        (("--", "python", "train.py", "{micro_batch}"), "`--mode` is for files, and a command is probed"),
    ],
)
def test_what_only_training_has_is_refused(
    tmp_path: Path, oomdoctor_here: Run, arguments: tuple[str, ...], error: str
) -> None:
    """Each is an error of usage that names the option."""
    (tmp_path / "model.py").write_text(MODEL)
    ended = oomdoctor_here("probe", "--mode", "eval", *arguments)

    assert ended.returncode == 2
    assert error in ended.stderr
