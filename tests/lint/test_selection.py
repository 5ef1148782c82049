"""Which rules are on."""

from __future__ import annotations

import pytest

from oomdoctor.errors import UsageError
from oomdoctor.lint.rule import Rule
from oomdoctor.lint.settings import LintSettings, matching, selected
from oomdoctor.results.lint import Concern, Severity


def rule(code: str, name: str, *, default: bool = True) -> Rule:
    """A rule that finds nothing."""
    return Rule(
        code, name, Severity.NOTE, Concern.MEMORY, "", "", "", "", "", (), (), lambda _: iter(()), default=default
    )


RULES = (
    rule("OOM101", "first-rule"),
    rule("OOM102", "second-rule"),
    rule("OOM111", "rare-rule", default=False),
    rule("OOM201", "last-rule"),
)


@pytest.mark.parametrize(
    ("select", "ignore", "extend", "on"),
    [
        ([], [], [], "101 102 201"),
        (["ALL"], [], [], "101 102 111 201"),
        (["OOM1"], [], [], "101 102 111"),
        (["OOM"], ["OOM1"], [], "201"),
        (["OOM1"], ["OOM101"], [], "102 111"),
        (["OOM101"], ["OOM1"], [], "101"),
        (["OOM101"], ["OOM101"], [], ""),
        (["first-rule"], ["OOM1"], [], "101"),
        (["OOM101"], ["first-rule"], [], ""),
        ([], ["OOM10"], [], "201"),
        ([], ["ALL"], [], ""),
        ([], [], ["OOM111"], "101 102 111 201"),
        ([], ["OOM1"], ["rare-rule"], "111 201"),
        (["OOM2"], [], ["OOM10"], "101 102 201"),
        (["oom101", " First-Rule "], [], [], "101"),
        (["OOM1"], ["ALL"], [], "101 102 111"),
    ],
)
def test_the_more_specific_word_counts(select: list[str], ignore: list[str], extend: list[str], on: str) -> None:
    """Of two words as specific as each other, the one that ignores does."""
    settings = LintSettings(select=tuple(select), ignore=tuple(ignore), extend_select=tuple(extend))
    assert [rule.code.removeprefix("OOM") for rule in selected(RULES, settings)] == on.split()


CODES = "codes are `OOM101` to `OOM111`, `OOM201`; `oomdoctor rule --all` lists the rules"


@pytest.mark.parametrize(
    ("word", "hint"),
    [
        ("OOM999", CODES),
        ("oom3", CODES),
        ("frist-rule", "did you mean `first-rule`?"),
        ("OOM2O1", "did you mean `OOM201`?"),
        ("", "`oomdoctor rule --all` lists the rules"),
        ("E501", None),
        ("all", "did you mean `ALL`?"),
    ],
)
@pytest.mark.parametrize("where", ["select", "ignore", "extend_select"])
def test_an_unknown_word_is_answered_with_the_nearest(word: str, hint: str | None, where: str) -> None:
    """Wherever it stands."""
    with pytest.raises(UsageError, match=f"no such rule: `{word}`") as caught:
        selected(RULES, LintSettings(**{where: (word,)}))  # type: ignore[arg-type]
    assert hint is None or caught.value.hint == hint


def test_words_stand_for_codes() -> None:
    """Per-file ignores take the same words."""
    assert matching(RULES, ["OOM10", "last-rule"]) == {"OOM101", "OOM102", "OOM201"}
    assert matching(RULES, ["ALL"]) == {rule.code for rule in RULES}
    with pytest.raises(UsageError):
        matching(RULES, ["nonsense"])
