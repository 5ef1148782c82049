"""Memory over time: stacked areas, the capacity above them, phases below them, and names where there is room."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import pytest
from diagnosis_documents import GIB, snapshot
from hypothesis import given
from hypothesis import strategies as st
from memory_documents import any_timeline, step_memory

from oomdoctor.report.charts import timeline as phases
from oomdoctor.report.charts.scales import (
    SCALE,
    Words,
    areas,
    event_position,
    inside,
    longest_fitting,
    positions,
    sizes,
)
from oomdoctor.report.charts.timeline import Timeline, timeline
from oomdoctor.results import Category, PhaseMemory, PhaseName, SnapshotSummary, TimelinePoint


def drawn(found: SnapshotSummary) -> Timeline:
    """The chart of a snapshot."""
    return timeline(found.timeline, found.total_bytes)


def corners(points: str) -> list[tuple[float, float]]:
    """The corners of a polygon or a polyline."""
    return [(float(x), float(y)) for x, _, y in (corner.partition(",") for corner in points.split())]


def test_areas_are_stacked() -> None:
    """Each category lies on the one below it, and together they reach the peak."""
    chart = drawn(snapshot())
    assert [area.category for area in chart.areas] == list(Category)
    for below, above in zip(chart.areas, chart.areas[1:], strict=False):
        assert above.lows == below.highs
    assert min(chart.areas[-1].highs) == chart.peak_y
    assert chart.peak_label == "peak 18.76 GiB"


@given(any_timeline, st.none() | st.integers(0, 2**63 - 1))
def test_everything_lies_in_the_plot(points: Sequence[TimelinePoint], capacity: int | None) -> None:
    """Whatever a document has, no corner, label or level is outside of the box."""
    chart = timeline(points, capacity)
    found = [corner for area in chart.areas for corner in corners(area.points)] + corners(chart.reserved)
    found += [(label.x, label.y) for label in chart.labels] + [(chart.peak_x, chart.peak_y)]
    found += [(0, level.y) for level in (*chart.grid, *filter(None, [chart.capacity]))]
    assert all(0 <= x <= SCALE and 0 <= y <= SCALE for x, y in found)


@given(any_timeline)
def test_areas_sum_to_what_is_allocated(points: Sequence[TimelinePoint]) -> None:
    """The stack is as high as the sum of its categories, as far as a tenth of a unit tells."""
    highest = max(*(sum(point.categories[:7]) for point in points), 1)
    scale = sizes(highest)
    found = areas(points, positions(points), scale)
    for index, point in enumerate(points):
        held = sum(area.lows[index] - area.highs[index] for area in found)
        assert held == pytest.approx(sum(point.categories[:7]) * SCALE / scale.high, abs=0.2)


def test_level_stretches_are_two_corners() -> None:
    """A category that holds the same all the time costs the page four corners, however many points there are."""
    points = [TimelinePoint(event, None, GIB, (GIB,)) for event in range(400)]
    (area,) = areas(points, positions(points), sizes(GIB))
    assert len(corners(area.points)) == 4


def test_capacity_is_above_all() -> None:
    """The capacity has its line and its label where it is near."""
    chart = drawn(snapshot())
    assert chart.capacity is not None
    assert chart.capacity.y < min(y for _, y in corners(chart.reserved))
    assert chart.capacity.label == "capacity 23.64 GiB"
    assert chart.beyond is None


def test_far_capacity_does_not_flatten_the_chart() -> None:
    """A card far larger than what was used is said and not drawn; an unknown one is neither."""
    assert drawn(snapshot(total_bytes=640 * GIB)).capacity is None
    assert drawn(snapshot(total_bytes=640 * GIB)).beyond == "capacity 640.00 GiB, far above"
    unknown = drawn(snapshot(total_bytes=None))
    assert (unknown.capacity, unknown.beyond) == (None, None)


def test_one_point_and_no_order_are_charts_too() -> None:
    """A timeline of one event, and one whose events are in no order, have a chart."""
    point = TimelinePoint(7, None, GIB, (GIB,) * 7)
    assert drawn(snapshot(timeline=(point,))).last == "event 7"
    disordered = drawn(snapshot(timeline=(point, replace(point, event=3), replace(point, event=99))))
    assert all(0 <= x <= SCALE for x, _ in corners(disordered.reserved))


def test_round_levels() -> None:
    """The grid is at round sizes, and none lies under the label of the capacity."""
    assert [level.label for level in drawn(snapshot()).grid] == ["8 GiB", "16 GiB"]
    levels = ["4 GiB", "8 GiB", "12 GiB", "16 GiB", "20 GiB"]
    assert [level.label for level in drawn(snapshot(total_bytes=None)).grid] == levels


# --- names -----------------------------------------------------------------------------------------------------------


def test_names_lie_in_their_own_area() -> None:
    """Wherever a name is, its area reaches above and below it; a flat area has none."""
    found = step_memory().timeline
    chart = timeline(found, None)
    lefts = positions(found)
    named = {label.text: label for label in chart.labels}
    assert "activations" in named
    assert "input" not in named
    for area in chart.areas:
        if (label := inside(area, lefts, area.category.value)) is not None:
            at = max(index for index, left in enumerate(lefts) if left <= label.x)
            assert area.highs[at] < label.y < area.lows[at]


def test_a_name_needs_room() -> None:
    """A name that has room on a wide page alone says so, and one that has none is not there."""
    block = (*[TimelinePoint(event, None, GIB, (GIB,)) for event in range(2)], TimelinePoint(20, None, 0, (0,)))
    (area,) = areas(block, positions(block), sizes(GIB))
    lefts = positions(block)
    assert (label := inside(area, lefts, "x" * 40))
    assert not label.is_wide_only
    narrow = (*block[:2], TimelinePoint(4, None, 0, (0,)), TimelinePoint(20, None, 0, (0,)))
    (area,) = areas(narrow, positions(narrow), sizes(GIB))
    lefts = positions(narrow)
    assert (label := inside(area, lefts, "x" * 14))
    assert label.is_wide_only
    assert inside(area, lefts, "x" * 40) is None


def test_longest_name_that_fits() -> None:
    """Each width of the page has the longest way to say it that it has room for."""
    names = ("backward", "bwd")
    assert longest_fitting(names, SCALE) == Words("backward", "backward")
    assert longest_fitting(names, SCALE / 10) == Words("backward", "bwd")
    assert longest_fitting(names, SCALE / 1000) == Words("", "")


# --- phases ----------------------------------------------------------------------------------------------------------


def test_phases_are_bands_one_after_another() -> None:
    """Phases and iterations cover the timeline from end to end without gap or overlap."""
    found = step_memory()
    for row, number in ((phases.phases(found), 10), (phases.iterations(found), 2)):
        assert len(row) == number
        assert row[0].left == 0
        assert row[-1].left + row[-1].width == pytest.approx(SCALE)
        for band, following in pairwise(row):
            assert band.left + band.width == pytest.approx(following.left, abs=0.11)
    assert phases.iterations(found)[0].words == Words("iteration 1", "iteration 1")
    assert [band.words.wide for band in phases.phases(found)][:3] == ["forward", "backward", "forward"]


def test_empty_phases_and_strange_ones_have_no_band() -> None:
    """A phase without an event is left out, and one that ends outside of the timeline ends at its edge."""
    found = step_memory()
    empty = PhaseMemory(1, 1, PhaseName.FORWARD, 5, 5, (), ())
    endless = PhaseMemory(1, 1, PhaseName.BACKWARD, 5, 10**12, (), ())
    assert phases.phases(replace(found, phases=(empty,))) == ()
    (band,) = phases.phases(replace(found, phases=(empty, endless)))
    assert band.left + band.width == pytest.approx(SCALE)
    assert phases.phases(replace(found, timeline=())) == ()


@given(any_timeline, st.integers(-10, 4000), st.integers(-10, 4000))
def test_later_events_lie_further_right(points: Sequence[TimelinePoint], one: int, other: int) -> None:
    """Events keep their order and stay in the plot."""
    earlier, later = sorted((one, other))
    assert 0 <= event_position(points, earlier) <= event_position(points, later) <= SCALE
