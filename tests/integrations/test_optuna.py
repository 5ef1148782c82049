"""Optuna's trials are sized before they start; what cannot fit is pruned, and so is what runs out of memory."""

from __future__ import annotations

import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from threading import Barrier, BrokenBarrierError
from typing import Any

import optuna
import pytest
from optuna.trial import TrialState
from run_python import run_program
from sweep_targets import TARGET, WIDTHS
from targets_for_tests import write_target

from oomdoctor import probe
from oomdoctor.errors import NoAnswerError, TargetError, UsageError
from oomdoctor.integrations import MissingPackageError, sizing
from oomdoctor.integrations.optuna import prune_on_oom, size
from oomdoctor.units import GIB

GRID: dict[str, list[Any]] = {"width": [128, 512, 2048], "capacity": ["256MiB", "2GiB"]}
OOM = (
    "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 14.74 GiB of which 1.10 GiB is "
    "free. Of the allocated memory 13.00 GiB is allocated by PyTorch, and 20.00 MiB is reserved but unallocated."
)


@pytest.fixture
def folder(forked_workers: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with the model, and a sizer of its own."""
    write_target(tmp_path, WIDTHS)
    monkeypatch.chdir(tmp_path)
    sizing._sizer.cache_clear()
    optuna.logging.set_verbosity(optuna.logging.CRITICAL)
    return tmp_path


def _study(storage: str | None = None) -> optuna.Study:
    journal = optuna.storages.journal
    kept = journal.JournalStorage(journal.JournalFileBackend(storage)) if storage else None
    sampler = optuna.samplers.GridSampler(GRID, seed=0)
    return optuna.create_study(study_name="sweep", storage=kept, sampler=sampler, load_if_exists=True)


def _objective(trial: optuna.Trial) -> float:
    width = trial.suggest_categorical("width", GRID["width"])
    capacity = trial.suggest_categorical("capacity", GRID["capacity"])
    return size(trial, TARGET, target_batch=48, gpu="t4", capacity=capacity).steps / width


@pytest.mark.null_gpu
def test_a_sweep_has_one_effective_batch(folder: Path) -> None:
    """Each trial that can fit reaches the target, on two threads, across a restart; others are pruned and say why."""
    _study("journal").optimize(_objective, n_trials=4, n_jobs=2)
    sizing._sizer.cache_clear()  # as another process would begin
    study = _study("journal")
    study.optimize(_objective, n_trials=2, n_jobs=2)
    by_grid = {(trial.params["width"], trial.params["capacity"]): trial for trial in study.trials}
    assert len(by_grid) == 6
    fitting = [trial for trial in study.trials if trial.state is TrialState.COMPLETE]
    assert {trial.user_attrs["oomdoctor/effective_batch"] for trial in fitting} == {48}
    (none,) = [trial for trial in study.trials if trial.state is TrialState.PRUNED]
    assert none.params == {"width": 2048, "capacity": "256MiB"}
    assert none.user_attrs["oomdoctor/fits"] is False
    why = "no micro-batch of `model.py:build_model(width=2048)` fits Tesla T4: CUDA out of memory. Tried to allocate"
    assert none.user_attrs["oomdoctor/why"].startswith(why)
    plan = probe("model.py:build_model(width=512)", target_batch=48, gpu="t4", capacity="2GiB").plan
    found = by_grid[512, "2GiB"].user_attrs
    assert (found["oomdoctor/micro_batch"], found["oomdoctor/steps"]) == (max(plan.micro_batches), plan.steps)


@pytest.mark.null_gpu
def test_what_does_not_change_the_model_costs_no_probe(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sweep over learning rates asks once, until the file is edited."""
    asked: list[str] = []
    real = sizing.probe

    def counted(*args: Any, **kwargs: Any) -> Any:
        asked.append("")
        return real(*args, **kwargs)

    monkeypatch.setattr(sizing, "probe", counted)
    study = optuna.create_study()

    def objective(trial: optuna.Trial) -> float:
        trial.suggest_float("rate", 1e-4, 1e-1)
        return size(trial, "model.py", target_batch=8, gpu="t4").steps

    study.optimize(objective, n_trials=6, n_jobs=2)
    assert len(asked) == 1
    write_target(folder, WIDTHS.replace("16384", "8192"))
    study.optimize(objective, n_trials=2)
    assert len(asked) == 2


def test_threads_share_one_sizer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads that ask at once wait for the same answers, also where none asked before."""
    ready = Barrier(2)

    class Slow(sizing.Sizer):
        def __init__(self) -> None:
            with suppress(BrokenBarrierError):
                ready.wait(0.2)  # until the other is here as well, which must not be
            super().__init__()

    monkeypatch.setattr(sizing, "Sizer", Slow)
    sizing._sizer.cache_clear()
    with ThreadPoolExecutor() as pool:
        first, second = (pool.submit(sizing._own_sizer) for _ in range(2))
    sizing._sizer.cache_clear()
    assert first.result() is second.result()


def test_running_out_of_memory_prunes_and_other_errors_do_not() -> None:
    """The trial keeps the cause and a remedy; a `ValueError` fails its trial as it was raised."""

    @prune_on_oom
    def objective(trial: optuna.Trial) -> float:
        if trial.number:
            raise ValueError("a bug")
        raise RuntimeError(OOM)

    study = optuna.create_study()
    study.optimize(objective, n_trials=2, catch=(ValueError,))
    assert [trial.state for trial in study.trials] == [TrialState.PRUNED, TrialState.FAIL]
    notes = study.trials[0].user_attrs
    assert notes["oomdoctor/why"].startswith("RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB")
    assert notes["oomdoctor/cause"].startswith("batch_too_large: ")
    assert notes["oomdoctor/remedy"]


def test_an_error_on_top_of_running_out_is_pruned_for_its_reason() -> None:
    """The trial keeps the error that says that memory ran out, and not the one that was raised from it."""

    @prune_on_oom
    def objective(_: optuna.Trial) -> float:
        raise ValueError("this batch is bad") from RuntimeError(OOM)

    study = optuna.create_study()
    study.optimize(objective, n_trials=1)
    assert study.trials[0].user_attrs["oomdoctor/why"].startswith("RuntimeError: CUDA out of memory. Tried")


PROGRAM = """
import sys

import torch

from oomdoctor.integrations.recovery import run_or_diagnose


def train():
    held = [torch.empty(2**28, device="cuda")]
    while True:
        held.append(held[-1] * 2)


def count():
    return torch.cuda.memory_allocated(), torch.cuda.memory_reserved()


model = torch.zeros(1, device="cuda")
before = count()
found = run_or_diagnose(train)
print(found.error[:45], before == count(), sys.exc_info())
"""


def test_memory_is_given_back(null_environment: Callable[[int], dict[str, str]], tmp_path: Path) -> None:
    """After a trial ran out, PyTorch holds what it held before the trial."""
    (tmp_path / "program.py").write_text(PROGRAM)
    ran = run_program(sys.executable, [str(tmp_path / "program.py")], null_environment(8 * GIB), timeout=60)
    assert ran.stdout == "torch.OutOfMemoryError: CUDA out of memory. T True (None, None, None)\n", ran.stderr


def test_what_no_configuration_can_be_asked_is_named() -> None:
    """An option that is none, and a target batch that is no number of samples, are told by name."""
    with pytest.raises(UsageError, match="`gpus` is no option of a size"):
        sizing.size("model.py", {}, target_batch=8, gpu="t4", gpus="t4")  # type: ignore[call-arg]
    with pytest.raises(UsageError, match="target batch 0 is not a number of samples"):
        sizing.size("model.py", {}, target_batch=0, gpu="t4")


def test_what_cannot_be_filled_in_is_named() -> None:
    """A placeholder without a parameter, and what is no literal, no target or no trial, are told; the rest is read."""
    import numpy as np

    with pytest.raises(UsageError, match=r"`{wdith}` of `model.py:build_model.*` is no parameter of the configuration"):
        sizing.fill("model.py:build_model(width={wdith})", {"width": 2})
    with pytest.raises(UsageError, match=r"the parameter `width` is `<object object .*>`, which is no literal"):
        sizing.fill("model.py:build_model(width={width})", {"width": object()})
    with pytest.raises(UsageError, match=r"`{model.depth}` of .* is no parameter of the configuration"):
        sizing.fill("m:f({model.depth})", {"model": {"width": 2}})
    with pytest.raises(UsageError, match="`target` is `5`, which names no file"):
        sizing.build_question(5, {}, 8, "t4", {})  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="is no trial of Optuna's"):
        size({"width": 2}, TARGET, target_batch=8, gpu="t4")  # type: ignore[arg-type]
    values = {"width": np.int64(3), "name": "a'b", "rate": np.float32(0.5)}
    assert sizing.fill("m:f({width}, {name}, {rate})", values) == 'm:f(3, "a\'b", 0.5)'
    nested = {"model": {"width": 2, "head": {"dim": 4}}, "model.depth": 3}
    assert sizing.fill("m:f({model.width}, {model.head.dim}, {model.depth})", nested) == "m:f(2, 4, 3)"
    assert sizing.build_question("m:f({width})", {"width": 8, "card": "a10g"}, 8, "{card}", {}).gpu == "a10g"
    assert sizing.fill("--width={width} --batch={micro_batch}", values, str) == "--width=3 --batch={micro_batch}"


@pytest.mark.parametrize(
    ("target", "filled"),
    [
        ("timm:{name}", "timm:resnet18"),
        ("{name}.py:build_model(width={width}, name={name})", "resnet18.py:build_model(width=8, name='resnet18')"),
        ("runs (1)/{name}.py:{name}(width={width})", "runs (1)/resnet18.py:resnet18(width=8)"),
    ],
)
def test_names_are_filled_in_as_text(target: str, filled: str) -> None:
    """Outside the arguments a placeholder stands for a name, without quotation marks; among them for a literal."""
    question = sizing.build_question(target, {"name": "resnet18", "width": 8}, 8, "t4", {})

    assert question.target == filled


def test_without_a_gpu_the_card_is_asked_for(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """A machine without a GPU says what to add, and an error of the target's stays what it is."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    trial = optuna.trial.FixedTrial({"width": 8})
    with pytest.raises(NoAnswerError, match="GPU"):
        size(trial, "model.py", target_batch=8)
    with pytest.raises(TargetError, match="no such file"):
        size(trial, "modle.py", target_batch=8, gpu="t4")


def test_a_package_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """An integration without its package says what installs it; it is an ImportError as well."""
    monkeypatch.setitem(sys.modules, "optuna", None)
    monkeypatch.delitem(sys.modules, "oomdoctor.integrations.optuna")
    with pytest.raises(MissingPackageError, match="`optuna` is not installed") as caught:
        import_module("oomdoctor.integrations.optuna")
    assert caught.value.hint == "pip install 'oomdoctor[optuna]'"
    assert isinstance(caught.value, ImportError)
