"""The summary of a job's step on GitHub: appended to, never beyond what GitHub shows."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oomdoctor.report.github import LIMIT_BYTES, append, fitting

CUT = "*This summary was cut: GitHub shows 1 MiB of a step.*\n"


@pytest.fixture
def summary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file that a runner names."""
    path = tmp_path / "summary.md"
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(path))
    return path


def test_report_is_appended(summary: Path) -> None:
    """What earlier commands of the step wrote stays."""
    append("### One\n")
    append("### Tw\u00f6\n")
    assert summary.read_text(encoding="utf-8") == "### One\n### Tw\u00f6\n"


def test_no_runner_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the runner's variable, or with an empty one, nothing is written."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)
    append("x")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", "")
    append("x")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("held", range(1000, 1006))
def test_what_does_not_fit_is_cut(summary: Path, held: int) -> None:
    """The file stays below what GitHub shows, ends with whole lines, and says that it was cut."""
    summary.write_text("x" * held + "\n")
    append("line\n" * LIMIT_BYTES)
    data = summary.read_bytes()
    assert LIMIT_BYTES - 10 < len(data) <= LIMIT_BYTES
    assert set(data.decode().splitlines()[1:-2]) == {"line"}
    assert data.decode().endswith(f"line\n\n{CUT}")
    append("line\n" * 100)
    assert summary.read_bytes() == data


@given(st.text(max_size=300), st.integers(-5, 500))
def test_never_more_than_there_is_room_for(text: str, room: int) -> None:
    """Whatever the text, what is kept has no more bytes than there is room for."""
    kept = fitting(text, room)
    assert len(kept.encode()) <= max(room, 0)
    assert kept in (text, "") or kept.endswith(CUT)


def test_unwritable_summary_loses_no_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A summary that cannot be written is said on standard error, and the command goes on."""
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "missing" / "summary.md"))
    append("x")
    assert capsys.readouterr().err == "warning: the step's summary cannot be written: No such file or directory\n"
