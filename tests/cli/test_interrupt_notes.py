"""What was proven before an end from outside is printed with it."""

from __future__ import annotations

from pathlib import Path

import pytest
from running import run_here

from oomdoctor.engines import catalogue
from oomdoctor.errors import NoAnswerError

NOTE = "proven so far: micro-batch 96 fits, and 128 does not fit"


@pytest.mark.parametrize(
    ("end", "exit_code", "said"),
    [
        (KeyboardInterrupt(), 130, f"interrupted\n{NOTE}\n"),
        (NoAnswerError("it took too long", hint="wait"), 3, f"error: it took too long\n\n{NOTE}\n\nhint: wait\n"),
    ],
)
def test_the_note_of_an_end_is_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: BaseException, exit_code: int, said: str
) -> None:
    """An interrupt that went through typer keeps its note, and the exit code is as without one."""

    def ended(*_: object) -> None:
        end.add_note(NOTE)
        raise end

    monkeypatch.setattr(catalogue, "all_cards", ended)
    result = run_here(["gpus", "--known"], tmp_path)

    assert (result.returncode, result.stdout, result.stderr) == (exit_code, "", said)
