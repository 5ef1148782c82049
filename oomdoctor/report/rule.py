"""A rule of lint, or the table of all rules, on the terminal and in Markdown."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from oomdoctor.lint.rule import Rule
    from oomdoctor.output import Terminal


FIXABLE: Final = "[*]"
"""Mark of a rule, or of a finding, with a fix."""


def traits(rule: Rule) -> str:
    """Return severity, concern and state of a rule, and whether it has a fix."""
    words = [rule.severity.value, rule.concern.value, "on by default" if rule.default else "off unless selected"]
    return ", ".join([*words, *(["fixable with `--fix`"] if rule.fixable else [])])


def mark(rule: Rule) -> str:
    """Return `[*]` for a rule with a fix, else an empty text."""
    return FIXABLE if rule.fixable else ""


_NARROWEST: Final = 40
_STATE: Final = {True: "on", False: "off"}
_BOLD, _PLAIN = "\x1b[1m", "\x1b[0m"


def render_rule(rule: Rule, terminal: Terminal) -> str:
    """Render a rule with its reason and examples for the terminal."""
    parts = [
        _bold(f"{rule.code} {rule.name}", terminal),
        _filled(f"{rule.summary[:1].upper()}{rule.summary[1:]}.\n\n{traits(rule)}", terminal),
        *_section("What it does", _filled(rule.explanation, terminal), terminal),
        *_section("Why that is bad", _filled(rule.reason, terminal), terminal),
        *_section("Bad", _code(rule.bad), terminal),
        *_section("Good", _code(rule.good), terminal),
        *_section("References", "\n".join(rule.references), terminal),
    ]
    return "\n\n".join(parts) + "\n"


def render_rules(rules: Sequence[Rule], terminal: Terminal) -> str:
    """Render the list of rules for the terminal, one line a rule."""
    rows = [
        (rule.code, mark(rule), rule.name, rule.severity.value, rule.concern.value, _STATE[rule.default])
        for rule in rules
    ]
    headings = ("code", "", "name", "severity", "concern", "default")
    widths = [max(map(len, column)) for column in zip(headings, *rows, strict=True)]
    heading, *lines = ("  ".join(map(str.ljust, row, widths)).rstrip() for row in (headings, *rows))
    counted = (
        f"{len(rules)} rules; [*] has a fix; `oomdoctor rule {rules[0].code}` explains one" if rules else "0 rules"
    )
    return "\n".join([_bold(heading, terminal), *lines, "", counted, ""])


def _section(title: str, body: str, terminal: Terminal) -> Iterator[str]:
    if body:
        yield f"{_bold(title, terminal)}\n{textwrap.indent(body, '  ')}"


def _filled(text: str, terminal: Terminal) -> str:
    """Wrap the paragraphs and items of Markdown to the terminal's width; code stays as it is."""
    blocks = textwrap.dedent(text).strip().split("\n\n")
    return "\n\n".join("\n".join(_block(block, max(terminal.width, _NARROWEST) - 2)) for block in blocks)


def _block(block: str, width: int) -> Iterator[str]:
    if block.startswith(("```", "    ")):
        yield block
        return
    for paragraph in _paragraphs(block):
        later = "  " if paragraph.startswith("- ") else ""
        yield textwrap.fill(paragraph, width, subsequent_indent=later, break_long_words=False, break_on_hyphens=False)


def _paragraphs(block: str) -> list[str]:
    """Join lines to items of a list, or to one paragraph."""
    found: list[str] = []
    for line in block.splitlines():
        if found and not line.startswith("- "):
            found[-1] += f" {line.strip()}"
        else:
            found.append(line)
    return found


def _code(text: str) -> str:
    return textwrap.dedent(text).strip("\n")


def _bold(text: str, terminal: Terminal) -> str:
    return f"{_BOLD}{text}{_PLAIN}" if terminal.color else text


def render_rule_markdown(rule: Rule) -> str:
    """Render a rule as a page of Markdown."""
    parts = [
        f"# {rule.code}: {rule.name}",
        f"{rule.summary[:1].upper()}{rule.summary[1:]}.",
        f"*{traits(rule)}*",
        *_markdown_section("What it does", textwrap.dedent(rule.explanation).strip()),
        *_markdown_section("Why that is bad", textwrap.dedent(rule.reason).strip()),
        *_markdown_section("Bad", _markdown_code(rule.bad)),
        *_markdown_section("Good", _markdown_code(rule.good)),
        *_markdown_section("References", "\n".join(f"- <{address}>" for address in rule.references)),
    ]
    return "\n\n".join(parts) + "\n"


def render_rules_markdown(rules: Sequence[Rule]) -> str:
    """Render the table of rules in Markdown."""
    lines = ["| code | name | severity | concern | default | fix | what it finds |", "| --- " * 7 + "|"]
    for rule in rules:
        fix = f"`{mark(rule)}`" if mark(rule) else ""
        cells = (rule.code, rule.name, rule.severity.value, rule.concern.value, _STATE[rule.default], fix, rule.summary)
        lines.append(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |")
    return "\n".join(lines) + "\n"


def _markdown_section(title: str, body: str) -> Iterator[str]:
    if body:
        yield f"## {title}\n\n{body}"


def _markdown_code(text: str) -> str:
    stripped = textwrap.dedent(text).strip("\n")
    return f"```python\n{stripped}\n```"
