"""Documents that earlier versions saved: each still reads, renders in every format, and is valid by today's schemas.

The files are what the commands wrote with `--json` when the layout had its first version: of the examples and of small
scripts on the null GPU, and of logs and memory snapshots of theirs. Only the folders of the machine were renamed.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import pytest

from oomdoctor.output import Terminal
from oomdoctor.report import FORMATS, render
from oomdoctor.results.saved import from_json, read_document, to_json
from oomdoctor.schemas import schema_of

SAVED = sorted((Path(__file__).parent / "saved").glob("*.json"))


def test_saved_documents_are_of_every_command_and_ending() -> None:
    """The files hold every status that a command can end with."""
    data = [json.loads(path.read_bytes()) for path in SAVED]
    assert {(each["command"], each["status"]) for each in data} >= {
        ("probe", "fits"),
        ("probe", "nothing_fits"),
        ("diagnose", "oom"),
        ("diagnose", "not_oom"),
        ("diagnose", "nothing_found"),
        ("lint", "clean"),
        ("lint", "findings"),
        ("lint", "unreadable"),
        ("check", "passed"),
        ("check", "error"),
        ("check", "no_answer"),
        ("gpus", "fitted"),
    }


@pytest.mark.parametrize("path", SAVED, ids=lambda path: path.stem)
def test_saved_document_reads(path: Path) -> None:
    """It loads, and is written again with all that it held."""
    document = read_document(str(path))
    written = to_json(document)
    assert from_json(written, "x") == document
    assert_holds(json.loads(written), json.loads(path.read_bytes()))


@pytest.mark.parametrize("path", SAVED, ids=lambda path: path.stem)
def test_saved_document_is_valid(path: Path) -> None:
    """It follows the schema that is shipped today."""
    schema = schema_of(type(read_document(str(path))))
    jsonschema.Draft202012Validator(schema).validate(json.loads(path.read_bytes()))


@pytest.mark.parametrize("path", SAVED, ids=lambda path: path.stem)
@pytest.mark.parametrize("form", FORMATS)
def test_saved_document_renders(path: Path, form: str) -> None:
    """Every format shows it."""
    assert render(read_document(str(path)), form, Terminal()).strip()


def assert_holds(now: Any, before: Any) -> None:
    """Assert that data has all that it had before; fields may have come."""
    if isinstance(before, dict):
        assert before.keys() <= now.keys()
        for key, value in before.items():
            assert_holds(now[key], value)
    elif isinstance(before, list):
        assert len(now) == len(before)
        for new, old in zip(now, before, strict=True):
            assert_holds(new, old)
    else:
        assert now == before
        assert type(now) is type(before) or isinstance(now, float)


def test_a_document_takes_half_the_space_of_a_line_a_value() -> None:
    """Most of it is the timeline and the phases, whose rows have a line each."""
    path = next(path for path in SAVED if path.stem == "probe-fits")
    written = to_json(read_document(str(path)))
    assert len(written) <= 0.5 * len(json.dumps(json.loads(written), indent=2))
    assert sum(len(line) > 300 for line in written.splitlines()) < 10  # sentences
