"""The part of a model that explains why a category moved."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sample_figures import MODULES

from oomdoctor.check.baseline.wording import ModuleChange, deepest_change

ROWS = st.dictionaries(MODULES, st.integers(0, 10**12), max_size=8)


@pytest.mark.parametrize(
    ("before", "after", "place"),
    [
        # One module.
        ({"a.b": 10, "c": 10}, {"a.b": 30, "c": 10}, ModuleChange("a.b", 10, 30)),
        # Several below one: the one that holds them, with what did not grow there as well.
        ({"a.b": 10, "a.c": 10, "a.d": 5}, {"a.b": 20, "a.c": 20, "a.d": 5}, ModuleChange("a", 25, 45)),
        # Most of it below one.
        ({"a.b": 10, "a.c": 10}, {"a.b": 20, "a.c": 12}, ModuleChange("a.b", 10, 20)),
        # One more block of a transformer, whose feed-forward layers are two thirds of it: the blocks are named.
        (
            {"blocks.*.mix": 40, "blocks.*.feed": 80},
            {"blocks.*.mix": 50, "blocks.*.feed": 100},
            ModuleChange("blocks.*", 120, 150),
        ),
        # Spread over the model.
        ({"a": 10, "b": 10, "c": 10}, {"a": 20, "b": 20, "c": 20}, ModuleChange("", 30, 60)),
        # New.
        ({"a": 10}, {"a": 10, "teacher.block": 30}, ModuleChange("teacher.block", 0, 30)),
        # Gone.
        ({"a": 10, "b": 40}, {"a": 10}, ModuleChange("b", 40, 0)),
        # The model itself, and outside of it.
        ({"": 10, "a": 10}, {"": 90, "a": 10}, ModuleChange("", 20, 100)),
        ({None: 10, "a": 10}, {None: 90, "a": 10}, ModuleChange(None, 10, 90)),
        # A module is not what merely begins like it.
        ({"layer1.x": 10, "layer10.x": 10}, {"layer1.x": 10, "layer10.x": 50}, ModuleChange("layer10.x", 10, 50)),
        # Two grow and one falls: down the part that explains the whole, not to a deeper one that is made up for.
        ({"a.x": 0, "a.y": 100, "b": 0}, {"a.x": 100, "a.y": 0, "b": 100}, ModuleChange("b", 0, 100)),
        # Half inside, half outside.
        ({"a": 0, None: 0}, {"a": 50, None: 50}, None),
        ({"a": 10}, {"a": 10}, None),
        ({}, {}, None),
    ],
)
def test_the_place_is_the_deepest_that_covers_most(
    before: dict[str | None, int], after: dict[str | None, int], place: ModuleChange | None
) -> None:
    """The place is the deepest module with three quarters of the change, or what is outside of all modules."""
    assert deepest_change(before, after) == place


@given(ROWS, ROWS)
def test_the_place_covers_three_quarters_of_the_change(
    before: dict[str | None, int], after: dict[str | None, int]
) -> None:
    """Whatever moved, the place moved the same way and by at least three quarters of it."""
    change = sum(after.values()) - sum(before.values())
    place = deepest_change(before, after)
    if place is not None:
        sign = 1 if change > 0 else -1
        assert 4 * sign * (place.after - place.before) >= 3 * sign * change > 0


@given(ROWS, ROWS)
def test_the_way_back_has_the_same_place(before: dict[str | None, int], after: dict[str | None, int]) -> None:
    """What explains a change explains its reverse."""
    there, back = deepest_change(before, after), deepest_change(after, before)
    assert (there and (there.module, there.before, there.after)) == (back and (back.module, back.after, back.before))


def test_a_path_of_any_depth_is_followed_in_no_time() -> None:
    """A name with a million full stops in a baseline neither fills memory nor takes time."""
    assert deepest_change({}, {"a." * 1_000_000: 10}) is not None
