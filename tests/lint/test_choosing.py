"""Which fixes are made in one pass."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from oomdoctor.lint.fixing import compatible_fixes
from oomdoctor.lint.source import Edit

_position = st.tuples(st.integers(1, 6), st.integers(0, 6))
_edit = st.builds(Edit, _position, _position, st.sampled_from(["", "x"]))
_fixes = st.lists(st.lists(_edit, max_size=3).map(tuple), max_size=12)


def edit(start: int, end: int, text: str = "x") -> Edit:
    """An edit in the first line."""
    return Edit((1, start), (1, end), text)


def test_fixes_apart_are_made_together_in_order() -> None:
    """What does not touch is made at once, the first by position first."""
    late, early = (edit(9, 9),), (edit(0, 2), edit(4, 5))
    assert compatible_fixes([late, early]) == [early, late]


def test_the_first_of_two_that_overlap_wins() -> None:
    """A fix that overlaps an earlier one waits, and does not keep a third one waiting."""
    first, second, third = (edit(0, 4),), (edit(3, 7),), (edit(6, 8),)
    assert compatible_fixes([third, second, first]) == [first, third]


def test_fixes_that_touch_wait() -> None:
    """Two insertions at one place have no order, and neither has an insertion at the edge of another edit."""
    assert compatible_fixes([(edit(3, 3, "a"),), (edit(3, 3, "b"),)]) == [(edit(3, 3, "a"),)]
    assert compatible_fixes([(edit(0, 3),), (edit(3, 3),)]) == [(edit(0, 3),)]


def test_a_fix_is_made_whole_or_not_at_all() -> None:
    """Where one of a fix's edits must wait, all of them do."""
    assert compatible_fixes([(edit(2, 3),), (edit(0, 1), edit(3, 4))]) == [(edit(0, 1), edit(3, 4))]
    assert compatible_fixes([(edit(0, 1),), (edit(1, 2), edit(8, 9))]) == [(edit(0, 1),)]


def test_a_fix_that_contradicts_itself_is_never_made() -> None:
    """Edits of one fix that overlap, or end before they start, or say two things of one place, are left alone."""
    assert compatible_fixes([(edit(0, 4), edit(2, 6))]) == []
    assert compatible_fixes([(edit(4, 2),)]) == []
    assert compatible_fixes([(edit(0, 4, "a"), edit(0, 4, "b"))]) == []
    assert compatible_fixes([()]) == []


def test_an_edit_given_twice_is_one() -> None:
    """The same edit twice in a fix is no contradiction."""
    assert compatible_fixes([(edit(0, 4), edit(0, 4))]) == [(edit(0, 4), edit(0, 4))]


@given(_fixes)
def test_no_two_chosen_edits_touch(fixes: list[tuple[Edit, ...]]) -> None:
    """Edits of different fixes that are chosen lie apart, each chosen fix was given, and the rest conflict."""
    chosen = compatible_fixes(fixes)
    for index, one in enumerate(chosen):
        assert one in fixes
        for other in chosen[index + 1 :]:
            assert all(a.end < b.start or b.end < a.start for a in one for b in other)
    again = compatible_fixes([fix for fix in fixes if fix not in chosen])
    for fix in again:
        assert any(a.end >= b.start and b.end >= a.start for a in fix for one in chosen for b in one)
