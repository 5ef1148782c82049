"""`oomdoctor check` as a team runs it: what it asks, what it says, and the exit code."""

from __future__ import annotations

import json
import subprocess
from importlib.resources import files
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from running import INVOCATIONS, Run, run_command, run_here
from targets_for_tests import write_target

from oomdoctor.check.runner import Check
from oomdoctor.cli.check import document_of
from oomdoctor.results import CheckedEntry, CheckResult, Verdict

SCHEMA = json.loads((files("oomdoctor") / "schemas" / "check.schema.json").read_text(encoding="utf-8"))

PROJECT = """\
gpu = "t4"
capacity = "300MiB"
target-batch = 64

[[check]]
name = "roomy"
target = "model.py:build_model(width=1024)"
micro-batch = 8
min-micro-batch = 64
max-accumulation-steps = 1
max-memory = "200MiB"
headroom = "10%"

[[check]]
name = "tight"
target = "model.py"
micro-batch = 8
max-memory = "100MiB"

[[check]]
name = "gone"
target = "modle.py"

[[check]]
name = "late"
target = "slow.py"
trial-timeout = 1
"""
SLOW = "import time\n\ntime.sleep(300)\n"


def here(folder: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """The command's answer in this process, for what ends before anything runs."""
    return run_here(["check", *arguments], folder, **environment)


def write_project(folder: Path, text: str = PROJECT) -> Path:
    """A folder with a configuration and its targets."""
    (folder / ".git").mkdir()
    (folder / "oomdoctor.toml").write_text(text)
    write_target(folder)
    (folder / "slow.py").write_text(SLOW)
    return folder


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository with an entry for each way to end."""
    return write_project(tmp_path_factory.mktemp("project"))


@pytest.fixture(scope="module")
def ended(project: Path) -> subprocess.CompletedProcess[str]:
    """A check of all of it."""
    return run_command(["check", "--json", "-o", "check.json", "-j", "2", "--verbose"], cwd=project)


@pytest.fixture(scope="module")
def document(project: Path, ended: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    """What it wrote."""
    assert ended.returncode == 2, ended.stderr
    return json.loads((project / "check.json").read_text())


@pytest.fixture(scope="module")
def entries(document: dict[str, Any]) -> dict[str, Any]:
    """Its entries by name."""
    return {entry["name"]: entry for entry in document["result"]["entries"]}


# --- what comes of it ------------------------------------------------------------------------------------------------


@pytest.mark.null_gpu
def test_the_worst_entry_decides_and_the_others_go_on(document: dict[str, Any], entries: dict[str, Any]) -> None:
    """Each entry has its own verdict, in the configuration's order; the exit code is that of the worst."""
    assert (document["status"], document["exit_code"]) == ("error", 2)
    assert [(name, entry["verdict"]) for name, entry in entries.items()] == [
        ("roomy", "passed"),
        ("tight", "failed"),
        ("gone", "error"),
        ("late", "no_answer"),
    ]
    jsonschema.validate(document, SCHEMA)
    assert document["versions"].keys() == {"oomdoctor", "python", "torch", "cuda"}
    assert (document["result"]["configuration"], document["result"]["baseline"]) == ("oomdoctor.toml", None)


@pytest.mark.null_gpu
def test_limits_are_held_to(entries: dict[str, Any]) -> None:
    """Every limit is judged with what was found, and a broken one is read first."""
    roomy, tight = entries["roomy"], entries["tight"]
    assert {limit["name"]: limit["holds"] for limit in roomy["limits"]} == dict.fromkeys(
        ("fits", "min-micro-batch", "max-accumulation-steps", "max-memory", "headroom"), True
    )
    broken = tight["limits"][0]
    assert (broken["name"], broken["holds"], broken["asked"]) == ("max-memory", False, 100 * 2**20)
    assert broken["found"] == tight["probe"]["memory"]["peak_reserved_bytes"] > broken["asked"]
    assert (tight["profiled_micro_batch"], tight["probe"]["memory"]["micro_batch"]) == (8, 8)
    assert tight["probe"]["device"]["name"] == "Tesla T4"


@pytest.mark.null_gpu
def test_problems_are_told_in_full(entries: dict[str, Any]) -> None:
    """A target that is not there and one that takes too long are problems with a hint, and have no limits."""
    gone, late = entries["gone"], entries["late"]
    assert gone["problem"]["message"].startswith("no such file: `modle.py`")
    assert gone["problem"]["hint"] == "did you mean `model.py`?"
    assert (gone["problem"]["exit_code"], gone["limits"], gone["probe"]) == (2, [], None)
    assert late["problem"]["message"] == "loading the target took longer than 1 s"
    assert late["problem"]["exit_code"] == 3


@pytest.mark.null_gpu
def test_progress_and_settings_are_on_standard_error(ended: subprocess.CompletedProcess[str]) -> None:
    """Each entry has a line when it begins and one when it ends; `--verbose` says what holds and why."""
    lines = ended.stderr.splitlines()
    for name, outcome in (("roomy", "micro-batch 64 is the largest that fits, "), ("gone", "no answer, ")):
        assert lines.index(f"{name}: running") < next(
            index for index, line in enumerate(lines) if line.startswith(f"{name}: {outcome}") and line.endswith(" s")
        )
    assert "  target-batch = 64  (from the top of oomdoctor.toml)" in lines
    assert '  max-memory = "100MiB"  (from oomdoctor.toml)' in lines
    assert '  precision = "fp32"  (default)' in lines
    assert "running at once: 2" in lines
    assert ended.stdout == ""


@pytest.mark.null_gpu
@pytest.mark.usefixtures("document")
def test_a_saved_check_is_rendered_again(project: Path) -> None:
    """`oomdoctor report` makes any format of the JSON, and names every entry."""
    for form in ("text", "markdown", "github", "junit", "sarif"):
        shown = run_command(["report", "check.json", "--format", form], cwd=project)
        assert (shown.returncode, shown.stderr) == (0, "")
        assert "tight" in shown.stdout
    assert run_command(["report", "check.json"], cwd=project).stdout.splitlines()[1].startswith("error")


@pytest.mark.null_gpu
@pytest.mark.parametrize("invocation", INVOCATIONS)
@pytest.mark.usefixtures("document")
def test_only_what_is_named_runs(project: Path, invocation: str) -> None:
    """A name chooses an entry; alone it decides the exit code, and the command line names another card."""
    (project / "sub").mkdir(exist_ok=True)
    arguments = ["check", "tight", "--gpu", "l4", "--reserve", "20MiB", "--quiet", "--json"]
    shown = run_command(arguments, cwd=project / "sub", invocation=invocation, OOMDOCTOR_CHECK_CAPACITY="330MiB")
    assert (shown.returncode, shown.stderr) == (1, "")
    (entry,) = json.loads(shown.stdout)["result"]["entries"]
    assert (entry["name"], entry["gpu"], entry["probe"]["capacity_bytes"]) == ("tight", "l4", 310 * 2**20)
    assert entry["probe"]["device"]["reserve_bytes"] == 20 * 2**20


@pytest.mark.null_gpu
def test_without_an_answer_the_exit_code_is_three(project: Path) -> None:
    """Where only an answer is missing the exit code says that, and the report why."""
    shown = run_command(["check", "late", "--quiet"], cwd=project)
    assert (shown.returncode, shown.stderr) == (3, "")
    assert "loading the target took longer than 1 s" in shown.stdout


# --- the exit code ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("verdicts", "status", "exit_code"),
    [
        ("passed", "passed", 0),
        ("passed failed passed", "failed", 1),
        ("failed no_answer passed", "no_answer", 3),
        ("failed no_answer error passed", "error", 2),
    ],
)
def test_the_exit_code_is_that_of_the_worst_verdict(verdicts: str, status: str, exit_code: int) -> None:
    """A target at fault comes before a missing answer, and that before a broken limit."""
    checked = tuple(_entry(Verdict(verdict)) for verdict in verdicts.split())
    document = document_of(Check(CheckResult("oomdoctor.toml", None, checked), {}))
    assert (document.status, document.exit_code) == (status, exit_code)


def _entry(verdict: Verdict) -> CheckedEntry:
    return CheckedEntry("a", "a.py", None, verdict, (), (), "none", 0.02, None, None, None)


# --- what is refused before anything runs ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "arguments", "message"),
    [
        ("", [], "error: `oomdoctor.toml` has no `[[check]]`, and so nothing to check"),
        (PROJECT, ["tigth"], "error: no entry of `oomdoctor.toml` is called `tigth`"),
        (PROJECT, ["--gpu", "rtx-4091"], "error: `--gpu` is wrong: no GPU called `rtx-4091` is known"),
        (PROJECT, ["--memory", "24"], "error: `--memory` is wrong: `24` has no unit"),
        (PROJECT, ["--tolerance", "200%"], "error: `--tolerance` is wrong: `200%` is the whole or more"),
        (PROJECT, ["--update"], "error: `--update` has nothing to write: no entry asks for a baseline"),
        (PROJECT, ["--config", "none.toml"], "error: the configuration `none.toml` does not exist"),
        (PROJECT, ["--config", "n" * 300], f"error: the configuration `{'n' * 300}` does not exist"),
        (PROJECT, ["-o", "none/x.json"], "error: `none/x.json` cannot be written"),
        (PROJECT.replace('"300MiB"', "300"), [], "error: `capacity` in `oomdoctor.toml` is `300`, not a string"),
        (PROJECT + "max-memry = 3", [], "error: unknown key `max-memry` in `[check.late]` of `oomdoctor.toml`"),
    ],
)
def test_mistakes_end_it_before_anything_runs(tmp_path: Path, text: str, arguments: list[str], message: str) -> None:
    """What is wrong with the configuration or the command line exits with 2 and says where it is."""
    shown = here(write_project(tmp_path, text), *arguments)
    assert (shown.returncode, shown.stdout) == (2, "")
    assert shown.stderr.startswith(message)
    assert "running" not in shown.stderr
    assert "oomdoctor lint" not in shown.stderr


def test_a_wrong_variable_ends_it(project: Path) -> None:
    """A variable that is nearly one of ours is no silent default."""
    shown = here(project, OOMDOCTOR_CHECK_GPUS_="t4")
    assert shown.returncode == 2
    assert "did you mean `OOMDOCTOR_CHECK_GPUS`?" in shown.stderr


def test_without_a_configuration_the_lines_to_add_are_shown(oomdoctor: Run, tmp_path: Path) -> None:
    """Where nothing is configured the hint has an entry that can be pasted."""
    (tmp_path / ".git").mkdir()
    ended = oomdoctor("check")
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.startswith("error: there is no configuration here, and so nothing to check\n")
    assert "[[tool.oomdoctor.check]]\nname = " in ended.stderr


BASELINE = """\
gpu = "t4"
capacity = "300MiB"
target-batch = 8
engine = "trace"
baseline = true

[[check]]
name = "roomy"
target = "model.py:build_model(width=1024)"
"""


def test_hints_at_an_update_keep_the_configuration(tmp_path: Path) -> None:
    """Where `--config` names the file, each format and a baseline that is none give the command that can be pasted."""
    write_project(tmp_path, "")
    (tmp_path / "other.toml").write_text(BASELINE)
    line = "`oomdoctor check --config other.toml --update`"
    for form in ("text", "json", "sarif"):
        shown = here(tmp_path, "--config", "other.toml", "--format", form)
        assert shown.returncode == 1, shown.stderr
        assert line in " ".join(shown.stdout.split())
        assert "`oomdoctor check --update`" not in shown.stdout

    (tmp_path / "oomdoctor-baseline.json").write_text("{")
    refused = here(tmp_path, "--config", "other.toml")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert f"hint: {line}, of all entries, writes it anew" in refused.stderr
