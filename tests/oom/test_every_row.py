"""Every row of the table of errors, through each of those who read it: the agent in a real process, and a log."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
import tomllib
from dataclasses import fields
from pathlib import Path

import pytest

from oomdoctor.agent.oom_errors import PATH, Row, parse_plainly, table
from oomdoctor.diagnose.events import read_events
from oomdoctor.diagnose.text.scan import scan
from oomdoctor.results.diagnosis import Facts
from oomdoctor.run.environment import with_agent

PROGRAM = Path(__file__).with_name("programs") / "raise_errors.py"
BASES = {"torch": ["RuntimeError"], "cupy": ["MemoryError"]}
OTHERS_TEXT = "\n\n-- Process 0 terminated with the following error:\nRuntimeError: CUDA error: out of memory"
FILLER = "2031-05-06 07:08:09 | INFO | trainer:step:12 - all is well, the gradient norm is 0.25\n"

by_row = pytest.mark.parametrize("row", table().rows, ids=lambda row: row.id)


def says_oom(row: Row) -> bool:
    """Whether the text of the row's example is enough to say that memory ran out."""
    return row.means in {"oom", "host_oom"} and (not row.needs_pressure or bool(row.oom_if))


def types_of(row: Row) -> list[str]:
    """The first type that the row's own process raises it as, and the base that its library gives it."""
    name = next(name for name in row.types if name not in table().other_process_types)
    return [name, *BASES.get(name.split(".")[0], [])]


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict]:
    """What the agent reported of a process that died of each row's example, by the row's id."""
    folder = tmp_path_factory.mktemp("rows")
    errors = [{"name": row.id, "types": types_of(row), "text": row.example} for row in table().rows]
    errors += [{"name": name, "types": [name], "text": OTHERS_TEXT} for name in table().other_process_types]
    (folder / "errors.json").write_text(json.dumps(errors), encoding="utf-8")
    environment = {
        **with_agent(os.environ),
        "OOMDOCTOR_RUN_DIRECTORY": str(folder / "reports"),
        "OOMDOCTOR_RUN_MAX_ENTRIES": "0",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    command = [sys.executable, str(PROGRAM), str(folder / "errors.json")]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=280, check=False)
    names = dict(line.split() for line in ended.stdout.splitlines())
    assert set(names.values()) == {error["name"] for error in errors}, ended.stderr
    found = [json.loads(path.read_text(encoding="utf-8")) for path in (folder / "reports").glob("rank*-*/report.json")]
    return {names[str(report["pid"])]: report for report in found}


@by_row
def test_numbers_are_read_into_facts(row: Row) -> None:
    """Each group of a row's numbers is a field of `Facts`, and no expression has a space, which would never match."""
    groups = {name for numbers in row.numbers for name in re.findall(r"\(\?P<(\w+)>", numbers)}
    assert groups <= {*(field.name for field in fields(Facts)), "free_total"}  # two numbers in one
    assert not any(" " in numbers for numbers in row.numbers)


@by_row
def test_the_agent_reports_a_process_that_died_of_a_row_that_is_oom(reports: dict[str, dict], row: Row) -> None:
    """There is a report where memory ran out, and none of a process that died of something else."""
    assert (row.id in reports) == says_oom(row)
    if says_oom(row):
        assert reports[row.id]["message"] == row.example
        assert reports[row.id]["type"].removeprefix("builtins.") == types_of(row)[0]
        assert reports[row.id]["failures"] == []


@pytest.mark.parametrize("name", table().other_process_types)
def test_the_agent_leaves_another_processs_error_to_that_process(reports: dict[str, dict], name: str) -> None:
    """A launcher that passes on what a worker died of has not run out of memory itself."""
    assert name not in reports


@by_row
def test_a_log_is_read_as_the_row_says(row: Row) -> None:
    """The row's example, printed below a traceback in the middle of a long log, is found and is of its kind."""
    trace = 'Traceback (most recent call last):\n  File "/home/me/train.py", line 7, in main\n    run()\n'
    lines = 13_000 if row is table().rows[0] else 1_300
    text = FILLER * lines + trace + f"{row.types[0]}: {row.example}\n" + FILLER * lines
    events = list(read_events(scan(io.BytesIO(text.encode()), "train.log").windows))
    assert row.id in [event.message.kind for event in events]
    assert any(event.message.is_oom for event in events) == says_oom(row)


def test_older_pythons_read_the_same_table() -> None:
    """The reader for Pythons without `tomllib` finds what `tomllib` does."""
    text = Path(PATH).read_text(encoding="utf-8")
    assert parse_plainly(text) == tomllib.loads(text)
