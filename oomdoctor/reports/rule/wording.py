"""What every format says of a rule in the same words."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from oomdoctor.lint.rule import Rule

FIXABLE: Final = "[*]"
"""What marks a rule, or a finding, that `--fix` can put right."""


def traits(rule: Rule) -> str:
    """How bad it is, what it costs, whether it is on, and whether `--fix` helps."""
    words = [rule.severity.value, rule.concern.value, "on by default" if rule.default else "off unless selected"]
    return ", ".join([*words, *(["`--fix` can put it right"] if rule.fixed is not None else [])])


def mark(rule: Rule) -> str:
    """`[*]` for a rule with a fix."""
    return FIXABLE if rule.fixed is not None else ""
