"""`oomdoctor rule`: parse, look up, render."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Literal, TypeAlias, get_args

import typer

from oomdoctor.cli.probe_options import QuietFlag
from oomdoctor.cli.report import Help, JsonFlag, MarkdownFlag, format_name, metavar, one_of, plain_document
from oomdoctor.errors import EXIT_OK, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from oomdoctor.lint.rule import Rule


RuleName: TypeAlias = Annotated[
    str | None, typer.Argument(metavar="RULE", help="A code such as OOM102, or a name.", show_default=False)
]
AllFlag: TypeAlias = Annotated[bool, typer.Option("--all", help="List all rules.")]
FormatName: TypeAlias = Literal["text", "json", "markdown"]
Format: TypeAlias = Annotated[
    FormatName | None,
    typer.Option(
        "--format",
        parser=one_of(*get_args(FormatName)),
        metavar=metavar(*get_args(FormatName)),
        help="Format of the answer: text unless another is asked for.",
        show_default=False,
    ),
]


def rule(
    name: RuleName = None,
    *,
    all_rules: AllFlag = False,
    form: Format = None,
    json: JsonFlag = False,
    markdown: MarkdownFlag = False,
    _quiet: QuietFlag = False,
    _help: Help = False,
) -> None:
    """Explain a rule of `oomdoctor lint`, or list them all."""
    from oomdoctor.lint.rules import ALL
    from oomdoctor.output import Terminal, deliver
    from oomdoctor.report import rule as reports

    chosen = format_name(form, json=json, markdown=markdown)
    if (name is None) != all_rules:
        raise UsageError("name one rule, or give `--all`", hint="for example `oomdoctor rule OOM102`")
    found = None if name is None else _named(name, ALL)
    if chosen == "json":
        shown = [_object(each) for each in (ALL if found is None else [found])]
        deliver(plain_document("rule", "found", EXIT_OK, {"rules": shown}))
    elif chosen == "markdown":
        deliver(reports.render_rules_markdown(ALL) if found is None else reports.render_rule_markdown(found))
    else:
        terminal = Terminal.of(sys.stdout)
        deliver(reports.render_rules(ALL, terminal) if found is None else reports.render_rule(found, terminal))


def _named(name: str, rules: Sequence[Rule]) -> Rule:
    """Return the rule with this code or name, in any spelling."""
    from difflib import get_close_matches

    by_word = {word.lower(): rule for rule in rules for word in (rule.code, rule.name)}
    wanted = name.strip().lower().replace("_", "-")
    if wanted in by_word:
        return by_word[wanted]
    near = get_close_matches(wanted, by_word, 5)
    # Codes are all alike; one that begins as the word does is nearer than one with the same digits in another order.
    near.sort(key=lambda word: not word.startswith(wanted[:5]))
    raise UsageError(f"there is no rule `{name}`", hint=_hint(wanted, rules, by_word[near[0]] if near else None))


def _hint(wanted: str, rules: Sequence[Rule], near: Rule | None) -> str:
    """Return a hint: rules whose code begins so, the codes that there are, or the nearest name."""
    from oomdoctor.lint.settings import code_ranges, is_code, rules_with_prefix

    if begun := rules_with_prefix(rules, wanted):
        codes = ", ".join(f"`{rule.code}`" for rule in begun)
        return f"did you mean {'one of ' if len(begun) > 1 else ''}{codes}?"
    if is_code(wanted):
        return f"codes are {code_ranges(rules)}; `oomdoctor rule --all` lists them"
    return "`oomdoctor rule --all` lists them" if near is None else f"did you mean `{near.code}`, `{near.name}`?"


def _object(rule: Rule) -> dict[str, object]:
    return {
        "code": rule.code,
        "name": rule.name,
        "severity": rule.severity.value,
        "concern": rule.concern.value,
        "default": rule.default,
        "fixable": rule.fixable,
        "summary": rule.summary,
        "explanation": rule.explanation,
        "reason": rule.reason,
        "bad": rule.bad,
        "good": rule.good,
        "fixed": rule.fixed,
        "references": list(rule.references),
    }
