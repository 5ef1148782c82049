"""`oomdoctor lint` as a user runs it: what goes in, what comes out, what is written, and the exit code."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from running import INVOCATIONS, Run, run_command, run_here

TRAIN = """\
import torch
from torch import nn

model = nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
criterion = nn.MSELoss()
loader = torch.utils.data.DataLoader(torch.zeros(8, 8))

for epoch in range(3):
    total = 0.0
    for batch in loader:
        optimizer.zero_grad()
        loss = criterion(model(batch), batch)
        loss.backward(retain_graph=True)
        optimizer.step()
        total += criterion(model(batch), batch)
    print(total)
"""
FIXED = TRAIN.replace("retain_graph=True", "").replace(", batch)\n    print", ", batch).detach()\n    print")
RETRY = """\
import torch


def embed(model, tokens, size):
    try:
        return model(tokens[:size])
    except torch.OutOfMemoryError:
        return embed(model, tokens, size // 2)
"""
NOTE = """\
import torch


def embed(model, tokens):
    try:
        return model(tokens)
    except torch.OutOfMemoryError:
        return model.cpu()(tokens.cpu())
"""
CLEAN = FIXED


def notebook(*sources: str) -> str:
    """A notebook with these code cells."""
    cells = [{"cell_type": "code", "metadata": {}, "outputs": [], "source": source} for source in sources]
    return json.dumps({"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": cells}, indent=1)


def found(stdout: str) -> list[tuple[str, int, str]]:
    """File, line and code of each finding in a JSON document."""
    return [(each["path"], each["line"], each["code"]) for each in _result(stdout)["findings"]]


def here(folder: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """The command's answer in this process, where many questions are asked."""
    return run_here(["lint", *arguments], folder, **environment)


def codes(folder: Path, *arguments: str, **environment: str) -> list[str]:
    """Codes of what is found in a folder."""
    ended = here(folder, *arguments, "--json", **environment)
    assert ended.returncode in (0, 1), ended.stderr
    return [code for _, _, code in found(ended.stdout)]


def _result(stdout: str) -> dict[str, Any]:
    document = json.loads(stdout)
    assert document["command"] == "lint"
    result: dict[str, Any] = document["result"]
    return result


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The working directory: a repository with two scripts, three mistakes in them."""
    (tmp_path / ".git").mkdir()
    (tmp_path / "train.py").write_text(TRAIN)
    (tmp_path / "retry.py").write_text(RETRY)
    return tmp_path


# --- what it says ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("invocation", INVOCATIONS)
def test_findings_are_shown(folder: Path, invocation: str) -> None:
    """Without a path the working directory is linted; each finding has its place, its line and a help."""
    ended = run_command(["lint"], cwd=folder, invocation=invocation)
    assert (ended.returncode, ended.stderr) == (1, "")
    for said in ("retry.py:8:16: OOM121", "train.py:14:9: OOM104 [*]", "total += ", "^^^", "help: ", "Found 3"):
        assert said in ended.stdout


def test_json(oomdoctor_here: Run, folder: Path) -> None:
    """The JSON document has the findings under the names that others rely on."""
    ended = oomdoctor_here("lint", str(folder / "train.py"), "retry.py", "--json")
    assert found(ended.stdout) == [("retry.py", 8, "OOM121"), ("train.py", 14, "OOM104"), ("train.py", 16, "OOM102")]
    document = json.loads(ended.stdout)
    assert (document["status"], document["exit_code"]) == ("findings", 1)
    assert document["result"]["findings"][0].keys() >= {"name", "column", "severity", "message", "help"}
    assert document["result"]["files"] == 2
    assert "OOM104" in document["result"]["rules"]


@pytest.mark.parametrize(
    ("form", "starts"),
    [
        ("text", "retry.py:8"),
        ("markdown", "#"),
        ("html", "<!doctype html>"),
        ("github", "::"),
        ("junit", "<?xml"),
        ("sarif", "{"),
    ],
)
@pytest.mark.usefixtures("folder")
def test_every_format(oomdoctor_here: Run, form: str, starts: str) -> None:
    """Each format that there is can be had, with the same exit code."""
    ended = oomdoctor_here("lint", "--format", form)
    assert (ended.returncode, ended.stderr) == (1, "")
    assert ended.stdout.startswith(starts)
    assert "OOM104" in ended.stdout


def test_a_report_in_a_file(oomdoctor_here: Run, folder: Path) -> None:
    """`-o` writes the report in the format of its ending, and `oomdoctor report` renders it again."""
    ended = oomdoctor_here("lint", "-o", "report.json")
    assert (ended.returncode, ended.stdout, ended.stderr) == (1, "", "Wrote report.json\n")
    assert len(found((folder / "report.json").read_text())) == 3
    assert oomdoctor_here("report", "report.json").stdout == oomdoctor_here("lint").stdout


def test_a_clean_folder(oomdoctor_here: Run, tmp_path: Path) -> None:
    """Where nothing is found the exit code is 0, and the report says so."""
    (tmp_path / "train.py").write_text(CLEAN)
    (tmp_path / "other.py").write_text("print(")  # has nothing to do with torch, and is not read
    ended = oomdoctor_here("lint")
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.startswith("No findings in 1 file")


def test_a_folder_without_python(oomdoctor_here: Run) -> None:
    """Where there is no file to lint that is said, and is no failure."""
    ended = oomdoctor_here("lint")
    assert ended.returncode == 0
    assert ended.stderr == "warning: no Python file in `.`\n"


def test_statistics(folder: Path) -> None:
    """`--statistics` counts by rule, the most frequent first, with a mark on what can be fixed."""
    (folder / "again.py").write_text(RETRY)
    ended = here(folder, "--statistics")
    assert ended.returncode == 1
    assert ended.stdout == (
        "2  OOM121  [ ] retry-inside-except\n1  OOM102  [*] loss-keeps-graph\n1  OOM104  [*] retain-graph-in-loop\n"
    )
    (folder / "again.py").write_text("import torch\ndef (\n")
    assert here(folder, "again.py", "retry.py", "--statistics").stdout == (
        "1  OOM121  retry-inside-except\n1          unreadable\n"
    )
    assert here(folder, "--isolated", "--ignore", "ALL", "train.py", "--statistics").stdout == "no findings\n"


# --- exit codes ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "options", "code"),
    [
        (CLEAN, [], 0),
        (RETRY, [], 1),
        (RETRY, ["--fail-on", "warning"], 1),
        (RETRY, ["--fail-on", "error"], 0),
        (RETRY, ["--exit-zero"], 0),
        (NOTE, [], 0),
        (NOTE, ["--fail-on", "note"], 1),
        ("import torch\ndef (\n", [], 1),
        ("import torch\ndef (\n", ["--fail-on", "error"], 1),
        ("import torch\ndef (\n", ["--exit-zero"], 0),
        ("import torch\ndef (\n", ["--diff"], 1),
        (TRAIN, ["--diff"], 1),
        (TRAIN, ["--diff", "--exit-zero"], 0),
        (RETRY, ["--diff"], 0),
        (TRAIN, ["--fix"], 0),
    ],
)
def test_exit_codes(oomdoctor_here: Run, tmp_path: Path, text: str, options: list[str], code: int) -> None:
    """1 for findings from `--fail-on` up and for files that do not parse; the document has the same code."""
    (tmp_path / "x.py").write_text(text)
    ended = oomdoctor_here("lint", "x.py", *options)
    assert ended.returncode == code, ended.stdout
    if "--diff" not in options:
        (tmp_path / "x.py").write_text(text)
        assert json.loads(here(tmp_path, "x.py", *options, "--json").stdout)["exit_code"] == code


def test_a_note_below_the_gate_is_shown(oomdoctor_here: Run, tmp_path: Path) -> None:
    """What does not fail the gate is found all the same."""
    (tmp_path / "x.py").write_text(NOTE)
    ended = oomdoctor_here("lint", "--json")
    assert (ended.returncode, json.loads(ended.stdout)["status"]) == (0, "findings")
    assert [each["severity"] for each in _result(ended.stdout)["findings"]] == ["note"]


def test_broken_files_do_not_stop_the_others(oomdoctor_here: Run, folder: Path) -> None:
    """Files that cannot be parsed or read are reported with the place and the reason, beside the findings."""
    (folder / "broken.py").write_text("import torch\ndef (\n")
    (folder / "nul.py").write_bytes(b"import torch\nx = '\0'\n")
    (folder / "wide.py").write_bytes("import torch\n".encode("utf-16"))
    (folder / "broken.ipynb").write_text(notebook("import torch\n")[:-9])
    result = _result(oomdoctor_here("lint", "--json").stdout)
    assert len(result["findings"]) == 3
    assert [(each["path"], each["line"]) for each in result["unreadable"]] == [
        ("broken.ipynb", 10),
        ("broken.py", 2),
        ("nul.py", 2),
        ("wide.py", 1),
    ]
    assert "broken.py:2:5: not linted: invalid syntax" in oomdoctor_here("lint").stdout


@pytest.mark.parametrize("options", [(), ("--diff",), ("--statistics",), ("--fix",), ("--format", "markdown")])
def test_a_broken_file_that_is_named_is_told_with_its_line(
    oomdoctor_here: Run, tmp_path: Path, options: tuple[str, ...]
) -> None:
    """A file on the command line has to be Python even without torch; one in a folder is passed over."""
    (tmp_path / "broken.py").write_text("x = 1\ndef f(:\n")
    named, in_folder = oomdoctor_here("lint", *options, "broken.py"), oomdoctor_here("lint", *options, ".")

    assert (named.returncode, in_folder.returncode) == (1, 0)
    said = named.stdout + named.stderr
    assert "broken.py" in said
    assert "2:7" in said or "line 2" in said
    assert "broken.py" not in in_folder.stdout + in_folder.stderr


def test_what_is_named_without_torch(oomdoctor_here: Run, tmp_path: Path) -> None:
    """Sound Python without torch is still clean, also in a notebook; a cell that is not Python is named."""
    (tmp_path / "sound.py").write_text("x = 1\n")
    (tmp_path / "sound.ipynb").write_text(notebook("%ls", "x = 1"))
    clean = oomdoctor_here("lint", "sound.py", "sound.ipynb")
    assert (clean.returncode, clean.stdout) == (0, "No findings: no file of 2 uses torch.\n")

    (tmp_path / "broken.ipynb").write_text(notebook("x = 1", "def f(:"))
    ended = oomdoctor_here("lint", "broken.ipynb")
    assert ended.returncode == 1
    assert "broken.ipynb:cell 2:1:7: not linted" in ended.stdout


@pytest.mark.parametrize(
    ("arguments", "said", "hint"),
    [
        (["nowhere.py"], "no such file or folder: `nowhere.py`", "name a Python file, a notebook, or a folder"),
        (["trian.py"], "no such file or folder: `trian.py`", "did you mean `train.py`?"),
        (["--select", "OOM99"], "no such rule: `OOM99`, in `select` of the command line", ""),
        (["--ignore", "OOM104,loss-keep-graph"], "no such rule: `loss-keep-graph`", "did you mean `loss-keeps-graph`?"),
        (["--extend-select", "E501"], "no such rule: `E501`, in `extend-select`", ""),
        (
            ["--per-file-ignores", "tests"],
            "`--per-file-ignores` takes pairs of a pattern and a code",
            "tests/**:OOM101",
        ),
        (["--per-file-ignores", "x:OOM9"], "no such rule: `OOM9`, in `per-file-ignores` of the command line", ""),
        (["--select", ""], "`--select` names no rule", "leave it out"),
        (["--select", " ,"], "`--select` names no rule", ""),
        (["--extend-select", ""], "`--extend-select` names no rule", ""),
        (["--select", "OOM9"], "no such rule: `OOM9`", "codes are `OOM101` to `OOM1"),
        (["--fail-on", "fatal"], "'--fail-on': 'fatal' is not one of 'note', 'warning', 'error'", ""),
        (["--format", "xml"], "'--format': 'xml' is not one of 'text', ", ""),
        (["--stdin-filename", "x.py"], "standard input is not read", "give `-`"),
        (["--fix", "--json", "-"], "cannot both go to stdout", "`-o`"),
        (["dangling.py"], "`dangling.py` is a link to `nowhere`, which is not there", "repair the link"),
        (["--json", "--html"], "`--json` and `--html` exclude each other", ""),
        (["--diff", "--json"], "`--diff` prints plain text", "drop what asks for json"),
        (["--statistics", "--format", "sarif"], "`--statistics` prints plain text", ""),
        (["--statistics", "--diff"], "`--diff` and `--statistics` exclude each other", ""),
        (["-o", "no/such/x.json"], "cannot be written", "create it first"),
        (["-o", "train.py"], "`train.py` is the name of a script", "such as `train.json`"),
        (["--config", "none.toml"], "the configuration `none.toml` does not exist", "--isolated"),
        (["none\u202eyp.py"], "no such file or folder: `none\\u202eyp.py`", ""),
        (["--config", "x.toml", "--isolated"], "`--isolated` and `--config` exclude each other", ""),
        (["-", "-"], "standard input is named twice", ""),
        (["--unknown"], "no such option", ""),
    ],
)
def test_bad_input(folder: Path, arguments: list[str], said: str, hint: str) -> None:
    """A wrong question is answered on stderr with what is wrong and what to do, and the exit code is 2."""
    (folder / "dangling.py").symlink_to("nowhere")
    ended = here(folder, *arguments)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert said in ended.stderr
    assert hint in ended.stderr
    assert "Traceback" not in ended.stderr
    assert (folder / "train.py").read_text() == TRAIN


# --- which files -----------------------------------------------------------------------------------------------------


def test_ignored_and_excluded_files(folder: Path) -> None:
    """What `.gitignore` or `--exclude` names is passed over in folders, and linted when it is named itself."""
    (folder / ".gitignore").write_text("retry.py\n")
    assert codes(folder) == ["OOM104", "OOM102"]
    assert codes(folder, "--exclude", "t*n.py") == []
    assert codes(folder, "--exclude", "t*n.py", "train.py", "retry.py") == ["OOM121", "OOM104", "OOM102"]
    assert codes(folder, "--exclude", "a,b", "--exclude", "c") == ["OOM104", "OOM102"]


@pytest.mark.parametrize(("name", "shown"), [(None, "-"), ("sub/x.py", "sub/x.py")])
def test_standard_input(tmp_path: Path, name: str | None, shown: str) -> None:
    """`-` lints what is piped in, under the name that it is given."""
    ended = _piped(tmp_path, RETRY, *(["--stdin-filename", name] if name else []), "--json")
    assert found(ended.stdout) == [(shown, 8, "OOM121")]


def test_a_notebook(oomdoctor_here: Run, tmp_path: Path) -> None:
    """In a notebook findings have the cell, and the line in it; a cell that does not parse is reported beside them."""
    (tmp_path / "x.ipynb").write_text(
        notebook("%matplotlib inline\nimport torch", "def (", RETRY.partition("\n\n\n")[2])
    )
    result = _result(oomdoctor_here("lint", "--json").stdout)
    assert [(each["cell"], each["line"], each["code"]) for each in result["findings"]] == [(3, 5, "OOM121")]
    assert [(each["cell"], each["line"]) for each in result["unreadable"]] == [(2, 1)]
    piped = _piped(tmp_path, (tmp_path / "x.ipynb").read_text(), "--stdin-filename", "y.ipynb", "--json")
    assert found(piped.stdout) == [("y.ipynb", 5, "OOM121")]


# --- rules and configuration -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--select", "OOM10"], ["OOM104", "OOM102"]),
        (["--select", "OOM121,OOM102"], ["OOM121", "OOM102"]),
        (["--select", "OOM121", "--select", "loss-keeps-graph"], ["OOM121", "OOM102"]),
        (["--ignore", "OOM10"], ["OOM121"]),
        (["--ignore", "ALL"], []),
        (["--select", "OOM121", "--extend-select", "OOM104"], ["OOM121", "OOM104"]),
        (["--select", "OOM1", "--ignore", "OOM104"], ["OOM121", "OOM102"]),
        (["--per-file-ignores", "train.py:OOM102,retry.py:OOM1"], ["OOM104"]),
        (["--per-file-ignores", "*.py:ALL"], []),
    ],
)
def test_choosing_rules(folder: Path, options: list[str], expected: list[str]) -> None:
    """Codes, their beginnings and names choose rules, several at once with commas or options repeated."""
    assert codes(folder, *options) == expected


def test_ignoring_every_rule(folder: Path) -> None:
    """What is asked for outright is no mistake, but nobody should take it for a clean folder."""
    ended = here(folder, "--ignore", "ALL")
    assert (ended.returncode, ended.stderr) == (0, "warning: no rule is selected\n")


def test_noqa(folder: Path) -> None:
    """A comment silences its line."""
    (folder / "train.py").write_text(TRAIN.replace("\n    print", "  # noqa: OOM102\n    print"))
    assert codes(folder, "train.py") == ["OOM104"]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("oomdoctor.toml", '[lint]\nselect = ["OOM104"]\n'),
        ("oomdoctor.toml", 'select = ["OOM104"]\n'),
        ("pyproject.toml", '[tool.oomdoctor.lint]\nselect = ["OOM104"]\n'),
        ("pyproject.toml", '[tool.oomdoctor]\nselect = ["OOM104"]\n'),
        ("pyproject.toml", '[tool.oomdoctor.lint]\nignore = ["OOM102", "OOM121"]\n'),
        ("pyproject.toml", '[tool.oomdoctor.per-file-ignores]\n"retry.py" = ["ALL"]\n"t*" = ["OOM102"]\n'),
        ("pyproject.toml", '[tool.oomdoctor.lint.per-file-ignores]\n"*.py" = ["OOM12", "loss-keeps-graph"]\n'),
        ("oomdoctor.toml", '[lint]\nexclude = ["retry.py"]\nignore = ["OOM102"]\n'),
    ],
)
def test_configuration_files(folder: Path, name: str, text: str) -> None:
    """A file of either name chooses rules and files; `--isolated` goes without it."""
    (folder / name).write_text(text)
    assert codes(folder) == ["OOM104"]
    assert codes(folder, "--isolated") == ["OOM121", "OOM104", "OOM102"]


def test_globs_are_relative_to_their_file(folder: Path) -> None:
    """Globs of a file count from its folder, those of the command line from the working directory."""
    (folder / "sub/tests").mkdir(parents=True)
    (folder / "sub/tests/x.py").write_text(RETRY)
    (folder / "sub/x.py").write_text(RETRY)
    (folder / "pyproject.toml").write_text('[tool.oomdoctor.lint.per-file-ignores]\n"sub/tests/**" = ["OOM121"]\n')

    def lint(*arguments: str) -> list[str]:
        return [path for path, _, _ in found(here(folder / "sub", *arguments, "--json").stdout)]

    assert lint() == ["x.py"]
    assert lint("--per-file-ignores", "tests/**:OOM101") == ["tests/x.py", "x.py"]
    assert lint("--per-file-ignores", "tests/**:OOM121") == ["x.py"]
    assert lint("--per-file-ignores", "sub/tests/**:OOM121") == ["tests/x.py", "x.py"]
    assert lint("--exclude", "/x.py", "--per-file-ignores", "a:OOM101") == ["tests/x.py"]
    assert lint("--per-file-ignores", "./x.py:OOM121") == ["tests/x.py"]
    assert ("sub/x.py", 8, "OOM121") in found(here(folder, "--per-file-ignores", "./x.py:OOM121", "--json").stdout)
    assert lint("--exclude", "./tests/./x.py", "--per-file-ignores", "a:OOM101") == ["x.py"]
    assert lint("--exclude", "x.py", "--per-file-ignores", "a:OOM101") == []


def test_precedence(folder: Path) -> None:
    """The command line comes before the environment, that before the file, and the file before the defaults."""
    (folder / "oomdoctor.toml").write_text('[lint]\nselect = ["OOM104"]\nfail-on = "error"\n')
    assert codes(folder) == ["OOM104"]
    assert codes(folder, OOMDOCTOR_LINT_SELECT="OOM102") == ["OOM102"]
    assert codes(folder, "--select", "OOM121", OOMDOCTOR_LINT_SELECT="OOM102") == ["OOM121"]
    assert codes(folder, "--isolated", OOMDOCTOR_LINT_SELECT="OOM102") == ["OOM102"]
    assert here(folder).returncode == 0
    assert here(folder, OOMDOCTOR_LINT_FAIL_ON="warning").returncode == 1
    assert here(folder, "--fail-on", "error", OOMDOCTOR_LINT_FAIL_ON="warning").returncode == 0


def test_what_is_selected_later_counts_against_what_was_ignored_before(folder: Path) -> None:
    """As in ruff: `--select` beats a file's `ignore`; `--ignore` takes from its `select` and adds to its `ignore`."""
    (folder / "oomdoctor.toml").write_text('[lint]\nignore = ["OOM102"]\n')
    assert codes(folder) == ["OOM121", "OOM104"]
    assert codes(folder, "--select", "OOM102") == ["OOM102"]
    assert codes(folder, "--ignore", "OOM121") == ["OOM104"]
    assert codes(folder, "--extend-select", "OOM102", "--ignore", "OOM12") == ["OOM104", "OOM102"]
    (folder / "oomdoctor.toml").write_text('[lint]\nselect = ["OOM102", "OOM104"]\n')
    assert codes(folder, "--ignore", "OOM1") == []
    assert codes(folder, "--extend-select", "OOM121") == ["OOM121", "OOM104", "OOM102"]


def test_a_named_configuration(folder: Path) -> None:
    """`--config`, or `OOMDOCTOR_CONFIG`, reads that file and no other."""
    (folder / "oomdoctor.toml").write_text('[lint]\nselect = ["OOM102"]\n')
    (folder / "strict.toml").write_text('[lint]\nselect = ["OOM104"]\n')
    assert codes(folder, "--config", "strict.toml") == ["OOM104"]
    assert codes(folder, OOMDOCTOR_CONFIG="strict.toml") == ["OOM104"]
    assert codes(folder, "--config", "oomdoctor.toml", OOMDOCTOR_CONFIG="strict.toml") == ["OOM102"]


@pytest.mark.parametrize(
    ("text", "said", "hint"),
    [
        ("[lint]\nslect = []\n", "unknown key `slect` in `[lint]` of `oomdoctor.toml`", "did you mean `select`?"),
        ("[lnt]\n", "unknown key `lnt` in `oomdoctor.toml`", "did you mean `lint`?"),
        ("fail-on = 'note'\n", "unknown key `fail-on` in `oomdoctor.toml`", "`fail-on` belongs in `[lint]`"),
        ("[lint]\nselect = 'OOM1'\n", 'is `"OOM1"`, not a list of strings', "for example `select = ["),
        ("[lint]\nfail-on = 'fatal'\n", "not one of `note`, `warning`, `error`", 'for example `fail-on = "error"`'),
        ("[lint]\nselect = ['OOM9']\n", "no such rule: `OOM9`, in `select` of oomdoctor.toml", ""),
        ("[lint]\nper-file-ignores = {'x' = ['OOM9']}\n", "in `per-file-ignores` of oomdoctor.toml", ""),
        ("[lint]\nselect = []\n", "no rule is selected: `select` of oomdoctor.toml is empty", "leave it out"),
        ("[lint\n", "`oomdoctor.toml` is not TOML, line 1, column 6", "--isolated"),
        ("select = []\n[lint]\nselect = []\n", "has `select` twice", "keep one"),
    ],
)
def test_a_bad_configuration(folder: Path, text: str, said: str, hint: str) -> None:
    """A configuration that does not fit is answered with the file and the key, and the exit code is 2."""
    (folder / "oomdoctor.toml").write_text(text)
    ended = here(folder)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert said in ended.stderr
    assert hint in ended.stderr


def test_a_bad_variable(oomdoctor_here: Run) -> None:
    """So is a variable."""
    ended = oomdoctor_here("lint", OOMDOCTOR_LINT_SELECTS="OOM1")
    assert ended.returncode == 2
    assert "did you mean `OOMDOCTOR_LINT_SELECT`?" in ended.stderr


def test_verbose(oomdoctor_here: Run, folder: Path) -> None:
    """`--verbose` says on stderr what holds and where it comes from; the report is the same."""
    (folder / "pyproject.toml").write_text('[tool.oomdoctor.lint]\nselect = ["OOM1"]\n')
    (folder / "oomdoctor.toml").write_text('[lint]\nselect = ["OOM12"]\n')
    ended = oomdoctor_here("lint", "--verbose", "--exclude", "x", OOMDOCTOR_LINT_FAIL_ON="note")
    for line in (
        "configuration: oomdoctor.toml",
        "`oomdoctor.toml` comes before the `[tool.oomdoctor]` of `pyproject.toml` beside it",
        'select = ["OOM12"]  (from oomdoctor.toml)',
        'exclude = ["x"]  (from the command line)',
        'fail-on = "note"  (from OOMDOCTOR_LINT_FAIL_ON)',
        "ignore = []  (default)",
        "rules: OOM121, OOM122, OOM123",
    ):
        assert line in ended.stderr.splitlines()
    assert ended.stdout == oomdoctor_here("lint").stdout


# --- fixes -----------------------------------------------------------------------------------------------------------


def test_fix(oomdoctor_here: Run, folder: Path) -> None:
    """`--fix` puts right what it can, says how much, leaves the rest in the report, and has nothing to do again."""
    ended = oomdoctor_here("lint", "--fix")
    assert (ended.returncode, ended.stderr) == (1, "")
    assert (folder / "train.py").read_text() == FIXED
    assert (folder / "retry.py").read_text() == RETRY
    assert "OOM121" in ended.stdout
    assert "2 were fixed" in ended.stdout
    again = oomdoctor_here("lint", "--fix", "--json")
    assert (_result(again.stdout)["fixed"], again.stderr) == (0, "0 fixed, 1 left\n")
    assert (folder / "train.py").read_text() == FIXED


def test_a_selection_is_all_that_is_fixed(oomdoctor_here: Run, folder: Path) -> None:
    """What is not selected is not fixed."""
    oomdoctor_here("lint", "--fix", "--select", "OOM104")
    assert (folder / "train.py").read_text() == TRAIN.replace("retain_graph=True", "")


@pytest.mark.parametrize("arguments", [("--diff",), ("--fix", "--diff")])
def test_diff(oomdoctor_here: Run, folder: Path, arguments: tuple[str, ...]) -> None:
    """`--diff` prints what `--fix` would write, in a form that `patch` takes, and writes nothing."""
    ended = oomdoctor_here("lint", *arguments)
    assert (ended.returncode, ended.stderr) == (1, "2 would be fixed, 1 left\n")
    assert (folder / "train.py").read_text() == TRAIN
    (folder / "x.patch").write_text(ended.stdout)
    subprocess.run(["patch", "-p0", "-i", "x.patch"], cwd=folder, check=True, capture_output=True)
    assert (folder / "train.py").read_text() == FIXED
    clean = oomdoctor_here("lint", *arguments)
    assert (clean.returncode, clean.stdout) == (0, "")


def test_diff_of_odd_lines(oomdoctor_here: Run, folder: Path) -> None:
    """Line ends and a missing one at the end of the file are in the difference as `patch` has them."""
    odd = TRAIN.replace("\n", "\r\n").replace("    print(total)\r\n", "    print(total); '\u20ac'")
    (folder / "train.py").write_bytes(odd.encode())
    ended = subprocess.run(
        [sys.executable, "-m", "oomdoctor", "lint", "--diff"], cwd=folder, capture_output=True, check=False
    )
    (folder / "x.patch").write_bytes(ended.stdout)
    subprocess.run(["patch", "--binary", "-p0", "-i", "x.patch"], cwd=folder, check=True, capture_output=True)
    patched = (folder / "train.py").read_bytes()
    (folder / "train.py").write_bytes(odd.encode())
    oomdoctor_here("lint", "--fix")
    assert (folder / "train.py").read_bytes() == patched != odd.encode()


def test_diff_into_a_file(oomdoctor_here: Run, folder: Path) -> None:
    """`-o` takes the difference."""
    ended = oomdoctor_here("lint", "--diff", "-o", "x.patch")
    assert (ended.returncode, ended.stdout) == (1, "")
    assert (folder / "x.patch").read_text() == oomdoctor_here("lint", "--diff").stdout


def test_carriage_returns_alone_end_lines(folder: Path) -> None:
    """A text as old Macs wrote it has the findings that it has with line feeds, and keeps its line ends."""
    old = TRAIN.replace("\n", "\r")
    (folder / "train.py").write_bytes(old.encode())
    ended = here(folder, "train.py", "--json")
    assert found(ended.stdout) == [("train.py", 14, "OOM104"), ("train.py", 16, "OOM102")]
    assert _result(ended.stdout)["lines"] == TRAIN.count("\n")
    assert here(folder, "train.py", "--fix").returncode == 0
    assert (folder / "train.py").read_bytes() == FIXED.replace("\n", "\r").encode()


def test_fixes_of_a_notebook(oomdoctor_here: Run, tmp_path: Path) -> None:
    """A notebook is fixed in its cells and nowhere else, and its difference is shown by cell."""
    head, _, loop = TRAIN.partition("\n\nfor ")
    text = notebook(head, f"for {loop}")
    (tmp_path / "x.ipynb").write_text(text)
    ended = oomdoctor_here("lint", "--diff")
    assert ended.stdout.startswith("--- x.ipynb:cell 2\n+++ x.ipynb:cell 2\n")
    assert "+        total += criterion(model(batch), batch).detach()\n" in ended.stdout
    assert oomdoctor_here("lint", "--fix").returncode == 0
    assert (tmp_path / "x.ipynb").read_text() == notebook(head, f"for {FIXED.partition('for ')[2]}")


def test_fixes_of_standard_input(tmp_path: Path) -> None:
    """What standard input is made into goes to standard output, and the report to stderr."""
    ended = _piped(tmp_path, TRAIN + RETRY, "--fix")
    assert (ended.returncode, ended.stdout) == (1, FIXED + RETRY)
    assert "OOM121" in ended.stderr
    ended = _piped(tmp_path, CLEAN, "--fix", "--statistics")
    assert (ended.returncode, ended.stdout) == (0, CLEAN)
    assert "no findings\n" in ended.stderr
    ended = _piped(tmp_path, TRAIN, "--fix", "--json", "-o", "x.json")
    assert (ended.returncode, ended.stdout) == (0, FIXED)
    assert json.loads((tmp_path / "x.json").read_text())["result"]["fixed"] == 2
    assert "+        loss.backward()\n" in _piped(tmp_path, TRAIN, "--diff", "--stdin-filename", "a.py").stdout


def test_what_cannot_be_written_is_said(folder: Path) -> None:
    """A file that cannot be written stays as it was and keeps its findings; the others are fixed or reported."""
    ended = subprocess.run(
        [sys.executable, "-m", "oomdoctor", "lint", "--fix"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0)),
    )
    assert ended.returncode == 1
    assert ended.stderr == "`train.py` is left as it was: it cannot be written: File too large\n"
    assert "Found 3 findings" in ended.stdout
    assert (folder / "train.py").read_text() == TRAIN
    assert sorted(os.listdir(folder)) == [".git", "retry.py", "train.py"]  # noqa: PTH208 - the names alone


# --- the process -----------------------------------------------------------------------------------------------------


def test_torch_is_not_imported(folder: Path) -> None:
    """Linting and fixing need no torch, and run nothing of what is linted."""
    (folder / "train.py").write_text(f"open('ran', 'w')\n{TRAIN}")
    code = (
        "import sys\n"
        "from oomdoctor.cli import main\n"
        "assert main(['lint', '--fix', '-o', 'x.json']) == 1\n"
        "sys.exit('torch' in sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], cwd=folder, check=True, capture_output=True)
    assert not (folder / "ran").exists()


@pytest.mark.parametrize("arguments", [(), ("--diff",), ("--statistics",), ("--json",)])
def test_closed_standard_output(folder: Path, arguments: tuple[str, ...]) -> None:
    """A reader that goes away, and a stream that is closed from the start, cause no traceback."""
    command = [sys.executable, "-m", "oomdoctor", "lint", *arguments]
    for shell in ('"$@" | true', '"$@" >&-'):
        ended = subprocess.run(
            ["bash", "-c", shell, "bash", *command], cwd=folder, capture_output=True, text=True, check=False, timeout=60
        )
        assert "Traceback" not in ended.stderr, shell
        assert "bug" not in ended.stderr


def test_a_full_disk_is_said(folder: Path) -> None:
    """A standard output that cannot be written to is an error with a message of its own."""
    with Path("/dev/full").open("w") as full:
        ended = subprocess.run(
            [sys.executable, "-m", "oomdoctor", "lint"], cwd=folder, stdout=full, stderr=subprocess.PIPE, text=True,
            check=False,
        )  # fmt: skip
    assert ended.returncode == 2
    assert "standard output cannot be written" in ended.stderr


def _piped(folder: Path, text: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "oomdoctor", "lint", "-", *arguments],
        cwd=folder,
        input=text,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
