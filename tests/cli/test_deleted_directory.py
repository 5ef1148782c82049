"""A working directory that is gone is the user's to leave, and no bug."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from oomdoctor.cli import main

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("command", [["probe", "model.py", "--target-batch", "8", "--gpu", "t4"], ["lint"], ["check"]])
def test_a_deleted_working_directory_is_named(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The error says so, and the exit code is that of a wrong use."""
    folder = tmp_path / "gone"
    folder.mkdir()
    monkeypatch.chdir(folder)
    folder.rmdir()
    assert main(command) == 2
    assert "the working directory was deleted" in capsys.readouterr().err
