"""Mistakes on the command line: one form for all, the words of the program, and the help that has the options."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from running import INVOCATIONS, Run
from targets_for_tests import write_target


@pytest.mark.parametrize(
    ("arguments", "message", "help_of"),
    [
        (("probe", "m.py", "--target-batch", "x"), "invalid value for '--target-batch': give a whole number", "probe"),
        (("probe", "m.py", "--trial-timeout", "x"), "invalid value for '--trial-timeout': give a number", "probe"),
        (("probe", "m.py", "--precision", "x"), "'x' is not one of 'fp32', 'bf16', 'fp16'", "probe"),
        (("gpus", "--jobs", "0"), "give 1 or more", "gpus"),
        (("check", "--jobs", "x"), "give a whole number", "check"),
        (("lint", "--fail-on", "x"), "'x' is not one of 'note', 'warning', 'error'", "lint"),
        (("rule", "--format", "x"), "'x' is not one of 'text', 'json', 'markdown'", "rule"),
        (("diagnose",), "missing argument", "diagnose"),
        (("run", "--max-entries", "0", "true"), "give 1 or more", "run"),
    ],
)
def test_every_mistake_has_one_form(
    oomdoctor_here: Run, arguments: tuple[str, ...], message: str, help_of: str
) -> None:
    """An error, then a hint that names the command whose help has the options, whatever the command."""
    ended = oomdoctor_here(*arguments)

    assert ended.returncode == 2
    assert ended.stdout == ""
    assert ended.stderr.startswith("error: ")
    assert message in ended.stderr
    assert ended.stderr.endswith(f"\n\nhint: `oomdoctor {help_of} --help` lists what there is\n")
    assert "Input should be" not in ended.stderr


def test_a_card_for_verify_is_answered_with_where_it_runs(oomdoctor_here: Run) -> None:
    """Who names a card is told that none is used, and not an option that is spelled alike."""
    ended = oomdoctor_here("verify", "gpt2", "--gpu", "t4")

    assert ended.returncode == 2
    assert ended.stderr == (
        "error: no such option: --gpu\n\nhint: `verify` compares on the CPU, which needs no card; "
        "`oomdoctor verify --help` lists what there is\n"
    )


def test_no_command_is_answered_with_the_help(oomdoctor_here: Run) -> None:
    """Nothing at all is a question about everything."""
    ended = oomdoctor_here()

    assert ended.returncode == 2
    assert "Commands:" in ended.stdout + ended.stderr
    assert "error:" not in ended.stderr


@pytest.mark.parametrize("command", [("probe", "gpt2", "--gpu", "t4"), ("lint", "."), ("gpus", "--fit", "gpt2")])
def test_an_unknown_ending_is_refused_before_anything_runs(oomdoctor_here: Run, command: tuple[str, ...]) -> None:
    """A report is not written as text into a file that says that it is something else."""
    ended = oomdoctor_here(*command, "-o", "report.pdf")

    assert ended.returncode == 2
    assert "`report.pdf` ends in `.pdf`, which is no format of a report" in ended.stderr
    assert "`.json`, `.md`" in ended.stderr
    assert not Path("report.pdf").exists()


def test_a_format_goes_before_the_ending(tmp_path: Path, oomdoctor_here: Run) -> None:
    """Whoever names the format may name the file as they like."""
    write_target(tmp_path, "x = 1\n")

    ended = oomdoctor_here("lint", ".", "--format", "text", "-o", "report.log")

    assert ended.returncode == 0, ended.stderr
    assert (tmp_path / "report.log").read_text() == "No findings: no file of 1 uses torch.\n"


def test_a_closed_standard_output_is_said(tmp_path: Path) -> None:
    """A report that nobody can have got does not count as given."""
    command = [*INVOCATIONS["python -m oomdoctor"], "gpus", "--known", "--json"]
    line = f"exec {' '.join(command)} >&-"

    ended = subprocess.run(["sh", "-c", line], stderr=subprocess.PIPE, text=True, cwd=tmp_path, check=False)

    assert ended.returncode == 2
    assert ended.stderr == "error: standard output is closed\n\nhint: write to a file with `-o`\n"


def test_shells_complete(oomdoctor: Run) -> None:
    """Completion is installed as for every program made with Typer, whatever shell the tests were started from."""
    ended = oomdoctor("--show-completion", "bash", _TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION="1")

    assert ended.returncode == 0, ended.stderr
    assert "_OOMDOCTOR_COMPLETE=complete_bash" in ended.stdout
