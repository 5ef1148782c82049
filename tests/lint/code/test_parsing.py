"""From text to a module."""

from __future__ import annotations

from pathlib import Path

import pytest

from oomdoctor.lint.module import parse


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("x = 1\ry = 2\r", "x = 1\ny = 2\n"),
        ("x = 1\r\ny = 2\r\n", "x = 1\r\ny = 2\r\n"),
        ("x = 1\r\r\ny = 2", "x = 1\n\r\ny = 2"),
    ],
)
def test_every_line_of_a_module_ends_with_a_line_feed(text: str, kept: str) -> None:
    """What looks into the text of a module finds there the lines that the parser counts."""
    module = parse(text, Path("a.py"))
    assert module.text == kept
    assert len(module.text.split("\n")) >= module.tree.body[-1].lineno
