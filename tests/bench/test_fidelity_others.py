"""Published intervals and single figures: as they are read, and the rules by which answers are counted."""

from __future__ import annotations

import json
from typing import Any

import fidelity_intervals
import fidelity_points
import pytest
from fidelity_intervals import place, summary

from oomdoctor.engines.catalogue import find_card


def test_every_sixth_interval_is_read() -> None:
    """Rows have names of their own, in order, and a size that fitted below the one that did not."""
    rows = fidelity_intervals.read_truth()
    names = [row["model"] for row in rows]

    assert len(rows) == 108
    assert names == sorted(set(names))
    assert all(0 < row["fitted"] < row["next_tried"] for row in rows)


@pytest.mark.parametrize(
    ("fitted", "next_tried", "said"),
    [(True, False, "inside"), (True, True, "too high"), (False, False, "too low")],
)
def test_a_largest_size_has_a_place(fitted: bool, next_tried: bool, said: str) -> None:
    """It is inside where the size that fitted fits and the next does not."""
    assert place({"fitted": fitted, "next_tried": next_tried}) == said


def test_a_summary_counts_each_row_once() -> None:
    """A row without an answer is in no count but named; a recommended size that ran out is named too."""
    answers: dict[str, dict[str, Any]] = {
        "a": {"fitted": True, "next_tried": False, "recommended": False},
        "b": {"fitted": True, "next_tried": True, "recommended": True},
        "c": {"fitted": False, "next_tried": False, "recommended": False},
        "d": {"problem": "TargetError: no"},
    }

    said = summary(answers)

    assert (said["rows"], said["inside"], said["too_high"], said["too_low"]) == (3, 1, ["b"], ["c"])
    assert said["recommended_ran_out"] == ["b"]
    assert said["problems"] == {"d": "TargetError: no"}


def test_what_is_published_of_intervals_is_of_these_answers() -> None:
    """The summary in the results follows from the answers beside it, and is what the page says."""
    found = json.loads(fidelity_intervals.FILE.read_text(encoding="utf-8"))

    assert found["summary"] == summary(found["answers"])
    assert fidelity_intervals.page_block(found["summary"]) in fidelity_intervals.PAGE.read_text(encoding="utf-8")


def test_every_single_figure_has_settings() -> None:
    """There are as many settings as rows, on cards of the catalogue, and bytes to compare."""
    rows = fidelity_points.read_truth()

    assert len(rows) == len(fidelity_points.SETTINGS)
    assert all(find_card(settings.card) for settings in fidelity_points.SETTINGS)
    assert all(0 < row["compared_bytes"] <= int(row["measured_bytes"]) for row in rows)


def test_what_is_published_of_single_figures_is_of_these_rows() -> None:
    """Each error follows from the figures beside it, and the table is on the page."""
    rows = json.loads(fidelity_points.FILE.read_text(encoding="utf-8"))["rows"]

    assert [row["model"] for row in rows] == [row["model"] for row in fidelity_points.read_truth()]
    assert all(row["ours"]["error"] == round(row["ours"]["bytes"] / row["compared_bytes"] - 1, 4) for row in rows)
    assert fidelity_points.page_block(rows) in fidelity_points.PAGE.read_text(encoding="utf-8")
