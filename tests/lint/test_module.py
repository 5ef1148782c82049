"""A text as a module: its lines, and all nodes of its tree."""

from __future__ import annotations

import ast
from pathlib import Path

import lint_cases
import pytest

from oomdoctor.lint.module import parse, walk


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


@pytest.mark.parametrize("name", list(lint_cases.SCRIPTS)[::20])
def test_all_nodes_come_in_the_order_of_the_standard_library(name: str) -> None:
    """The walk gives what `ast.walk` gives, but for the marks that tell reading from setting."""
    tree = ast.parse(lint_cases.SCRIPTS[name])
    expected = [node for node in ast.walk(tree) if not isinstance(node, ast.expr_context)]
    assert walk(tree) == expected
