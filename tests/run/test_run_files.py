"""Reports of a run are told from what lay there before, and go where they were wanted."""

from __future__ import annotations

from pathlib import Path

import pytest

from oomdoctor.errors import UsageError
from oomdoctor.run.run import ReportDirectory, files_of


def write_report(directory: Path, name: str, *, complete: bool = True) -> Path:
    """A report as the hook leaves it."""
    path = directory / name
    path.mkdir(parents=True)
    (path / "snapshot.pickle").write_bytes(b"")
    if complete:
        (path / "report.json").write_text("{}")
    return path


def test_only_this_runs_complete_reports_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reports of earlier runs and half-written ones are left out, and discarding takes this run's alone."""
    monkeypatch.chdir(tmp_path)
    old = write_report(tmp_path / "out", "rank0-1")
    directory = ReportDirectory.choose(Path("out"))
    new = write_report(tmp_path / "out", "rank0-2")
    write_report(tmp_path / "out", "rank0-3", complete=False)
    write_report(tmp_path / "out", ".rank0-4.part")

    assert directory.reports() == [new]
    assert files_of(new) == [new / "report.json", new / "snapshot.pickle"]
    directory.tidy()
    assert not (tmp_path / "out" / ".rank0-4.part").exists()
    directory.discard()
    assert list((tmp_path / "out").iterdir()) == [old]


def test_a_directory_of_our_own_goes_with_its_last_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A name with the time, absolute, made by nobody until there is something in it."""
    monkeypatch.chdir(tmp_path)
    directory = ReportDirectory.choose(None)

    assert directory.path.parent == tmp_path
    assert directory.path.name.startswith("oomdoctor-2")
    assert not directory.path.exists()
    assert directory.reports() == []
    write_report(directory.path, "rank0-2")
    directory.discard()
    assert list(tmp_path.iterdir()) == []


def test_a_file_in_the_way_is_said(tmp_path: Path) -> None:
    """A directory cannot be made beneath a file."""
    (tmp_path / "file").write_text("")

    with pytest.raises(UsageError, match="is to be a directory"):
        ReportDirectory.choose(tmp_path / "file" / "below")


def test_a_file_system_that_refuses_is_told_before_the_run() -> None:
    """Where no directory can be made, even with every permission, that is said at once."""
    with pytest.raises(UsageError, match="cannot be written"):
        ReportDirectory.choose(Path("/proc/no-such/reports"))


def test_a_directory_that_can_be_made_is_not_made_yet(tmp_path: Path) -> None:
    """Trying leaves nothing behind, not even of a deep path."""
    ReportDirectory.choose(tmp_path / "a" / "b")
    assert list(tmp_path.iterdir()) == []
