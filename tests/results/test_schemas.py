"""The shipped JSON Schemas are what their generator makes of the documents; `OOMDOCTOR_TEST_REWRITE=1` writes them."""

from __future__ import annotations

import json
import os
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

import oomdoctor
from oomdoctor.results.document import DOCUMENTS
from oomdoctor.schemas import as_text, schema_of

FOLDER = Path(oomdoctor.__file__).parent / "schemas"


@pytest.mark.parametrize("name", DOCUMENTS)
def test_shipped_schema_is_what_is_generated(name: str) -> None:
    """The file of each document is generated from its dataclasses, to the byte."""
    text = as_text(schema_of(DOCUMENTS[name]))
    if "OOMDOCTOR_TEST_REWRITE" in os.environ:
        (FOLDER / f"{name}.schema.json").write_text(text, encoding="utf-8", newline="")
    assert (files("oomdoctor") / "schemas" / f"{name}.schema.json").read_text(encoding="utf-8") == text


def test_every_schema_is_of_a_document() -> None:
    """No file describes a document that nobody writes."""
    assert {path.name.partition(".")[0] for path in FOLDER.glob("*.json")} == set(DOCUMENTS)


@pytest.mark.parametrize("name", DOCUMENTS)
def test_every_field_is_described(name: str) -> None:
    """Each class and each field has a sentence, taken from its docstring."""
    schema: dict[str, Any] = json.loads((FOLDER / f"{name}.schema.json").read_text(encoding="utf-8"))
    for described in (schema, *schema["$defs"].values()):
        for part in (described, *described["properties"].values()):
            assert part["description"].endswith(".")
            assert "None" not in part["description"]
