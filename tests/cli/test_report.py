"""`oomdoctor report`: a saved result in any format, and what is said where it cannot be read."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest
import typer
from check_documents import check
from diagnosis_documents import out_of_memory
from fit_documents import fitted
from frontier_documents import frontier
from lint_documents import mistakes
from prescribe_documents import prescribed
from running import Run
from verify_documents import verified

from oomdoctor.cli.report import FormatName, report
from oomdoctor.errors import UsageError
from oomdoctor.output import Terminal
from oomdoctor.report import FORMATS, render
from oomdoctor.results import Document
from oomdoctor.results.document import COMMANDS
from oomdoctor.results.saved import read_document, to_json

INVOCATIONS = {
    "oomdoctor": [str(Path(sys.executable).parent / "oomdoctor")],
    "python -m oomdoctor": [sys.executable, "-m", "oomdoctor"],
}
SAVED = Path(__file__).parents[1] / "report" / "data" / "probe-gpt2.json"


@pytest.fixture(autouse=True)
def _same_terminal_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setenv("COLUMNS", "80")


def run(*arguments: str) -> None:
    """Run the command as Typer does, its errors let through."""
    app = typer.Typer(pretty_exceptions_enable=False)
    app.command()(report)
    app([*arguments], standalone_mode=False)


def test_text_by_default(capfd: pytest.CaptureFixture[str]) -> None:
    """Without a flag the report is the one for people, on standard output alone."""
    run(str(SAVED))
    out, err = capfd.readouterr()
    assert "micro-batch 19 fits; 20 runs out in backward, iteration 2" in out
    assert "\x1b" not in out
    assert max(map(len, out.splitlines())) == 80
    assert err == ""


def test_json_is_the_same_document(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """With `--json` a saved document comes out byte for byte."""
    text = to_json(read_document(str(SAVED)))
    (tmp_path / "saved.json").write_text(text, encoding="utf-8")
    run(str(tmp_path / "saved.json"), "--json")
    assert capfd.readouterr() == (text, "")


def test_markdown(capfd: pytest.CaptureFixture[str]) -> None:
    """With `--markdown` the report is Markdown."""
    run(str(SAVED), "--markdown")
    assert capfd.readouterr().out.startswith("### micro-batch 19 fits")


def test_standard_input(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    """A dash reads standard input, so that a probe can be piped."""
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(SAVED.read_bytes())))
    run("-", "--json")
    assert json.loads(capfd.readouterr().out)["result"]["micro_batch"]["maximum"] == 19


def test_output_file(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """With `-o` the report is in the file, plain and 80 columns wide, and standard error says so."""
    run(str(SAVED), "-o", str(tmp_path / "report.txt"))
    assert capfd.readouterr() == ("", f"Wrote {tmp_path / 'report.txt'}\n")
    assert "micro-batch 19 fits" in (tmp_path / "report.txt").read_text()


def test_directory_as_output_is_refused(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A directory is not overwritten, and nothing is printed."""
    with pytest.raises(UsageError, match="is a directory"):
        run(str(SAVED), "-o", str(tmp_path))
    assert capfd.readouterr() == ("", "")


def test_two_formats_are_refused() -> None:
    """Two formats at once are a contradiction, which is said before anything is read."""
    with pytest.raises(UsageError, match="`--format sarif` and `--json` exclude each other"):
        run("missing.json", "--json", "--format", "sarif")
    for flags in (("--json", "--markdown"), ("--markdown", "--html"), ("--json", "--html")):
        with pytest.raises(UsageError, match=f"`{flags[0]}` and `{flags[1]}` exclude each other"):
            run("missing.json", *flags)


@pytest.fixture
def diagnosis(tmp_path: Path) -> str:
    """A saved diagnosis."""
    path = tmp_path / "diagnosis.json"
    path.write_text(to_json(out_of_memory()), encoding="utf-8")
    return str(path)


def test_diagnosis_in_every_format(diagnosis: str, capfd: pytest.CaptureFixture[str]) -> None:
    """A saved diagnosis is rendered by the same command, in each of its formats."""
    begins = {
        "--json": '{\n "schema_version": 1,\n "command": "diagnose"',
        "--markdown": "### GPU 0 ran out of memory",
    }
    for flag, start in {**begins, "--html": "<!doctype html>"}.items():
        run(diagnosis, flag)
        assert capfd.readouterr().out.startswith(start)
    run(diagnosis)
    assert "GPU 0 ran out of memory in backward, step 412" in capfd.readouterr().out


@pytest.mark.parametrize(
    ("name", "start"),
    [
        ("x.json", "{"),
        ("x.md", "### GPU 0"),
        ("x.MD", "### GPU 0"),
        ("x.html", "<!doctype html>"),
        ("x.htm", "<!doctype html>"),
        ("x.sarif", '{\n  "$schema": "https://json.schemastore.org/sarif-2.1.0.json"'),
        ("x.sarif.json", '{\n  "$schema"'),
        ("x.xml", "<?xml"),
        ("x.txt", "\u250f"),
        ("x.log", "\u250f"),
        ("x", "\u250f"),
    ],
)
def test_ending_chooses_the_format(diagnosis: str, tmp_path: Path, name: str, start: str) -> None:
    """Where no flag asks for a format, the ending of the output file does."""
    run(diagnosis, "-o", str(tmp_path / name))
    assert (tmp_path / name).read_text(encoding="utf-8").startswith(start)


@pytest.fixture
def findings(tmp_path: Path) -> str:
    """What lint found, saved."""
    path = tmp_path / "lint.json"
    path.write_text(to_json(mistakes()), encoding="utf-8")
    return str(path)


@pytest.mark.parametrize(
    ("form", "start"),
    [
        ("text", "notebooks/fine tune.ipynb:cell 7:3:5: OOM202 "),
        ("json", '{\n "schema_version": 1,\n "command": "lint"'),
        ("markdown", "### 3 findings (1 error, 1 warning, 1 note) in 12 files"),
        ("html", "<!doctype html>"),
        ("github", "::error file="),
        ("junit", "<?xml version="),
        ("sarif", '{\n  "$schema"'),
    ],
)
def test_findings_in_every_format(findings: str, form: str, start: str, capfd: pytest.CaptureFixture[str]) -> None:
    """What lint found and was saved is rendered in every format that lint has."""
    run(findings, "--format", form)
    out, err = capfd.readouterr()
    assert out.startswith(start)
    assert err == ""


def test_annotations_come_with_a_summary(
    findings: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """With `--format github` the Markdown goes to the file that the runner names, with `-o` as well."""
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "summary.md"))
    run(findings, "--markdown")
    assert not (tmp_path / "summary.md").exists()
    markdown = capfd.readouterr().out
    run(findings, "--format", "github")
    assert capfd.readouterr().out.startswith("::error file=")
    assert (tmp_path / "summary.md").read_text(encoding="utf-8") == markdown
    run(findings, "--format", "github", "-o", str(tmp_path / "commands.txt"))
    assert (tmp_path / "summary.md").read_text(encoding="utf-8") == markdown * 2
    assert (tmp_path / "commands.txt").read_text(encoding="utf-8").startswith("::error file=")


def test_format_may_be_asked_for_twice(findings: str, capfd: pytest.CaptureFixture[str]) -> None:
    """`--json --format json` is no contradiction."""
    run(findings, "--json", "--format", "json")
    assert capfd.readouterr().out.startswith("{")


def test_format_that_is_none(oomdoctor_here: Run) -> None:
    """A format that nobody has is refused with those that there are."""
    ended = oomdoctor_here("report", "x.json", "--format", "pdf")
    assert (ended.returncode, ended.stdout) == (2, "")
    assert "'text', 'json', 'markdown', 'html', 'github', 'junit', 'sarif'" in ended.stderr


def test_flag_beats_the_ending(diagnosis: str, tmp_path: Path) -> None:
    """A flag says what is wanted, whatever the file is called, and the ending that says another is warned of."""
    run(diagnosis, "--markdown", "-o", str(tmp_path / "x.html"))
    assert (tmp_path / "x.html").read_text(encoding="utf-8").startswith("###")


@pytest.mark.parametrize(
    ("options", "name", "is_told"),
    [
        (["--json"], "y.html", True),
        (["--html"], "y.json", True),
        (["--json"], "y.json", False),
        (["--format", "sarif"], "y.json", False),
        (["--json"], "y.txt", False),
    ],
)
def test_an_ending_of_another_format_is_told(
    tmp_path: Path, oomdoctor_here: Run, options: list[str], name: str, is_told: bool
) -> None:
    """Every command writes what the flag asks for, and says where the name of the file promises another format."""
    (tmp_path / "empty.py").touch()
    for asked in (["lint", "empty.py"], ["report", str(SAVED)], ["probe", "absent.py", "--gpu", "t4"]):
        (tmp_path / name).unlink(missing_ok=True)
        ended = oomdoctor_here(*asked, *options, "-o", name)
        is_written = (tmp_path / name).exists()  # an error has no page
        assert is_written or (asked[0], options) == ("probe", ["--html"])
        assert (f"warning: `{name}` has " in ended.stderr) == (is_told and is_written)


def test_rendering_is_what_the_exit_code_is_about(tmp_path: Path, oomdoctor_here: Run) -> None:
    """The document of a check that failed renders with exit code 0, and keeps its own; one that is none is a 2."""
    failed = to_json(check())
    assert json.loads(failed)["exit_code"] != 0
    (tmp_path / "failed.json").write_text(failed)
    ended = oomdoctor_here("report", "failed.json", "--json")
    assert (ended.returncode, json.loads(ended.stdout)) == (0, json.loads(failed))
    assert oomdoctor_here("report", "absent.json").returncode == 2


@pytest.mark.parametrize("command", [("report", str(SAVED)), ("diagnose", "empty.py"), ("lint",), ("rule", "--all")])
def test_quiet_is_an_option_of_commands_without_progress_too(
    tmp_path: Path, oomdoctor_here: Run, command: tuple[str, ...]
) -> None:
    """A script may give `-q` to each command that reports."""
    (tmp_path / "empty.py").touch()
    plain, quiet, long = (oomdoctor_here(*command, *option) for option in ((), ("-q",), ("--quiet",)))
    assert plain.stdout == quiet.stdout == long.stdout != ""
    assert plain.returncode == quiet.returncode == long.returncode


@pytest.mark.parametrize("arguments", [("--html",), ("--format", "html"), ("-o", "x.html")])
def test_probe_as_a_page(arguments: tuple[str, ...], tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A saved probe is one page, by flag and by the file's ending."""
    run(str(SAVED), *(str(tmp_path / part) if part == "x.html" else part for part in arguments))
    written = tmp_path / "x.html"
    page = written.read_text(encoding="utf-8") if written.exists() else capfd.readouterr().out
    assert page.startswith("<!doctype html>")
    assert "<h1>micro-batch 19 fits; 20 runs out" in page


def test_dry_run_explains_in_text_whatever_the_ending(oomdoctor_here: Run) -> None:
    """The ending of the file that a dry run writes to asks for no page."""
    ended = oomdoctor_here("probe", "missing.py", "--dry-run", "-o", "x.html")
    assert "missing.py" in ended.stderr
    assert "plain text" not in ended.stderr


def test_unknown_command_in_a_document(tmp_path: Path) -> None:
    """A document of a command that this version does not have is refused with those that it has."""
    path = tmp_path / "x.json"
    path.write_text(SAVED.read_text().replace('"command": "probe"', '"command": "train"'))
    with pytest.raises(UsageError, match="not one of `probe`, `diagnose`, `lint`, `check`, `gpus`"):
        run(str(path))


def test_every_format_has_a_renderer() -> None:
    """Each command's document has each format that `--format` takes."""
    samples: dict[str, Document] = {
        "probe": read_document(str(SAVED)),
        "diagnose": out_of_memory(),
        "lint": mistakes(),
        "check": check(),
        "gpus": fitted(),
        "verify": verified(),
        "prescribe": prescribed(),
        "frontier": frontier(),
    }
    assert set(FORMATS) == set(get_args(FormatName))
    assert set(samples) == set(COMMANDS)
    for document in samples.values():
        for form in FORMATS:
            assert render(document, form, Terminal()).endswith("\n")


@pytest.mark.parametrize("invocation", ["oomdoctor", "python -m oomdoctor"])
def test_real_command(tmp_path: Path, invocation: str) -> None:
    """The installed command renders a saved result without torch, and answers a bad one without a traceback."""
    command = INVOCATIONS[invocation]
    good = subprocess.run([*command, "report", SAVED], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert (good.returncode, good.stderr) == (0, "")
    assert "micro-batch 19 fits" in good.stdout
    bad = subprocess.run([*command, "report", "none.json"], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert (bad.returncode, bad.stdout) == (2, "")
    assert bad.stderr.startswith("error: no such file: `none.json`\n\nhint: ")
    assert "Traceback" not in bad.stderr


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (None, "no such file"),
        (b"", "is empty"),
        (b"micro-batch 19", "is not JSON"),
        (b'{"$schema": "sarif", "runs": []}', "no `schema_version`"),
        (b'{"schema_version": 99}', "this oomdoctor reads 1"),
        (b"\x80\x04\x95pickle", "is not text"),
        (b"[" * 100_000, "nested too deeply"),
        (SAVED.read_bytes()[:2000], "cut short"),
    ],
    ids=["missing", "empty", "text", "other tool", "version", "binary", "nested", "truncated"],
)
def test_bad_input_exits_with_2(tmp_path: Path, content: bytes | None, expected: str) -> None:
    """What is not a saved result gets its own message, a hint and exit code 2."""
    path = tmp_path / "x.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UsageError, match=expected) as caught:
        run(str(path))
    assert caught.value.exit_code == 2
    assert caught.value.hint
    assert str(path) in caught.value.message
