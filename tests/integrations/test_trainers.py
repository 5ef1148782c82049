"""Trainers of Lightning and transformers are sized as `probe` sizes their models, and train on as if by hand."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from running import ROOT, python_path, run_command
from targets_for_tests import write_target
from trainer_models import TARGETS, target

from oomdoctor import probe
from oomdoctor.errors import UsageError
from oomdoctor.integrations.trainers import _fixed_plan, indices_of

HERE = Path(__file__).parent

CAPACITY = "1GiB"
CAPACITIES = {"mlp": "240MiB", "encoder": CAPACITY, "resnet": CAPACITY}
PAGE = ROOT / "docs" / "trainers.md"
pytestmark = pytest.mark.null_gpu


def _examples() -> list[str]:
    """The scripts of the page."""
    return [block.partition("```\n")[0] for block in PAGE.read_text(encoding="utf-8").split("```python\n")[1:]]


@pytest.fixture(scope="module")
def sized(null_gpu: None, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the program found, which sizes all of them in one process on a null GPU."""
    directory = tmp_path_factory.mktemp("trainers")
    paths = [directory / f"example_{number}.py" for number in range(len(_examples()))]
    for path, text in zip(paths, _examples(), strict=True):
        path.write_text(text, encoding="utf-8")
    command = [sys.executable, str(HERE / "trainers_on_null_gpu.py"), *map(str, paths)]
    environment = {name: value for name, value in os.environ.items() if name == "CC" and "no-compiler" not in value}
    ended = run_command(
        ["run", "--capacity", CAPACITY, "--no-history", "--output", str(directory / "reports"), "--", *command],
        cwd=directory,
        timeout=300,
        PYTHONPATH=python_path(HERE),
        **environment,
    )
    assert ended.returncode == 0, ended.stderr[-4000:]
    answer: dict[str, Any] = json.loads(ended.stdout)
    return answer


@pytest.mark.parametrize("name", list(CAPACITIES))
def test_the_sizes_are_those_of_a_probe(
    sized: dict[str, Any], forked_workers: None, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each gets the plan of its file's probe, but for the ResNet its maximum too, and is trained with it."""
    write_target(tmp_path, target(name))
    (tmp_path / "trainer_models.py").write_text(
        (HERE / "trainer_models.py").read_text(encoding="utf-8"), encoding="utf-8"
    )
    monkeypatch.chdir(tmp_path)
    result = probe("model.py", target_batch=TARGETS[name], engine="null", capacity=CAPACITIES[name]).result
    if name != "resnet":  # where workspaces of convolutions are optional, sizes fit and fail in turn
        assert sized[name]["maximum"] == result.micro_batch.maximum
    _check_sizes(sized, name, result.micro_batch.maximum)


def test_a_transformers_trainer_gets_the_maximum_of_its_commands_probe(sized: dict[str, Any], tmp_path: Path) -> None:
    """A GPT-2 is sized as by a probe that runs its script in a process for each trial."""
    script = ["--", sys.executable, str(HERE / "trainer_gpt2.py"), "{micro_batch}", "{accumulation_steps}"]
    options = ["--capacity", CAPACITY, "--engine", "null", "--target-batch", str(TARGETS["gpt2"]), "--format", "json"]
    ended = run_command(["probe", *options, *script], cwd=tmp_path, timeout=300)
    assert ended.returncode == 0, ended.stderr[-4000:]
    maximum = json.loads(ended.stdout)["result"]["micro_batch"]["maximum"]
    assert sized["gpt2"]["maximum"] == maximum
    _check_sizes(sized, "gpt2", maximum)


def _check_sizes(sized: dict[str, Any], name: str, maximum: int) -> None:
    """See that a model was trained with the plan of a maximum, and that its own was proven."""
    plan = _fixed_plan(TARGETS[name], maximum)
    found = sized[name]
    assert plan is not None
    assert found["plan"] == [plan.micro_batch, plan.steps, TARGETS[name]]
    assert found["sizes"] == [plan.micro_batch, plan.steps]
    assert found["steps"] == 1
    tried = dict(found["tried"])
    assert tried[found["maximum"]] == tried[plan.micro_batch] == "fits"
    assert found["maximum"] == TARGETS[name] or tried[found["maximum"] + 1] == "oom"


@pytest.mark.parametrize("name", list(TARGETS))
def test_memory_after_sizing_equals_memory_before(sized: dict[str, Any], name: str) -> None:
    """What tensors take and what PyTorch holds are the same to the byte, although trials ran out of memory."""
    assert sized[name]["after"] == sized[name]["before"]


@pytest.mark.parametrize("library", ["lightning", "transformers", "callback"])
def test_training_after_sizing_is_training_with_sizes_by_hand(sized: dict[str, Any], library: str) -> None:
    """Losses, weights, counters and schedules are the same to the bit, with dropout and shuffled data."""
    after_sizing, by_hand = sized["host"][library]
    assert after_sizing == by_hand
    assert len(after_sizing[0]) > 3


@pytest.mark.parametrize(
    ("use", "kind", "words"),
    [
        ("no attribute", "UsageError", ["has an attribute `size`", "batch_arg_name="]),
        ("deaf loader", "TargetError", ["batches of 3, although `batch_size` is 8", "`self.batch_size`"]),
        ("loader of fit", "UsageError", ["the loader was passed to `fit`", "define `train_dataloader`"]),
        ("no target", "UsageError", ["target batch 0 is not a number of samples"]),
        ("large target", "UsageError", ["65 is more than the 64 samples"]),
        ("no sampler", "UsageError", ["`Endless` has no sampler", "__getitem__"]),
        ("no data", "UsageError", ["no `train_dataset`"]),
        ("no samples", "UsageError", ["`train_dataset` has no sample"]),
        ("no trainer", "UsageError", ["`'trainer'` is no `transformers.Trainer`", "build the Trainer first"]),
        ("broken step", "TargetError", ["ZeroDivisionError", "not an out-of-memory error"]),
        ("no divisor", "UsageError", ["23 has no divisor near 5", "21 and 24"]),
        ("late callback", "UsageError", ["was added when the trainer was made", "callbacks=["]),
        ("cpu", "UsageError", ["trains on `cpu`", "oomdoctor run"]),
    ],
)
def test_wrong_use_says_what_to_do(sized: dict[str, Any], use: str, kind: str, words: list[str]) -> None:
    """Each has an error of a kind, which names what was wrong, and a hint."""
    found, message, hint = sized["mistakes"][use]
    assert found == kind
    assert all(word in f"{message} {hint}" for word in words)


def test_the_examples_of_the_page_run(sized: dict[str, Any]) -> None:
    """Both scripts are sized and train on."""
    assert sized["examples"] == ["2048 x 1, at most 2048", "256 x 1, at most 256"]


def test_a_sample_that_the_data_do_not_have_is_named() -> None:
    """An index beyond the data set is refused before anything is tried; one counted from its end is not."""
    loader = torch.utils.data.DataLoader([1.0, 2.0, 3.0])
    assert indices_of(loader, [-3, 2]) == [-3, 2]
    with pytest.raises(UsageError, match="`samples` names 3, and the training data have 3 samples"):
        indices_of(loader, [0, 3])
