"""The GitHub Action: its steps run as a runner runs them, with inputs that nobody means well."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from github_runner import ACTION, Ended, Runner, read_outputs
from running import ROOT
from targets_for_tests import LEAKING_LOOP, write_target

from oomdoctor import load_result
from oomdoctor.api import github_action
from oomdoctor.results import ProbeDocument

DESCRIBED = yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))
NONE = {"exit-code": "2", "micro-batch": "", "accumulation-steps": "", "report": ""}

HOSTILE = {
    "substitution": "$(touch pwned)",
    "backticks": "`touch pwned`",
    "another command": "; touch pwned #",
    "and another": "x && touch pwned || touch pwned",
    "double quotes": '" ; touch pwned ; "',
    "single quotes": "' ; touch pwned ; '",
    "newlines": "x\ntouch pwned\n",
    "set-output": "x\n::set-output name=exit-code::0\n##[set-env name=PATH]pwned",
    "a command": "::add-mask::x\n::error::pwned",
    "an output": "x\nexit-code=0\nmicro-batch<<EOF\n9\nEOF",
    "an expression": "${{ github.token }} ${IFS} $HOME ~ * {a,b} <(touch pwned) > pwned",
    "dashes": "--help",
    "a dash": "-c",
    "spaces": "  a  b  ",
    "carriage returns": "x\r::error::pwned\r",
    "terminal codes": "\x1b[2J\x1b]0;pwned\x07 \u202e",
}


@pytest.fixture
def runner(tmp_path: Path) -> Runner:
    """A runner with an empty checkout that has a space in its name."""
    workspace, temporary = tmp_path / "the checkout", tmp_path / "the runner"
    workspace.mkdir()
    temporary.mkdir()
    return Runner(workspace, temporary)


def _files(folder: Path) -> set[str]:
    return {path.name for path in folder.rglob("*")}


def _assert_unharmed(runner: Runner, ended: Ended) -> None:
    """Nothing was run, no output has another value than ours, and the runner heard nothing but annotations."""
    assert not any("pwned" in name for name in _files(runner.workspace) | _files(runner.temporary))
    assert ended.outputs["micro-batch"] == ""
    assert re.fullmatch(r"|[0-3]", ended.outputs["exit-code"])
    assert all(re.match(r"::(error|warning|notice) ", command) for command in ended.commands)
    assert not any("pwned" in command for command in ended.commands)


def test_no_input_is_put_into_a_script() -> None:
    """No `run:` has an expression in it; each input that a step needs comes in a variable of the step."""
    for step in DESCRIBED["runs"]["steps"]:
        assert "${{" not in step["run"]
        assert all(
            re.fullmatch(r"\$\{\{ inputs\.[a-z-]+ \}\}", value) and name == _variable(value[11:-3])
            for name, value in step["env"].items()
        )
    passed = {name for step in DESCRIBED["runs"]["steps"] for name in step["env"]}
    assert passed == {_variable(name) for name in DESCRIBED["inputs"]}


def _variable(name: str) -> str:
    return "INPUT_" + name.upper().replace("-", "_")


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE.keys())
def test_hostile_arguments_are_words(runner: Runner, text: str) -> None:
    """Whatever `arguments` and `output` hold is given to the command as words, and to nothing else."""
    ended = runner.use(ACTION, {"command": "lint", "arguments": text, "output": text})
    _assert_unharmed(runner, ended)


@pytest.mark.parametrize("name", ["command", "working-directory", "python", "summary", "fail"])
def test_other_hostile_inputs_are_refused(runner: Runner, name: str) -> None:
    """The inputs that choose something refuse what they cannot be, without repeating it."""
    for text in HOSTILE.values():
        ended = runner.use(ACTION, {"command": "lint", name: text})
        assert ended.code != 0
        _assert_unharmed(runner, ended)


def test_a_hostile_name_of_a_file_is_an_annotation_at_most(runner: Runner) -> None:
    """A file of the checkout whose name is a command to the runner is linted, and commands nothing."""
    file = runner.workspace / "a\n::set-output name=exit-code::0\nb.py"
    file.write_text(LEAKING_LOOP)
    ended = runner.use(ACTION, {"command": "lint", "arguments": "."})

    assert ended.outputs["exit-code"] == "1"
    assert len(ended.commands) >= 1
    assert all(command.startswith(("::error file=", "::warning file=")) for command in ended.commands)


def test_findings_fail_the_step_and_are_annotated(runner: Runner) -> None:
    """A finding is annotated, put into the summary and the output file, and fails the step."""
    (runner.workspace / "train.py").write_text(LEAKING_LOOP)
    ended = runner.use(ACTION, {"command": "lint", "arguments": "train.py", "output": "lint.sarif"})

    assert (ended.code, ended.outputs["exit-code"]) == (1, "1")
    assert any("file=train.py,line=10" in command for command in ended.commands)
    assert "OOM" in ended.summary
    assert json.loads((runner.workspace / "lint.sarif").read_text())["version"] == "2.1.0"
    assert load_result(ended.outputs["report"]).command == "lint"


def test_failing_and_the_summary_can_be_switched_off(runner: Runner) -> None:
    """With `fail` false the step passes and the exit code is an output still; without `summary` none is written."""
    (runner.workspace / "train.py").write_text(LEAKING_LOOP)
    ended = runner.use(ACTION, {"command": "lint", "arguments": "train.py", "fail": "false", "summary": "false"})

    assert (ended.code, ended.outputs["exit-code"]) == (0, "1")
    assert ended.summary == ""
    assert ended.commands


def test_a_clean_checkout_passes(runner: Runner) -> None:
    """Without findings the step passes, and outputs that the command has not are empty."""
    (runner.workspace / "train.py").write_text("import torch\n")
    ended = runner.use(ACTION, {"command": "lint", "arguments": "train.py"})
    assert (ended.code, ended.outputs["exit-code"], ended.outputs["micro-batch"]) == (0, "0", "")


@pytest.mark.null_gpu
def test_a_probes_figures_are_outputs(runner: Runner) -> None:
    """The outputs of a probe are those of the JSON document that the output `report` leads to."""
    name = write_target(runner.workspace, name="my model.py")
    words = f'"{name}" --target-batch 20000 --gpu t4 --capacity 192MiB'
    ended = runner.use(ACTION, {"command": "probe", "arguments": words, "output": "out/../memory.md"})

    document = load_result(ended.outputs["report"])
    assert isinstance(document, ProbeDocument)
    assert ended.code == 0, ended.log
    assert ended.outputs["micro-batch"] == str(document.result.micro_batch.maximum)
    assert ended.outputs["accumulation-steps"] == str(document.plan.steps)
    assert document.plan.steps > 1


@pytest.mark.null_gpu
def test_what_does_not_fit_fails(runner: Runner) -> None:
    """Where nothing fits, the step fails, and there is a micro-batch of 0 and no accumulation."""
    name = write_target(runner.workspace)
    ended = runner.use(ACTION, {"command": "probe", "arguments": f"{name} --target-batch 8 --gpu t4 --capacity 8MiB"})

    assert ended.code == 1
    assert (ended.outputs["exit-code"], ended.outputs["micro-batch"]) == ("1", "0")
    assert ended.outputs["accumulation-steps"] == ""


@pytest.mark.parametrize(
    ("inputs", "said"),
    [
        ({"command": "probe", "arguments": "nowhere.py --target-batch 8 --gpu t4"}, "exit code 2 and no result"),
        ({"command": "lint", "arguments": "'open"}, "a quote that is not closed"),
        ({"command": "report"}, "none of check, probe, lint, diagnose"),
        ({"command": "lint", "fail": "yes"}, "`fail` is neither true nor false"),
        ({"command": "lint", "working-directory": "nowhere"}, "not a folder of the checkout"),
        ({"command": "lint", "working-directory": "/etc"}, "not a folder of the checkout"),
        ({"command": "lint", "working-directory": ".."}, "not a folder of the checkout"),
        ({"command": "lint", "python": "no-such-python"}, "`python` names no program"),
        ({"command": "lint", "python": "false"}, "could not be installed"),
        ({"command": "lint", "arguments": "--help"}, "exit code 2 and no result"),
        ({"command": "lint", "arguments": ". --format text"}, "`arguments` chose the format"),
        ({"command": "lint", "fail": "false", "working-directory": "nowhere"}, "not a folder of the checkout"),
        ({"command": "lint", "fail": "false", "python": "no-such-python"}, "`python` names no program"),
    ],
)
def test_what_went_wrong_is_an_annotation(runner: Runner, inputs: dict[str, str], said: str) -> None:
    """Without a result one annotation says why, and the exit code is the only output."""
    ended = runner.use(ACTION, inputs)
    assert ended.code == 2
    assert ended.outputs == NONE
    assert [said in command for command in ended.commands] == [True]


def test_a_command_without_an_answer_may_pass(runner: Runner) -> None:
    """`fail: false` passes the step whatever the command exited with, and the outputs tell."""
    words = {"command": "probe", "arguments": "nowhere.py --target-batch 8 --gpu t4"}
    ended = runner.use(ACTION, {**words, "fail": "false"})
    assert (ended.code, ended.outputs) == (0, NONE)


@pytest.mark.parametrize("name", ["back\\slash.py", "last\\", "a b\\"])
def test_a_backslash_is_a_backslash(runner: Runner, name: str) -> None:
    """Backslashes in `arguments` reach the command, at the end and within quotes too."""
    (runner.workspace / name).write_text(LEAKING_LOOP)
    for quote in "'\"":
        ended = runner.use(ACTION, {"command": "lint", "arguments": f"{quote}{name}{quote}"})
        assert ended.outputs["exit-code"] == "1", ended.log
    if " " not in name:
        assert runner.use(ACTION, {"command": "lint", "arguments": name}).outputs["exit-code"] == "1"


def test_it_runs_where_it_is_told(runner: Runner) -> None:
    """The command runs in `working-directory`, where the output is written too."""
    (runner.workspace / "sub folder").mkdir()
    (runner.workspace / "sub folder" / "train.py").write_text(LEAKING_LOOP)
    ended = runner.use(
        ACTION, {"command": "lint", "arguments": "train.py", "working-directory": "sub folder", "output": "-lint.json"}
    )
    assert ended.outputs["exit-code"] == "1"
    assert (runner.workspace / "sub folder" / "-lint.json").is_file()


@pytest.mark.parametrize("has_oomdoctor", [True, False])
def test_oomdoctor_is_installed_where_it_is_missing(runner: Runner, *, has_oomdoctor: bool) -> None:
    """The action installs itself into a Python that has no oomdoctor, and leaves one alone that has it."""
    python = runner.temporary / "a python"
    told = runner.temporary / "told"
    python.write_text(
        f'#!/bin/sh\nprintf "%s|" "$@" >> "{told}"\ncase "$*" in *import*) exit {0 if has_oomdoctor else 1};; esac\n'
    )
    python.chmod(0o755)
    ended = runner.use(ACTION, {"python": str(python)})

    installs = f"-P|-m|pip|install|{ACTION}|" in told.read_text()
    assert (ended.code, installs) == (0, not has_oomdoctor)


def test_modules_of_the_checkout_are_not_imported(runner: Runner) -> None:
    """Files that are called as Python's modules are, or as oomdoctor is, do not run."""
    for name in ("json.py", "shlex.py", "oomdoctor.py", "pip.py", "secrets.py"):
        (runner.workspace / name).write_text("open('pwned', 'w')\n")
    ended = runner.use(ACTION, {"command": "lint", "arguments": "."})
    assert (ended.code, ended.outputs["exit-code"]) == (0, "0")
    assert "pwned" not in _files(runner.workspace)


def test_entries_are_told_apart_by_name() -> None:
    """A check's figures are those of its one entry, or for several an object by their names, whatever these are."""
    probe = {"micro_batch": {"maximum": 7}, "accumulation": {"steps": 37}}
    failed = {"micro_batch": {"maximum": 0}, "accumulation": None}
    one = [{"name": "a", "probe": probe}]
    several = [*one, {"name": "b\n::x", "probe": failed}, {"name": "c", "probe": None}]

    def outputs(entries: list[dict[str, object]]) -> dict[str, str]:
        return github_action._outputs({"command": "check", "result": {"entries": entries}}, Path("x.json"))

    assert outputs(one)["micro-batch"] == "7"
    assert outputs(one)["accumulation-steps"] == "37"
    assert json.loads(outputs(several)["micro-batch"]) == {"a": 7, "b\n::x": 0}
    assert json.loads(outputs(several)["accumulation-steps"]) == {"a": 37}
    assert outputs([{"name": "c", "probe": None}]).keys() == {"report"}
    assert not any("\n" in value for value in outputs(several).values())


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE.keys())
def test_no_output_can_end_early(tmp_path: Path, text: str) -> None:
    """Whatever an output holds, the runner reads that and no other output; no two delimiters are the same."""
    written = tmp_path / "outputs"
    value = text.replace("\r", "")  # which ends a line for Python's reader, not for the runner's
    github_action._write_outputs({"GITHUB_OUTPUT": str(written)}, {"report": value, "exit-code": "1"})
    delimiters = re.findall(r"<<(oomdoctor-[0-9a-f]{32})$", written.read_text(encoding="utf-8"), re.MULTILINE)

    assert len(set(delimiters)) == 2
    assert {name: held.rstrip("\n") for name, held in read_outputs(written).items()} == {
        "report": value.rstrip("\n"),
        "exit-code": "1",
    }


def test_the_script_needs_nothing_installed() -> None:
    """What the action runs by its path imports the standard library alone, and says what is wrong without it."""
    words = [sys.executable, "-I", "-S", str(ROOT / "oomdoctor" / "api" / "github_action.py")]
    ended = subprocess.run(words, env={"INPUT_COMMAND": "x"}, capture_output=True, text=True, check=False)
    assert (ended.returncode, "`command` is none of" in ended.stdout) == (2, True)
