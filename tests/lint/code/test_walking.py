"""All nodes of a tree, quickly."""

from __future__ import annotations

import ast

import lint_cases
import pytest

from oomdoctor.lint.module import walk


@pytest.mark.parametrize("name", list(lint_cases.SCRIPTS)[::20])
def test_all_nodes_come_in_the_order_of_the_standard_library(name: str) -> None:
    """The walk gives what `ast.walk` gives, but for the marks that tell reading from setting."""
    tree = ast.parse(lint_cases.SCRIPTS[name])
    expected = [node for node in ast.walk(tree) if not isinstance(node, ast.expr_context)]
    assert walk(tree) == expected
