"""Which rules are on where several sources have a say: each goes on from what the ones before it left, as in ruff."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from oomdoctor.errors import UsageError
from oomdoctor.lint.selection import ALL, matching, selected
from oomdoctor.lint.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from oomdoctor.configuration.layers import Layer
    from oomdoctor.configuration.schema import LintTable
    from oomdoctor.lint.rule import Rule

_LISTS: Final = ("select", "ignore", "extend_select")


def with_rules(settings: Settings, rules: Sequence[Rule], layers: Iterable[Layer[LintTable]]) -> Settings:
    """Settings that select what all sources together leave on.

    A source that selects starts anew, so that its selection counts whatever the ones before it ignore; one that does
    not takes away and adds.

    Args:
        settings: What else holds.
        rules: All rules.
        layers: The sources, the weakest first.

    Raises:
        UsageError: A word names no rule; the message says where it stands.
    """
    chosen = {rule.code for rule in selected(rules, Settings())}
    for layer in layers:
        _check(rules, layer)
        chosen = _layered(chosen, rules, layer.values)
    codes = tuple(rule.code for rule in rules if rule.code in chosen)
    # An empty selection is the default one, so nothing at all has to be said in another way.
    return replace(settings, select=codes or (ALL,), ignore=() if codes else (ALL,), extend_select=())


def check_selection(settings: Settings, layers: Iterable[Layer[LintTable]]) -> None:
    """See that no rule is on only where that is asked for outright, as by `ignore = ["ALL"]`.

    Args:
        settings: What `with_rules` gave.
        layers: The sources, the weakest first.

    Raises:
        UsageError: An empty `select` has switched everything off.
    """
    selecting = [layer for layer in layers if layer.values.select is not None]
    if ALL in settings.ignore and selecting and not selecting[-1].values.select:
        origin = selecting[-1].origins["select"]
        hint = "name rules, or leave it out for the default ones"
        raise UsageError(f"no rule is on: `select` of {origin} is empty", hint=hint)


def _layered(before: set[str], rules: Sequence[Rule], said: LintTable) -> set[str]:
    ignore, extend = said.ignore or (), said.extend_select or ()
    if said.select is not None:
        none_at_all = () if said.select or extend else (ALL,)
        words = (*said.select, *extend) or (ALL,)
        return _codes(rules, Settings(select=words, ignore=(*ignore, *none_at_all)))
    added = _codes(rules, Settings(select=extend, ignore=ignore)) if extend else set()
    return (before - matching(rules, ignore)) | added


def _codes(rules: Sequence[Rule], settings: Settings) -> set[str]:
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
