"""A command that cannot be probed is answered with what was wrong, what to do and an exit code of its own."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from command_running import BATCH, PYTHON, ask, small_copy
from running import run_here

pytestmark = pytest.mark.null_gpu


@dataclass(frozen=True)
class Case:
    """One wrong question.

    Attributes:
        name: What is wrong.
        arguments: Of `oomdoctor probe`, beside the target batch.
        says: What the error must hold.
        hint: What the hint must hold.
        exit_code: What oomdoctor must end with.
    """

    name: str
    arguments: tuple[str, ...]
    says: str
    hint: str = ""
    exit_code: int = 2


_AT_ONCE = [
    Case("no placeholder", ("--", PYTHON, "train.py", "--batch-size", "8"), "has no `{micro_batch}`", "--batch-size {"),
    Case("another placeholder", ("--", PYTHON, "{batch_size}"), "has no `{micro_batch}`", "instead of `{batch_size}`"),
    Case("no such program", ("--", "no-such-program", "{micro_batch}"), "not found: `no-such-program`", "after `--`"),
    Case("no interpreter", ("--", "train.py", "{micro_batch}"), "not found: `train.py`", "-- python train.py"),
    Case(
        "a precision", ("--precision", "bf16", "--", PYTHON, "{micro_batch}"), "`--precision` is for files", "drop it"
    ),
    Case(
        "an optimizer", ("--optimizer", "SGD", "--", PYTHON, "{micro_batch}"), "`--optimizer` is for files", "drop it"
    ),
    Case("steps of a file", ("--steps", "3", "model.py"), "`--steps` is for commands", "drop it"),
    Case("a file anew", ("--fresh", "model.py"), "`--fresh` is for commands", "drop it"),
    Case("counted steps of a file", ("--count-steps", "backward", "model.py"), "`--count-steps` is for", "drop it"),
    Case("no steps", ("--steps", "0", "--", PYTHON, "{micro_batch}"), "invalid value for '--steps'"),
    Case(
        "a file and a command",
        ("model.py", "--", PYTHON, "train.py", *BATCH),
        "a file, `model.py`, and a command",
        "one at a time",
    ),
    Case("nothing", (), "missing argument"),
    Case("nothing after `--`", ("--",), "missing argument"),
    Case("no `--`", (PYTHON, "train.py", "--batch-size", "{micro_batch}"), "no such option"),
    Case("a world that does not divide", ("--world-size", "3", "--", PYTHON, "{micro_batch}"), "3", ""),
    Case("an unknown card", ("--gpu", "rtx-9999", "--", PYTHON, "{micro_batch}"), "rtx-9999", ""),
]


@pytest.mark.parametrize("case", _AT_ONCE, ids=lambda case: case.name)
def test_a_wrong_question_is_answered_at_once(tmp_path: Path, case: Case) -> None:
    """What can be seen without running anything is refused before the command starts."""
    (tmp_path / "train.py").write_text("open('it_ran', 'w')\n")
    ended = run_here(["probe", "--target-batch", "8", "--engine", "null", *case.arguments], tmp_path)

    assert (ended.returncode, ended.stdout) == (case.exit_code, ""), ended.stderr
    assert case.says in ended.stderr
    assert not case.hint or case.hint in ended.stderr.partition("hint:")[2]
    assert not (tmp_path / "it_ran").exists()


# Large output, and then an end without torch.
_PRINTS = "import sys; sys.stdout.write('x' * 10_000_000); print('the last line'); sys.exit(7)"

_TRIED = [
    Case("no such script", (PYTHON, "no_such.py", *BATCH), "can't open file", exit_code=2),
    Case("no Python at all", ("sh", "-c", "echo 'all is well'", "{micro_batch}"), "imported torch", "PyTorch"),
    Case("no torch", (PYTHON, "numpy_only.py", *BATCH), "no Python of the command imported torch", "PyTorch"),
    Case("a syntax error", (PYTHON, "-c", "def x(:", "{micro_batch}"), "SyntaxError: invalid syntax"),
    Case(
        "a word in braces",
        (PYTHON, "-c", "import sys, torch; int(sys.argv[2])", "{micro_batch}", "{len}"),
        "{len}",
        "--at len=SIZE",
    ),
    Case("much output", (PYTHON, "-c", _PRINTS, "{micro_batch}"), "exit code 7 before its first optimizer step"),
    Case("a crash", ("sh", "-c", "kill -SEGV $$", "{micro_batch}"), "signal 11 before its first optimizer step"),
    Case(
        "no torch in time",
        ("sh", "-c", "exec sleep 600", "{micro_batch}"),
        "before its time was up",
        "--trial-timeout",
        exit_code=3,
    ),
]


@pytest.mark.parametrize("case", _TRIED, ids=lambda case: case.name)
def test_a_command_that_does_not_train_is_answered(tmp_path: Path, case: Case) -> None:
    """The end of the command's own output is shown, nothing is printed as data, and the exit code says whose fault."""
    options = ("--target-batch", "8", "--trial-timeout", "2" if case.exit_code == 3 else "60")
    ended = ask(small_copy(tmp_path), *options, "--", *case.arguments)

    assert (ended.returncode, ended.stdout) == (case.exit_code, ""), ended.stderr
    assert ended.stderr.startswith("error: ")
    assert case.says in ended.stderr
    assert case.hint in ended.stderr.partition("hint:")[2]
    assert len(ended.stderr) < 20_000


def test_an_error_of_some_sizes_is_no_answer(tmp_path: Path) -> None:
    """A script that refuses batches above eight is at fault at the size it refused, with its own traceback."""
    ended = ask(small_copy(tmp_path), "--target-batch", "12", "--", sys.executable, "fails_above_eight.py", *BATCH)

    assert (ended.returncode, ended.stdout) == (2, "")
    assert "at most 8 samples in a batch, not 12" in ended.stderr
    assert "micro-batch 12" in ended.stderr.splitlines()[0]
    assert "fails_above_eight.py" in ended.stderr
