"""The rules: each a check, with a `RULE`, and its texts in the Markdown file of the same name."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from pkgutil import iter_modules
from typing import Final

from oomdoctor.lint.rule import Rule


def _rules() -> Iterator[Rule]:
    for module in iter_modules(__path__):
        yield import_module(f"{__name__}.{module.name}").RULE


ALL: Final[tuple[Rule, ...]] = tuple(sorted(_rules(), key=lambda rule: rule.code))
"""All rules in the order of their codes."""
