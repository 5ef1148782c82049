"""Probes of commands whose batch size is a literal in a file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from command_running import PYTHON, ask, reasons, small_copy
from running import Run, run_here

from oomdoctor.command.outcome import unset_error
from oomdoctor.command.trial_events import TrialEvents
from oomdoctor.request import read_override
from oomdoctor.target.literals import find_literals

pytestmark = pytest.mark.null_gpu

_LITERAL_LOOP = """
import torch
from tiny import build_model, loss_of
from settings import Settings

BATCH = 8


def main():
    model = build_model().cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(100_000):
        for _ in range(Settings.accumulate):
            (loss_of(model, torch.randn(BATCH, 16, 256, device="cuda")) / Settings.accumulate).backward()
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    main()
"""
_SETTINGS = "class Settings:\n    accumulate: int = 1\n"
_SETS = ("--set", "loop.py:BATCH={micro_batch}", "--set", "settings.py:accumulate={accumulation_steps}")


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A user's directory."""
    directory = small_copy(tmp_path_factory.mktemp("literals"))
    (directory / "loop.py").write_text(_LITERAL_LOOP)
    (directory / "settings.py").write_text(_SETTINGS)
    return directory


@pytest.fixture(scope="module")
def found(directory: Path) -> dict[str, Any]:
    """What a probe finds that sets both literals."""
    words = ("--target-batch", "2000", "--capacity", "256MiB", *_SETS, "-o", "found.json", "--", PYTHON, "loop.py")
    ended = ask(directory, *words)
    assert ended.returncode == 0, ended.stderr
    result: dict[str, Any] = json.loads((directory / "found.json").read_text())["result"]
    return result


def test_both_sizes_reach_the_command(directory: Path, found: dict[str, Any]) -> None:
    """The script's own variable and another file's follow the sizes, in forked trials too; no file is changed."""
    tried = {(trial["micro_batch"], trial["outcome"]) for trial in found["trials"]}
    maximum = found["micro_batch"]["maximum"]

    assert {(maximum, "fits"), (maximum + 1, "oom")} <= tried
    assert {trial["micro_batches_per_step"] for trial in found["trials"]} >= {2}
    assert found["accumulation"]["effective_batch"] >= 2000
    assert "to the byte" in reasons(found)["starts"]
    assert "`BATCH` in line 6 of `loop.py`" in reasons(found)["literals"]
    assert (directory / "loop.py").read_text() == _LITERAL_LOOP
    assert not any("accumulation_steps" in warning for warning in found["warnings"])


def test_a_plain_step_is_told_where_accumulating_makes_the_answer_smaller(found: dict[str, Any]) -> None:
    """As of a file: the largest size that accumulates nothing was run and fits, and its successor does not."""
    plain, maximum = found["micro_batch"]["plain_maximum"], found["micro_batch"]["maximum"]
    tried = {(each["micro_batch"], each["outcome"]) for each in found["trials"] if each["micro_batches_per_step"] == 1}

    assert plain > maximum
    assert {(plain, "fits"), (plain + 1, "oom")} <= tried


@pytest.mark.parametrize("form", ["text", "markdown", "html", "github"])
def test_every_report_names_the_lines_to_edit(directory: Path, found: dict[str, Any], form: str) -> None:
    """Beside the command stands each line that has to be edited, and what stands there now."""
    plan = found["command_plan"]
    told = run_here(["report", "found.json", "--format", form], directory).stdout

    assert [(each["file"], each["line"], each["name"], each["text"], each["new"]) for each in plan["literals"]] == [
        ("loop.py", 6, "BATCH", "8", str(plan["sizes"]["micro_batch"])),
        ("settings.py", 2, "accumulate", "1", str(plan["sizes"]["steps"])),
    ]
    assert f"BATCH = {plan['sizes']['micro_batch']}" in told
    assert "in line 6 of loop.py, instead of 8" in " ".join(told.split())


def test_a_file_that_never_runs_is_named(directory: Path) -> None:
    """A literal of a file that no process of the command ran has no effect, and that is said."""
    literals = find_literals([read_override(text) for text in _SETS[1::2]], directory)
    error = unset_error(literals, TrialEvents(edited={str(directory / "loop.py")}))

    assert error is not None
    assert error.message == f"`accumulate` was not set: no Python of the command ran `{directory / 'settings.py'}`"
    assert unset_error(literals, TrialEvents(edited={str(each.path) for each in literals})) is None


def test_both_ways_are_named_where_there_is_neither(directory: Path, oomdoctor_here: Run) -> None:
    """A command without a place for its size is shown the literals of its own script."""
    ended = oomdoctor_here("probe", "--gpu", "t4", "--", PYTHON, str(directory / "loop.py"))

    assert ended.returncode == 2
    assert "--batch-size {micro_batch}" in ended.stderr
    assert "`BATCH = 8` in line 6" in ended.stderr
    assert f"--set '{directory / 'loop.py'}:BATCH={{micro_batch}}'" in ended.stderr


def test_a_script_is_answered_with_its_literal(directory: Path, oomdoctor_here: Run) -> None:
    """`probe loop.py` of a script whose batch size is a literal is answered with the command that sets it."""
    path = directory / "own.py"
    path.write_text("import torch\nbatch_size = 4\ntorch.nn.Linear(1, 1)(torch.zeros(1, 1)).sum().backward()\n")
    ended = oomdoctor_here("probe", str(path), "--gpu", "t4")

    line = f"oomdoctor probe --gpu t4 --set '{path}:batch_size={{micro_batch}}' -- python {path}\n"
    assert ended.returncode == 2
    assert ended.stderr.endswith(line)
    one_word = oomdoctor_here("probe", "--set", f"{path}:batch_size={{micro_batch}}", str(path))
    assert "a script is run by its interpreter, for example `-- python " in one_word.stderr
