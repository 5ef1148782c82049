"""Whole reports of hostile documents, character by character; `OOMDOCTOR_TEST_REWRITE=1` writes them anew."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from every_format import rendered, wicked

GOLDEN = Path(__file__).parent / "data" / "golden"
ENDINGS = {"text": "txt", "json": "json", "markdown": "md", "github": "github", "junit": "xml", "sarif": "sarif"}
CASES = [(command, form) for command in ("lint", "diagnose", "probe") for form in ("github", "junit", "sarif")]


@pytest.mark.usefixtures("repository")
@pytest.mark.parametrize(("command", "form"), [*CASES, ("lint", "text"), ("lint", "json"), ("lint", "markdown")])
def test_hostile_document(command: str, form: str) -> None:
    """A report in which every text is hostile is what it was when somebody looked at it."""
    path = GOLDEN / f"{command}.{ENDINGS[form]}"
    text = rendered(wicked(command), form)
    if "OOMDOCTOR_TEST_REWRITE" in os.environ:
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8", newline="")
    assert path.read_bytes().decode("utf-8") == text
