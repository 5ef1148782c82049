"""`import oomdoctor` offers the commands to Python programs: typed, at once, with the commands' own results."""

from __future__ import annotations

import inspect
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from running import ROOT, run_command
from targets_for_tests import write_target

import oomdoctor
from oomdoctor import load_result, plan_accumulation, probe
from oomdoctor.api.probe import ProbeOptions
from oomdoctor.api.probe import probe as probe_function
from oomdoctor.cli.probe import probe as command
from oomdoctor.errors import NoAnswerError, TargetError, UsageError
from oomdoctor.results import ProbeDocument
from oomdoctor.results.saved import to_data

# Where a command prints is no question of a function; a dry run explains in text.
_FOR_PRINTING = {"dry_run", "form", "json", "markdown", "html", "output", "quiet"}


def _loaded(code: str) -> set[str]:
    ended = subprocess.run(
        [sys.executable, "-c", f"{code}\nimport sys; print(*sys.modules)"], capture_output=True, text=True, check=True
    )
    return set(ended.stdout.split())


def test_importing_oomdoctor_loads_nothing_of_it() -> None:
    """`import oomdoctor` loads no module of its own, and so neither torch nor the command line."""
    loaded = _loaded("import oomdoctor")
    assert {name for name in loaded if name.startswith("oomdoctor")} == {"oomdoctor"}
    assert loaded.isdisjoint({"torch", "typer", "rich"})


def test_all_but_accumulate_do_without_torch() -> None:
    """A program that probes, plans and loads results imports nothing that trains; `accumulate` brings torch."""
    loaded = _loaded("from oomdoctor import probe, plan_accumulation, load_result")
    assert loaded.isdisjoint({"torch", "optuna", "ray", "lightning", "transformers"})
    assert "torch" in _loaded("from oomdoctor import accumulate")


def test_the_promised_names_are_offered() -> None:
    """Each name of `__all__` is there and listed, and any other is an AttributeError as in every module."""
    names = ["accumulate", "frontier", "load_result", "plan_accumulation", "prescribe", "probe", "verify"]
    assert names == oomdoctor.__all__
    assert set(oomdoctor.__all__) <= set(dir(oomdoctor))
    assert all(callable(getattr(oomdoctor, name)) for name in oomdoctor.__all__)
    with pytest.raises(AttributeError, match="has no attribute 'prob'"):
        _ = oomdoctor.prob  # type: ignore[attr-defined]


def test_the_functions_parameters_are_the_commands_options() -> None:
    """`probe()` and `frontier()` take what `oomdoctor probe` takes, under the same names."""
    options = set(inspect.signature(command).parameters) - _FOR_PRINTING
    of_several = {"over", "largest", "micro_batch", "multiple_of", "up_to", "buckets", "jobs", "executor"}
    assert set(inspect.signature(probe_function).parameters) - {"progress"} == options - of_several
    of_frontier = set(inspect.signature(oomdoctor.frontier).parameters) | set(ProbeOptions.__annotations__)
    of_one_question = {"fastest", "guide", "prompt", "new_tokens", "cache"}
    assert of_frontier - {"options", "progress"} == options - of_one_question


_USERS_SCRIPT = """\
from torch import Tensor
from oomdoctor import accumulate, load_result, probe

def train(batch: dict[str, Tensor]) -> None:
    steps = accumulate(batch, load_result("oomdoctor.json").plan)
    for micro_batch, is_boundary in steps:
        steps.backward(micro_batch["x"])
        reveal_type((micro_batch, is_boundary))

probe("model.py", target_batch="many")
"""

# PyTorch's own annotations take a type checker many seconds to read.
_TORCH = """\
class device: ...
class Tensor:
    def __mul__(self, other: float) -> Tensor: ...
    def backward(self) -> None: ...
"""


@pytest.mark.slow
def test_a_users_types_are_checked(tmp_path: Path) -> None:
    """A type checker knows the names' types in a strict project of a user's, and finds a wrong one."""
    (tmp_path / "train.py").write_text(_USERS_SCRIPT)
    (tmp_path / "torch.pyi").write_text(_TORCH)
    words = ["--strict", "--follow-imports=silent", "--cache-dir", os.devnull, "train.py"]
    ended = subprocess.run(
        [sys.executable, "-m", "mypy", *words], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert 'Revealed type is "tuple[dict[str, torch.Tensor], bool]"' in ended.stdout
    assert "Found 1 error in 1 file" in ended.stdout
    assert 'Argument "target_batch" to "probe" has incompatible type "str"' in ended.stdout


def test_the_mark_of_typed_packages_is_there() -> None:
    """`py.typed` lies in the package, so that type checkers read its annotations."""
    assert (ROOT / "oomdoctor" / "py.typed").is_file()


@pytest.fixture(scope="module")
def answered(tmp_path_factory: pytest.TempPathFactory, forked_workers: None) -> tuple[ProbeDocument, ProbeDocument]:
    """What the function and the command answer to the same question."""
    directory = tmp_path_factory.mktemp("answered")
    target = str(directory / write_target(directory))
    by_function = probe(target, target_batch=20000, gpu="t4", capacity="192MiB", headroom="10%")
    words = ["probe", target, "--target-batch", "20000", "--gpu", "t4", "--capacity", "192MiB", "--headroom", "10%"]
    ended = run_command([*words, "--json", "-o", "oomdoctor.json"], cwd=directory)
    assert ended.returncode == 0, ended.stderr
    loaded = load_result(directory / "oomdoctor.json")
    assert isinstance(loaded, ProbeDocument)
    return by_function, loaded


@pytest.mark.null_gpu
def test_the_function_answers_as_the_command_does(answered: tuple[ProbeDocument, ProbeDocument]) -> None:
    """`probe()` returns the document that `oomdoctor probe --json` writes, times apart."""
    function, command_ = (json.loads(json.dumps(to_data(document))) for document in answered)
    for document in (function, command_):
        for trial in document["result"]["trials"]:
            trial.pop("seconds")
    assert function == command_


@pytest.mark.null_gpu
def test_a_saved_results_plan_is_the_plan(answered: tuple[ProbeDocument, ProbeDocument]) -> None:
    """A training script reads the same plan from the file as the probe made."""
    function, loaded = answered
    assert loaded.plan == function.plan == function.result.accumulation
    assert loaded.plan.steps > 1
    assert loaded.plan == plan_accumulation(20000, max(loaded.plan.micro_batches))


@pytest.mark.null_gpu
def test_bytes_may_be_given_as_a_number(tmp_path: Path) -> None:
    """`capacity` takes bytes, and a model that does not fit them has no plan, which is said."""
    document = probe(tmp_path / write_target(tmp_path), target_batch=8, gpu="t4", capacity=8 * 1024**2)
    assert document.result.capacity_bytes == 8 * 1024**2
    assert document.exit_code == 1
    with pytest.raises(NoAnswerError, match=r"there is no plan for .* nothing fits"):
        _ = document.plan


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"memory": "much"}, "`memory much` is not a size"),
        ({"memory": -1}, "is negative"),
        ({"memory": 0}, "less than one byte"),
        ({"headroom": 1.5}, "`headroom 1.5` is not below 1"),
        ({"precision": "int8"}, "`precision` is `'int8'`"),
        ({"engine": "tpu"}, "`engine` is `'tpu'`"),
        ({"target_batch": "256"}, "`target_batch` is `'256'`"),
        ({"target_batch": 0}, "target batch 0 is not a number of samples"),
        ({"world_size": 2.0}, "`world_size` is `2.0`"),
        ({"trial_timeout": 0}, "no length of time"),
        ({"trial_timeout": "5"}, "`trial_timeout` is `'5'`, which is no length of time"),
        ({"trial_timeout": float("inf")}, "`trial_timeout` is `inf`"),
        ({"gpu": "rtx-9999"}, "rtx-9999"),
        ({"gpu": 5}, "`gpu` is `5`, which is no text"),
        ({"optimizer": 5}, "`optimizer` is `5`, which is no text"),
        ({"memory": 1.5}, r"`memory` is `1\.5`, which is no whole number"),
        ({"device": 0.0, "gpu": None}, r"`device` is `0\.0`"),
        ({"headroom": None}, "`headroom None` is not a fraction"),
        ({"target_batch": True}, "`target_batch` is `True`"),
        ({"target": None}, "`target` is `None`, which names no file"),
        ({"target": b"model.py"}, "names no file"),
    ],
)
def test_a_wrong_argument_is_said(arguments: dict[str, object], problem: str) -> None:
    """What an option would refuse, the function refuses before anything is started, as a UsageError."""
    with pytest.raises(UsageError, match=problem) as refusal:
        probe(**{"target": "gpt2", "target_batch": 8, "gpu": "t4", **arguments})  # type: ignore[arg-type]
    assert refusal.value.exit_code == 2


def test_a_missing_target_is_a_target_error() -> None:
    """A file that is not there is the target's error, with the exit code that the command would have."""
    with pytest.raises(TargetError, match=r"nowhere\.py"):
        probe("nowhere.py", target_batch=8, gpu="t4")


def test_a_result_of_lint_has_no_plan(tmp_path: Path) -> None:
    """Any command's result is loaded, and one that is not a probe's says that it has no plan."""
    (tmp_path / "train.py").write_text("import torch\n")
    run_command(["lint", "train.py", "--format", "json", "-o", "lint.json"], cwd=tmp_path)
    document = load_result(str(tmp_path / "lint.json"))
    assert document.command == "lint"
    with pytest.raises(UsageError, match="not a probe's and has no plan"):
        _ = document.plan


def test_a_file_that_is_no_result_is_refused(tmp_path: Path) -> None:
    """A missing file and foreign JSON are said to be such."""
    (tmp_path / "other.json").write_text("{}")
    with pytest.raises(UsageError, match="no such file"):
        load_result(tmp_path / "oomdoctor.json")
    with pytest.raises(UsageError, match="no `schema_version`"):
        load_result(tmp_path / "other.json")
