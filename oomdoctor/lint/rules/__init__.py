"""The rules: a file a subject, whose `RULES` are its checks, each with its texts in the Markdown file of its name."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from pkgutil import iter_modules
from typing import Final

from oomdoctor.lint.rule import Rule


def _rules() -> Iterator[Rule]:
    for module in iter_modules(__path__):
        yield from import_module(f"{__name__}.{module.name}").RULES


ALL: Final[tuple[Rule, ...]] = tuple(sorted(_rules(), key=lambda rule: rule.code))
"""All rules in the order of their codes."""
