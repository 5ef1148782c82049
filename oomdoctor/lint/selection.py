"""Which rules are on: what `--select` and `--ignore` name, the more specific word above the less specific one."""

from __future__ import annotations

import difflib
import re
from itertools import groupby
from typing import TYPE_CHECKING, Final

from oomdoctor.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from oomdoctor.lint.rule import Rule
    from oomdoctor.lint.settings import Settings

ALL: Final = "ALL"
_PREFIX: Final = re.compile(r"OOM[0-9]*")


def selected(rules: Sequence[Rule], settings: Settings) -> tuple[Rule, ...]:
    """The rules that are on, in their order.

    Of `--select OOM1 --ignore OOM101`, and of `--select OOM101 --ignore OOM1`, the longer word counts; of two alike,
    `--ignore` does. What is named turns a rule on that is off by default.

    Raises:
        UsageError: A word names no rule.
    """
    chosen = {rule.code: _SPECIFIC_LEAST for rule in rules if rule.default and not settings.select}
    _weigh(chosen, rules, (*settings.select, *settings.extend_select))
    refused: dict[str, int] = {}
    _weigh(refused, rules, settings.ignore)
    return tuple(rule for rule in rules if rule.code in chosen and refused.get(rule.code, -1) < chosen[rule.code])


def matching(rules: Sequence[Rule], words: Iterable[str]) -> frozenset[str]:
    """The codes of the rules that words name.

    Raises:
        UsageError: A word names no rule.
    """
    found: dict[str, int] = {}
    _weigh(found, rules, words)
    return frozenset(found)


_SPECIFIC_LEAST: Final = 0


def _weigh(weights: dict[str, int], rules: Sequence[Rule], words: Iterable[str]) -> None:
    """Note for each rule that a word names how specific the most specific such word is."""
    for word in words:
        named = [rule.code for rule in rules if _names(word, rule)]
        if not named:
            raise _unknown(word, rules)
        for code in named:
            weights[code] = max(weights.get(code, 0), _specificity(word))


def _names(word: str, rule: Rule) -> bool:
    """Whether a word names a rule: `ALL`, its name, its code or a beginning of that."""
    word = word.strip()
    return word == ALL or word.lower() == rule.name or bool(is_code(word) and rule.code.startswith(word.upper()))


def beginning_with(rules: Sequence[Rule], word: str) -> tuple[Rule, ...]:
    """The rules whose code begins with a word, where that is the beginning of a code at all."""
    return tuple(rule for rule in rules if is_code(word) and rule.code.startswith(word.upper()))


def series(rules: Sequence[Rule]) -> str:
    """What codes there are, in words: from the first to the last of each hundred."""
    codes = groupby(sorted(rule.code for rule in rules), key=lambda code: code[: len("OOM0")])
    ends = ((each[0], each[-1]) for each in (list(group) for _, group in codes))
    return ", ".join(f"`{first}` to `{last}`" if first != last else f"`{first}`" for first, last in ends)


def is_code(word: str) -> bool:
    """Whether a word is a code, or the beginning of one, whether or not there is such a rule."""
    return _PREFIX.fullmatch(word.upper()) is not None


def _specificity(word: str) -> int:
    """0 for all, then by the length of the code's beginning; a name stands for its whole code."""
    word = word.strip()
    if word == ALL:
        return _SPECIFIC_LEAST
    return len(word) if is_code(word) else len("OOM000")


def _unknown(word: str, rules: Sequence[Rule]) -> UsageError:
    known = [*(rule.code for rule in rules), *(rule.name for rule in rules), ALL]
    by_lower_case = {name.lower(): name for name in known}
    near = difflib.get_close_matches(word.strip().lower(), by_lower_case, n=1, cutoff=0.5)
    hint = f"did you mean `{by_lower_case[near[0]]}`?" if near else "`oomdoctor rule --all` lists the rules"
    if is_code(word.strip()):  # codes are all alike, so that the nearest one means nothing
        hint = f"codes are {series(rules)}; `oomdoctor rule --all` lists the rules"
    return UsageError(f"no such rule: `{word}`", hint=hint)
