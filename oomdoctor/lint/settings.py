"""Settings of one lint run, and the rules that they switch on."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path
from types import MappingProxyType
from typing import Final

from oomdoctor.config.layers import Layer
from oomdoctor.config.schema import LintTable
from oomdoctor.errors import UsageError
from oomdoctor.lint.rule import Rule


@dataclass(frozen=True, slots=True)
class LintSettings:
    """Paths to leave out, and rules to apply.

    Attributes:
        select: Rules to use, as codes, beginnings of codes, names or `ALL`; empty for those that are on by default.
        ignore: Rules not to use, in the same words.
        extend_select: Rules to use in addition.
        per_file_ignores: Rules not to use in files that a glob fits.
        exclude: Globs of files and folders that are not looked for; a file that is named outright is linted anyway.
        stdin_filename: Name of standard input; its ending tells a notebook.
        root: The folder that the globs are relative to.
    """

    select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    extend_select: tuple[str, ...] = ()
    per_file_ignores: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: MappingProxyType({}))
    exclude: tuple[str, ...] = ()
    stdin_filename: str | None = None
    root: Path = field(default_factory=Path.cwd)


ALL: Final = "ALL"
_PREFIX: Final = re.compile(r"OOM[0-9]*")


def selected(rules: Sequence[Rule], settings: LintSettings) -> tuple[Rule, ...]:
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
    """Return whether a word names a rule: `ALL`, its name, its code or a beginning of that."""
    word = word.strip()
    return word == ALL or word.lower() == rule.name or bool(is_code(word) and rule.code.startswith(word.upper()))


def rules_with_prefix(rules: Sequence[Rule], word: str) -> tuple[Rule, ...]:
    """The rules whose code begins with a word, where that is the beginning of a code at all."""
    return tuple(rule for rule in rules if is_code(word) and rule.code.startswith(word.upper()))


def code_ranges(rules: Sequence[Rule]) -> str:
    """Return the codes in words: from the first to the last of each hundred."""
    codes = groupby(sorted(rule.code for rule in rules), key=lambda code: code[: len("OOM0")])
    ends = ((each[0], each[-1]) for each in (list(group) for _, group in codes))
    return ", ".join(f"`{first}` to `{last}`" if first != last else f"`{first}`" for first, last in ends)


def is_code(word: str) -> bool:
    """Return whether a word is a code, or the beginning of one, whether or not there is such a rule."""
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
        hint = f"codes are {code_ranges(rules)}; `oomdoctor rule --all` lists the rules"
    return UsageError(f"no such rule: `{word}`", hint=hint)


_LISTS: Final = ("select", "ignore", "extend_select")


def with_rules(settings: LintSettings, rules: Sequence[Rule], layers: Iterable[Layer[LintTable]]) -> LintSettings:
    """Settings that select what all sources together leave on.

    A source that selects starts anew, so that its selection counts whatever the ones before it ignore; one that does
    not takes away and adds.

    Args:
        settings: All other settings.
        rules: All rules.
        layers: The sources, the weakest first.

    Raises:
        UsageError: A word names no rule; the message says where it stands.
    """
    chosen = {rule.code for rule in selected(rules, LintSettings())}
    for layer in layers:
        _check(rules, layer)
        chosen = _layered(chosen, rules, layer.values)
    codes = tuple(rule.code for rule in rules if rule.code in chosen)
    # An empty selection is the default one, so nothing at all has to be said in another way.
    return replace(settings, select=codes or (ALL,), ignore=() if codes else (ALL,), extend_select=())


def check_selection(settings: LintSettings, layers: Iterable[Layer[LintTable]]) -> None:
    """See that no rule is on only where that is asked for outright, as by `ignore = ["ALL"]`.

    Args:
        settings: Settings that `with_rules` returned.
        layers: The sources, the weakest first.

    Raises:
        UsageError: An empty `select` has switched everything off.
    """
    selecting = [layer for layer in layers if layer.values.select is not None]
    if ALL in settings.ignore and selecting and not selecting[-1].values.select:
        origin = selecting[-1].origins["select"]
        hint = "name rules, or leave it out for the default ones"
        raise UsageError(f"no rule is selected: `select` of {origin} is empty", hint=hint)


def _layered(before: set[str], rules: Sequence[Rule], said: LintTable) -> set[str]:
    ignore, extend = said.ignore or (), said.extend_select or ()
    if said.select is not None:
        none_at_all = () if said.select or extend else (ALL,)
        words = (*said.select, *extend) or (ALL,)
        return _codes(rules, LintSettings(select=words, ignore=(*ignore, *none_at_all)))
    added = _codes(rules, LintSettings(select=extend, ignore=ignore)) if extend else set()
    return (before - matching(rules, ignore)) | added


def _codes(rules: Sequence[Rule], settings: LintSettings) -> set[str]:
    return {rule.code for rule in selected(rules, settings)}


def _check(rules: Sequence[Rule], layer: Layer[LintTable]) -> None:
    """See that all words name rules."""
    for name, words in _words(layer.values):
        try:
            matching(rules, words)
        except UsageError as error:
            origin = layer.origins[name]
            raise UsageError(f"{error.message}, in `{name.replace('_', '-')}` of {origin}", hint=error.hint) from None


def _words(said: LintTable) -> Iterator[tuple[str, tuple[str, ...]]]:
    for name in _LISTS:
        yield name, getattr(said, name) or ()
    for words in (said.per_file_ignores or {}).values():
        yield "per_file_ignores", words
