"""One file under all rules."""

from __future__ import annotations

from typing import TYPE_CHECKING

from oomdoctor.lint.flow.entries import leads_elsewhere, tells
from oomdoctor.lint.flow.runs import runs_of
from oomdoctor.lint.rule import Subject

if TYPE_CHECKING:
    from collections.abc import Sequence

    from oomdoctor.lint.code.functions import Module
    from oomdoctor.lint.rule import Hit, Rule


def check(module: Module, rules: Sequence[Rule]) -> list[tuple[Rule, Hit]]:
    """Look for each rule's mistake.

    Args:
        module: The file; its project, where it has one, is followed into.
        rules: Which rules.

    Returns:
        Each rule with each place where it fires, once, ordered by line, column and code. A place may lie in another
        file of the project.
    """
    # A part of the mistake may stand in a file that this one calls.
    everything = leads_elsewhere(module)
    wanted = [rule for rule in rules if everything or any(word in module.text for word in rule.words)]
    if not wanted or not tells(module):
        return []
    subject = Subject(module, runs_of(module))
    found: dict[tuple[object, ...], tuple[Rule, Hit]] = {}
    for rule in wanted:
        for hit in rule.check(subject):
            line, column = position(hit)
            key = (str(hit.module.path), line, column, rule.code)
            if key not in found or _is_worse(hit, found[key][1]):
                found[key] = (rule, hit)
    return [found[key] for key in sorted(found, key=lambda key: (key[0] != str(module.path), *key))]


def position(hit: Hit) -> tuple[int, int]:
    """Line from 1, and column in UTF-8 bytes from 0."""
    return getattr(hit.node, "lineno", 1), getattr(hit.node, "col_offset", 0)


def _is_worse(hit: Hit, other: Hit) -> bool:
    """Whether a finding says more than another at the same place that a different run has made."""
    return (
        hit.severity is not None
        and other.severity is not None
        and list(type(hit.severity)).index(hit.severity) > list(type(other.severity)).index(other.severity)
    )
