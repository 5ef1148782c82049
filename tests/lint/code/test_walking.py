"""All nodes of a tree, quickly."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from oomdoctor.lint.code.walking import walk

FIXTURES = sorted((Path(__file__).parents[1] / "fixtures").rglob("*.py"))[::20]


@pytest.mark.parametrize("path", FIXTURES, ids=lambda path: path.stem)
def test_all_nodes_come_in_the_order_of_the_standard_library(path: Path) -> None:
    """The walk gives what `ast.walk` gives, but for the marks that tell reading from setting."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    expected = [node for node in ast.walk(tree) if not isinstance(node, ast.expr_context)]
    assert walk(tree) == expected
