"""Which rules are on where several sources have a say."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oomdoctor.config.layers import Layer
from oomdoctor.config.schema import LintTable
from oomdoctor.errors import UsageError
from oomdoctor.lint.rule import Rule
from oomdoctor.lint.settings import LintSettings, check_selection, selected, with_rules
from oomdoctor.results import Concern, Severity


def rule(code: str, *, default: bool = True) -> Rule:
    """A rule that finds nothing."""
    return Rule(
        code,
        f"rule-{code[3:]}",
        Severity.ERROR,
        Concern.MEMORY,
        "",
        "",
        "",
        "",
        "",
        (),
        (),
        lambda _: iter(()),
        default,
    )


RULES = [rule("OOM101"), rule("OOM102"), rule("OOM201"), rule("OOM202", default=False)]
_words = st.lists(st.sampled_from(["ALL", "OOM", "OOM1", "OOM2", "OOM101", "OOM202", "rule-102"]), max_size=2).map(
    tuple
)
_tables = st.builds(LintTable, select=st.none() | _words, ignore=st.none() | _words, extend_select=st.none() | _words)


def on(*said: LintTable) -> list[str]:
    """Codes that are on after these sources, the weakest first, without their first three letters."""
    layers = [Layer.of(each, f"source {index}") for index, each in enumerate(said)]
    return [each.code[3:] for each in selected(RULES, with_rules(LintSettings(), RULES, layers))]


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ([], ["101", "102", "201"]),
        ([LintTable()], ["101", "102", "201"]),
        ([LintTable(select=("OOM2",))], ["201", "202"]),
        ([LintTable(select=("OOM2",), ignore=("OOM201",))], ["202"]),
        ([LintTable(select=())], []),
        ([LintTable(select=(), extend_select=("OOM101",))], ["101"]),
        ([LintTable(ignore=("ALL",))], []),
        ([LintTable(ignore=("OOM1",), extend_select=("OOM101", "OOM2"))], ["101", "201", "202"]),
        ([LintTable(ignore=("OOM101",)), LintTable(select=("OOM1",))], ["101", "102"]),
        ([LintTable(select=("OOM101", "OOM102")), LintTable(ignore=("OOM1",))], []),
        ([LintTable(ignore=("OOM101",)), LintTable(ignore=("OOM102",))], ["201"]),
        ([LintTable(ignore=("OOM101",)), LintTable(extend_select=("OOM1",))], ["101", "102", "201"]),
        ([LintTable(ignore=("ALL",)), LintTable(extend_select=("rule-202",))], ["202"]),
    ],
)
def test_later_sources_go_on_from_earlier_ones(said: list[LintTable], expected: list[str]) -> None:
    """A source that selects starts anew; one that does not takes away and adds."""
    assert on(*said) == expected


@given(st.lists(_tables, max_size=2), _tables)
def test_a_selection_forgets_what_was_before(before: list[LintTable], last: LintTable) -> None:
    """What a source that selects leaves on does not depend on weaker sources, and silence changes nothing."""
    if last.select is not None:
        assert on(*before, last) == on(last)
    assert on(*before, last, LintTable()) == on(*before, last)


@given(_tables)
def test_one_source_is_as_selection_has_it(said: LintTable) -> None:
    """A single source selects what the same words select by themselves."""
    settings = LintSettings(select=said.select or (), ignore=said.ignore or (), extend_select=said.extend_select or ())
    if said.select != ():
        assert on(said) == [each.code[3:] for each in selected(RULES, settings)]


@pytest.mark.parametrize(
    ("said", "is_refused"),
    [
        ([LintTable(select=())], True),
        ([LintTable(select=("OOM1",)), LintTable(select=(), ignore=("OOM1",))], True),
        ([LintTable(select=()), LintTable(ignore=("OOM1",))], True),
        ([LintTable(select=(), extend_select=("OOM101",))], False),
        ([LintTable(select=()), LintTable(select=("OOM1",))], False),
        ([LintTable(select=()), LintTable(select=("OOM1",), ignore=("OOM10",))], False),
        ([LintTable(ignore=("ALL",))], False),
        ([LintTable()], False),
    ],
)
def test_an_empty_selection_is_refused(said: list[LintTable], *, is_refused: bool) -> None:
    """Where it leaves no rule on; that all are ignored is somebody's wish."""
    layers = [Layer.of(table, f"source {number}") for number, table in enumerate(said)]
    settings = with_rules(LintSettings(), RULES, layers)
    with pytest.raises(UsageError, match="no rule is selected: `select` of source") if is_refused else nullcontext():
        check_selection(settings, layers)


@pytest.mark.parametrize(
    ("said", "message"),
    [
        (LintTable(select=("OOM1", "OOM3")), "no such rule: `OOM3`, in `select` of source 0"),
        (LintTable(extend_select=("x",)), "no such rule: `x`, in `extend-select` of source 0"),
        (LintTable(per_file_ignores={"*": ("OOM1", "x")}), "no such rule: `x`, in `per-file-ignores` of source 0"),
    ],
)
def test_an_unknown_rule_is_named_with_its_source(said: LintTable, message: str) -> None:
    """The message says which key of which source has the word."""
    with pytest.raises(UsageError) as caught:
        on(said)
    assert caught.value.message == message
