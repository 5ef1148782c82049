"""A rule, or all of them, in Markdown; the rules' own texts are Markdown already."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

from oomdoctor.reports.rule.wording import mark, traits

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from oomdoctor.lint.rule import Rule


def render_rule(rule: Rule) -> str:
    """All that there is to say about a rule, as a page of its own."""
    parts = [
        f"# {rule.code}: {rule.name}",
        f"{rule.summary[:1].upper()}{rule.summary[1:]}.",
        f"*{traits(rule)}*",
        *_section("What it does", textwrap.dedent(rule.explanation).strip()),
        *_section("Why that is bad", textwrap.dedent(rule.reason).strip()),
        *_section("Bad", _code(rule.bad)),
        *_section("Good", _code(rule.good)),
        *_section("References", "\n".join(f"- <{address}>" for address in rule.references)),
    ]
    return "\n\n".join(parts) + "\n"


def render_rules(rules: Sequence[Rule]) -> str:
    """A table, one line a rule."""
    lines = ["| code | name | severity | concern | default | fix | what it finds |", "| --- " * 7 + "|"]
    for rule in rules:
        state = "on" if rule.default else "off"
        fix = f"`{mark(rule)}`" if mark(rule) else ""
        cells = (rule.code, rule.name, rule.severity.value, rule.concern.value, state, fix, rule.summary)
        lines.append(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |")
    return "\n".join(lines) + "\n"


def _section(title: str, body: str) -> Iterator[str]:
    if body:
        yield f"## {title}\n\n{body}"


def _code(text: str) -> str:
    stripped = textwrap.dedent(text).strip("\n")
    return f"```python\n{stripped}\n```"
