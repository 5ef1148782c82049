"""Conditions that come out the same in each iteration of a loop."""

from __future__ import annotations

import ast
import re
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from oomdoctor.lint.code.walking import walk
from oomdoctor.lint.flow.state import text_of
from oomdoctor.lint.patterns.writes import writes

if TYPE_CHECKING:
    from oomdoctor.lint.flow.context import Loop

_VARYING: Final = re.compile(r"step|iter|batch|count|sync|update|boundary|last|epoch", re.IGNORECASE)
"""In the name of an attribute: it may change from one iteration to the next without an assignment in sight."""


class Settings:
    """What does not change while a loop runs, as far as its text tells."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._varying = frozenset(write.text for write in writes([loop.node]))

    def holds_throughout(self, test: ast.expr) -> bool:
        """Whether a condition is the same in each iteration, as `if args.clip > 0` is."""
        parts = list(walk(test))
        if any(isinstance(node, ast.Call) or _may_vary(node) for node in parts):
            return False
        names = {text_of(node) for node in parts if isinstance(node, ast.Name | ast.Attribute)}
        inside = is_tested_in(self._loop.node, test)
        return not names & self._varying and (inside or all(name.startswith("self") for name in names))


def is_tested_in(node: ast.AST, test: ast.expr) -> bool:
    """Whether a piece of code tests a condition."""
    return test in _tests(node)


@lru_cache(maxsize=32)
def _tests(node: ast.AST) -> frozenset[ast.expr]:
    return frozenset(inner.test for inner in walk(node) if isinstance(inner, ast.If | ast.IfExp | ast.While))


def _may_vary(node: ast.AST) -> bool:
    return isinstance(node, ast.Attribute) and _VARYING.search(node.attr) is not None
