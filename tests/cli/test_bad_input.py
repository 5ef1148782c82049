"""Bad input gets what was wrong, where, what to do, its own exit code, and nothing on stdout."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from running import Run
from targets_for_tests import MLP, write_target

pytestmark = pytest.mark.null_gpu  # some start an oomdoctor of their own

NULL = ("--engine", "null", "--capacity", "1GiB")


@dataclass(frozen=True)
class Case:
    """One wrong question.

    Attributes:
        name: What is wrong.
        exit_code: What the command must end with.
        says: Texts that stderr must hold: what was wrong, and where.
        hint: Text that the hint must hold: what to do.
        target: The target's file, where it is the file that is wrong.
        arguments: The command's arguments.
    """

    name: str
    exit_code: int
    says: tuple[str, ...]
    hint: str
    target: str = MLP
    arguments: tuple[str, ...] = ("model.py", "--target-batch", "8", *NULL)
    replacements: dict[str, str] = field(default_factory=dict)


def _with(**replacements: str) -> dict[str, dict[str, str]]:
    return {"replacements": replacements}


def _step(body: str) -> dict[str, dict[str, str]]:
    return _with(training_step=f"def training_step(model, batch):\n    {body}\n")


def _batch(body: str) -> dict[str, dict[str, str]]:
    return _with(make_batch=f"def make_batch(batch_size):\n    {body}\n")


def _model(body: str) -> dict[str, dict[str, str]]:
    return _with(build_model=f"def build_model():\n    {body}\n")


CASES = [
    Case("no such file", 2, ("modle.py",), "model.py", arguments=("modle.py", "--target-batch", "8", *NULL)),
    Case("a directory", 2, ("directory",), "model.py", arguments=(".", "--target-batch", "8", *NULL)),
    Case("a syntax error", 2, ("model.py", "line 2", "^"), "", target="import torch\ndef build_model(:\n"),
    Case("no build_model", 2, ("build_model",), "def build_model", target=MLP.replace("def build_model", "def make")),
    Case("build_model raises", 2, ("build_model", "KeyError: 'width'"), "", **_model("return {}['width']")),
    Case(
        "build_model returns a number", 2, ("build_model", "int", "torch.nn.Module"), "return it", **_model("return 3")
    ),
    Case("no make_batch", 2, ("make_batch",), "def make_batch", target=MLP.replace("def make_batch", "def other")),
    Case(
        "make_batch ignores the size",
        2,
        ("ignores `batch_size`",),
        "batch_size",
        **_batch("return torch.ones(4, 1024)"),
    ),
    Case(
        "make_batch raises at some sizes",
        2,
        ("make_batch(8)", "ValueError: only small ones"),
        "",
        **_batch("if batch_size > 2: raise ValueError('only small ones')\n    return torch.ones(batch_size, 1024)"),
    ),
    Case("the loss is no scalar", 2, ("not a scalar", "[", "1024]"), ".mean()", **_step("return model(batch)")),
    Case("the loss is detached", 2, ("not attached",), "detach", **_step("return model(batch).mean().detach()")),
    Case(
        "a wrong device",
        2,
        ("device",),
        "oomdoctor places",
        **_step("return (model(batch) + torch.ones(1024)).mean()"),
    ),
    Case("exit in the step", 2, ("exit(5)", "called exit with 5"), "must return", **_step("exit(5)")),
    Case("os._exit in the step", 2, ("exit code 3",), "os._exit", **_step("import os; os._exit(3)")),
    Case(
        "a segmentation fault",
        3,
        ("SIGSEGV", "micro-batch 8"),
        "crash",
        **_step("import ctypes; ctypes.string_at(0)"),
    ),
    Case(
        "an endless loop",
        3,
        ("micro-batch", "longer than 6 s"),
        "--trial-timeout",
        arguments=("model.py", "--target-batch", "8", *NULL, "--trial-timeout", "6"),
        **_step("while True: pass"),
    ),
    Case(
        "a batch norm that refuses one sample, and nothing else asked",
        2,
        ("Expected more than 1 value",),
        "",
        arguments=("model.py", "--target-batch", "1", *NULL),
        **_with(build_model="def build_model():\n    return nn.Sequential(nn.Linear(1024, 8), nn.BatchNorm1d(8))\n"),
    ),
    Case(
        "a call that the null GPU does not serve",
        3,
        ("does not serve `cusparse",),
        "with a CUDA GPU",
        **_step("return (torch.eye(8).to_sparse_csr().cuda() @ torch.ones(8, 8).cuda()).mean()"),
    ),
    Case(
        "lazy modules",
        2,
        ("lazy modules",),
        "build_model",
        **_model("return nn.Sequential(nn.LazyLinear(8), nn.LazyLinear(4))"),
    ),
    Case(
        "an error that has no text",
        2,
        ("micro-batch", "Silent"),
        "",
        **_step(
            "class Silent(Exception):\n        def __str__(self):\n            raise KeyError('no')\n    raise Silent"
        ),
    ),
    Case(
        "an optimizer that wants a closure",
        2,
        ("lbfgs",),
        "`AdamW`",
        arguments=("model.py", "--target-batch", "8", *NULL, "--optimizer", "lbfgs"),
    ),
    Case(
        "a closure in the file",
        2,
        ("LBFGS",),
        "closure",
        target=MLP + "\n\ndef build_optimizer(model):\n    return torch.optim.LBFGS(model.parameters())\n",
    ),
    Case(
        "a generator", 2, ("`make_batch` returned a generator",), "yield", **_batch("yield torch.ones(batch_size, 4)")
    ),
    Case(
        "arrays of another library",
        2,
        ("NumPy",),
        "torch.from_numpy",
        **_batch("import numpy; return numpy.ones((batch_size, 1024))"),
    ),
    Case("an empty batch", 2, ("empty",), "tensors", **_batch("return []")),
    Case(
        "a decision on what was computed",
        3,
        ("read data back", "ValueError: not finite"),
        "CUDA GPU",
        **_step("loss = model(batch).mean()\n    if loss.item() == 0: raise ValueError('not finite')\n    return loss"),
    ),
    Case(
        "a library that a step needs after it has read a value",
        2,
        ("error: micro-batch 8 fails: the training step raised `ImportError: scipy is needed`",),
        "install what it names",
        **_step(
            "loss = model(batch).mean()\n"
            "    if loss.item() != 0: return loss\n"
            "    raise ImportError('\\nscipy is needed\\n')"
        ),
    ),
    Case(
        "a report into a directory that is not there",
        2,
        ("nowhere` is not a directory", "nowhere/report.json"),
        "create it",
        arguments=("model.py", "--target-batch", "8", *NULL, "-o", "nowhere/report.json"),
    ),
    Case(
        "a dry run as JSON",
        2,
        ("--dry-run",),
        "--json",
        arguments=("model.py", "--target-batch", "8", *NULL, "--dry-run", "--json"),
    ),
    Case("target batch 0", 2, ("target",), "", arguments=("model.py", "--target-batch", "0", *NULL)),
    Case("target batch negative", 2, ("target",), "", arguments=("model.py", "--target-batch", "-4", *NULL)),
    Case("a target of an epoch", 2, ("1000000000000",), "epoch", arguments=("model.py", "--target-batch", str(10**12))),
    Case(
        "a world without a target batch",
        2,
        ("world size 2", "target batch"),
        "add the target batch",
        arguments=("model.py", "--world-size", "2", *NULL),
    ),
    Case(
        "memory and capacity",
        2,
        ("`--memory` and `--capacity` exclude each other",),
        "give one",
        arguments=("model.py", "--memory", "2GiB", *NULL),
    ),
    Case(
        "two cards",
        2,
        ("`--gpu` names 2 cards",),
        "`oomdoctor gpus --fit`",
        arguments=("model.py", "--gpu", "t4", "--gpu", "l4"),
    ),
    Case(
        "a reserve that leaves nothing",
        2,
        ("`--reserve` leaves nothing", "1.00 GiB"),
        "for example `--reserve 1GiB`",
        arguments=("model.py", "--reserve", "1GiB", *NULL),
    ),
    Case(
        "a target that the world size does not divide",
        2,
        ("256", "3"),
        "255",
        arguments=("model.py", "--target-batch", "256", "--world-size", "3", *NULL),
    ),
    Case(
        "an unknown GPU",
        2,
        ("rtx-4099",),
        "rtx-4090",
        arguments=("model.py", "--target-batch", "8", "--gpu", "rtx-4099"),
    ),
    Case(
        "memory without a unit",
        2,
        ("--memory", "24"),
        "24GiB",
        arguments=("model.py", "--target-batch", "8", "--memory", "24"),
    ),
    Case("no GPU and no --gpu", 3, ("GPU",), "--gpu", arguments=("model.py", "--target-batch", "8")),
    Case(
        "an unknown optimizer",
        2,
        ("Adamm",),
        "Adam",
        arguments=("model.py", "--target-batch", "8", *NULL, "--optimizer", "Adamm"),
    ),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_bad_input_is_answered(case: Case, tmp_path: Path, oomdoctor_here: Run) -> None:
    """Each wrong question has its own message, hint and exit code, and no stack trace of ours."""
    write_target(tmp_path, case.target, **case.replacements)

    ended = oomdoctor_here("probe", *case.arguments, "--quiet")

    assert ended.returncode == case.exit_code, ended.stderr
    assert ended.stdout == ""
    for text in case.says:
        assert text in ended.stderr
    assert case.hint in ended.stderr.rpartition("hint:")[2]
    assert "oomdoctor/trial" not in ended.stderr
    assert {path.name for path in tmp_path.iterdir()} <= {"model.py", "__pycache__"}


@pytest.mark.parametrize(
    ("setting", "says"), [("backend:cudaMallocAsync", "cudaMallocAsync"), ("garbage:1", "garbage")]
)
def test_an_allocator_that_cannot_be_had_is_named(tmp_path: Path, oomdoctor_here: Run, setting: str, says: str) -> None:
    """What PYTORCH_CUDA_ALLOC_CONF asks for and cannot be had is named, and is not called the target's fault."""
    write_target(tmp_path)

    ended = oomdoctor_here(
        "probe", "model.py", "--target-batch", "8", *NULL, "--quiet", PYTORCH_CUDA_ALLOC_CONF=setting
    )

    assert ended.returncode == 3, ended.stderr
    assert says in ended.stderr
    assert "PYTORCH_CUDA_ALLOC_CONF" in ended.stderr.rpartition("hint:")[2]


def test_a_step_that_reads_back_is_warned_of(tmp_path: Path, oomdoctor_here: Run) -> None:
    """On a null GPU a boolean mask selects all, memory behind a condition is not seen, and the result says so."""
    step = "return model(batch)[batch[:, 0] > 0].mean() + (model(batch).mean() if batch.sum() > 0 else 0)"
    write_target(tmp_path, **_step(step)["replacements"])

    ended = oomdoctor_here("probe", "model.py", "--target-batch", "8", *NULL, "--quiet")

    assert ended.returncode == 0, ended.stderr
    said = " ".join(ended.stdout.split())
    assert "on a null GPU that is zeros" in said
    assert "(the most rows that there can be)" in said


def test_closed_standard_streams_do_no_harm(tmp_path: Path) -> None:
    """A daemon without stdin, stdout and stderr gets its report in a file."""
    write_target(tmp_path)
    command = [sys.executable, "-m", "oomdoctor", "probe", "model.py", "--target-batch", "8", *NULL, "-o", "report.txt"]

    ended = subprocess.run(["sh", "-c", '"$@" <&- >&- 2>&-', "sh", *command], cwd=tmp_path, timeout=100, check=False)

    assert ended.returncode == 0
    assert "micro-batch 8 fits" in (tmp_path / "report.txt").read_text()


def test_a_full_disk_is_said() -> None:
    """A stdout that cannot be written to is an error of its own, not a bug."""
    with Path("/dev/full").open("w") as full:
        ended = subprocess.run(
            [sys.executable, "-m", "oomdoctor", "gpus", "--known"], stdout=full, stderr=subprocess.PIPE, text=True,
            check=False,
        )  # fmt: skip

    assert ended.returncode != 70
    assert "standard output cannot be written" in ended.stderr


def test_control_characters_of_an_error_do_not_reach_the_terminal(tmp_path: Path, oomdoctor_here: Run) -> None:
    """An exception's text is shown without what a terminal would obey."""
    write_target(tmp_path, **_step("raise ValueError('red \\x1b[31m and \\0 nothing')")["replacements"])

    ended = oomdoctor_here("probe", "model.py", "--target-batch", "8", *NULL, "--quiet")

    assert ended.returncode == 2
    assert "red [31m and  nothing" in ended.stderr
    assert "\x1b" not in ended.stderr


def test_prints_never_reach_stdout(tmp_path: Path, oomdoctor_here: Run) -> None:
    """Ten megabytes of prints from the user's code neither block the probe nor reach our stdout."""
    body = "print('noise ' * 200_000)\n    return model(batch).mean()"
    write_target(tmp_path, **_step(body)["replacements"])

    ended = oomdoctor_here("probe", "model.py", "--target-batch", "8", *NULL, "--json")

    assert ended.returncode == 0, ended.stderr
    assert "noise" not in ended.stdout + ended.stderr
    assert ended.stdout.startswith("{")


def test_a_fork_in_the_users_code_answers_once(tmp_path: Path, oomdoctor_here: Run) -> None:
    """A copy of the worker that comes back from the user's code does not answer in its place."""
    write_target(tmp_path, **_step("import os; os.fork()\n    return model(batch).mean()")["replacements"])

    ended = oomdoctor_here("probe", "model.py", "--target-batch", "8", *NULL, "--quiet")

    assert ended.returncode == 0, ended.stderr
    assert "8 fits" in ended.stdout


def test_a_swallowed_oom_counts(tmp_path: Path, oomdoctor_here: Run) -> None:
    """A step that catches its own OutOfMemoryError and goes on does not fit."""
    body = """try:
        torch.empty(batch.shape[0] * 2**26, device=batch.device)
    except torch.OutOfMemoryError:
        pass
    return model(batch).mean()"""
    write_target(tmp_path, **_step(body)["replacements"])

    ended = oomdoctor_here("probe", "model.py", "--target-batch", "8", *NULL, "--quiet")

    assert ended.returncode == 0, ended.stderr
    assert "micro-batch 1 fits" in ended.stdout
    assert "caught" in ended.stdout


# A batch norm refuses one sample, and each sample takes a buffer of so many MiB.
REFUSING = """
import torch
from torch import nn


def build_model():
    return nn.Sequential(nn.Linear(1024, 8), nn.BatchNorm1d(8))


def make_batch(batch_size):
    return torch.randn(batch_size, 1024)


def training_step(model, batch):
    buffer = torch.empty(batch.shape[0] * MIB * 2**18, device=batch.device)
    return model(batch).mean() + 0 * buffer.sum()
"""


def test_a_batch_norm_that_refuses_one_sample_starts_at_two(tmp_path: Path, oomdoctor_here: Run) -> None:
    """A model that needs two samples is probed from two, and the result says so."""
    (tmp_path / "model.py").write_text(REFUSING.replace("MIB", "300"))

    ended = oomdoctor_here("probe", "model.py", "--target-batch", "64", *NULL, "--quiet")

    assert ended.returncode == 0, ended.stderr
    assert "micro-batch 3 fits" in ended.stdout
    assert "refuses a micro-batch of 1" in " ".join(ended.stdout.split())


def test_a_plan_with_a_refused_size_is_said(tmp_path: Path, oomdoctor_here: Run) -> None:
    """Where the plan splits the target into sizes that the model refuses, the result warns of it."""
    (tmp_path / "model.py").write_text(REFUSING.replace("MIB", "400"))

    ended = oomdoctor_here("probe", "model.py", "--target-batch", "3", *NULL, "--quiet")

    assert ended.returncode == 0, ended.stderr
    assert "micro-batch 2 fits" in ended.stdout
    assert "smaller than 2, which the model refuses" in " ".join(ended.stdout.split())


def test_weights_that_do_not_fit_name_a_card_where_they_would(tmp_path: Path, oomdoctor_here: Run) -> None:
    """A model whose weights alone do not fit exits 1 and says by how much, and on which card they would."""
    write_target(tmp_path, build_model="def build_model():\n    return nn.Linear(1024, 2**19)\n")

    ended = oomdoctor_here(
        "probe", "model.py", "--target-batch", "8", "--engine", "null", "--capacity", "1GiB", "--quiet"
    )

    assert ended.returncode == 1, ended.stderr
    assert "weights alone do not fit" in " ".join(ended.stdout.split())
    assert "smallest known card" in " ".join(ended.stdout.split())
