"""Whole reports of hostile documents, character by character; `OOMDOCTOR_TEST_REWRITE=1` writes them anew."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from every_format import COMMANDS, rendered, wicked

GOLDEN = Path(__file__).parent / "data" / "golden"
ENDINGS = {
    "text": "txt",
    "json": "json",
    "markdown": "md",
    "html": "html",
    "github": "github",
    "junit": "xml",
    "sarif": "sarif",
}
# A snapshot's points would be most of the diagnosis in JSON and in HTML.
LEFT_OUT = {("diagnose", "json"), ("diagnose", "html")}
CASES = [(command, form) for command in COMMANDS for form in ENDINGS if (command, form) not in LEFT_OUT]
# How a page looks is for the browser's tests; what it says is in the rest.
STYLE = re.compile(r"(?s)<style>.*?</style>|sha256-[^']*")


@pytest.mark.usefixtures("repository")
@pytest.mark.parametrize(("command", "form"), CASES)
def test_hostile_document(command: str, form: str) -> None:
    """A report in which every text is hostile is what it was when somebody looked at it."""
    path = GOLDEN / f"{command}.{ENDINGS[form]}"
    text = STYLE.sub("", rendered(wicked(command), form))
    if "OOMDOCTOR_TEST_REWRITE" in os.environ:
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8", newline="")
    assert path.read_bytes().decode("utf-8") == text
