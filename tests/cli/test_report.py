"""`oomdoctor report`: a saved result in any format, and what is said where it cannot be read."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from oomdoctor.cli.report import report
from oomdoctor.errors import UsageError

INVOCATIONS = {
    "oomdoctor": [str(Path(sys.executable).parent / "oomdoctor")],
    "python -m oomdoctor": [sys.executable, "-m", "oomdoctor"],
}
SAVED = Path(__file__).parents[1] / "reports" / "data" / "probe-gpt2.json"


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


def test_json_is_the_same_document(capfd: pytest.CaptureFixture[str]) -> None:
    """With `--json` a saved document comes out byte for byte."""
    run(str(SAVED), "--json")
    assert capfd.readouterr() == (SAVED.read_text(), "")


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
    with pytest.raises(UsageError, match="exclude each other"):
        run("missing.json", "--json", "--markdown")


@pytest.mark.parametrize("invocation", ["oomdoctor", "python -m oomdoctor"])
def test_real_command(tmp_path: Path, invocation: str) -> None:
    """The installed command renders a saved result without torch, and answers a bad one without a traceback."""
    command = INVOCATIONS[invocation]
    good = subprocess.run([*command, "report", SAVED], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert (good.returncode, good.stderr) == (0, "")
    assert "micro-batch 19 fits" in good.stdout
    bad = subprocess.run([*command, "report", "none.json"], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert (bad.returncode, bad.stdout) == (2, "")
    assert bad.stderr.startswith("error: No such file: `none.json`\n\nhint: ")
    assert "Traceback" not in bad.stderr


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (None, "No such file"),
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
