"""The chart of a prescription: where each set of remedies lies, and the front."""

from __future__ import annotations

import re

import pytest
from prescribe_documents import prescribed, row

from oomdoctor.report import prescribe
from oomdoctor.report.charts.front import chart

COST = {"recomputed_flops_percent": 10.0, "extra_bytes_percent": 20.0}


def test_a_set_lies_at_its_larger_cost_and_its_maximum() -> None:
    """Costs go to the right and maxima upwards; the front's points are joined by a line."""
    half = row("checkpoint-every-2", maximum=24, on_front=True, recomputed_flops_percent=10.0, extra_bytes_percent=5.0)
    document = prescribed(alone=(half, row("checkpoint", maximum=32, on_front=True, **COST)), combined=())
    drawn = chart(document.result)
    assert drawn is not None
    plain, every, checkpoint = sorted(drawn.points, key=lambda point: point.x)
    assert plain.x == 0 < every.x
    assert every.x * 2 == pytest.approx(checkpoint.x, abs=0.2)
    assert plain.y > every.y > checkpoint.y
    assert checkpoint.title == "checkpoint: micro-batch 32, 20.0 % more"
    assert drawn.lines == (("same", f"{every.x},{every.y} {checkpoint.x},{checkpoint.y}"),)
    assert (drawn.left_out, drawn.is_log) == (0, False)


def test_what_has_no_known_cost_is_counted_and_not_drawn() -> None:
    """Neither a row without a count nor one that is not a number has a place."""
    known = row("checkpoint", maximum=32, **COST)
    unknown = (row("bf16", maximum=20), row("fp16", maximum=20, **{**COST, "extra_bytes_percent": float("nan")}))
    drawn = chart(prescribed(alone=(known, *unknown), combined=()).result)
    assert drawn is not None
    assert len(drawn.points) == 2
    assert drawn.left_out == 2
    assert chart(prescribed(alone=unknown, combined=()).result) is None


def test_far_maxima_are_on_a_logarithmic_scale() -> None:
    """16 and 214 samples leave room for what lies between."""
    drawn = chart(prescribed(alone=(row("checkpoint", maximum=214, **COST),), combined=()).result)
    assert drawn is not None
    assert drawn.is_log
    assert {count for _, count in drawn.counts} >= {16, 64, 128}


def test_the_page_shows_it() -> None:
    """A filled mark for each set on the front, a hollow one for each other, and none without known costs."""
    best = row("checkpoint", maximum=32, on_front=True, **COST)
    page = prescribe.html(prescribed(alone=(best, row("bf16", maximum=20, exactness="other", **COST)), combined=()))
    figure = page.partition('<svg class="chart"')[2].partition("</figure>")[0]
    assert re.findall(r'class="(set [a-z ]+)"', figure) == ["set same", "set other", "set same on"]
    assert "checkpoint: micro-batch 32, 20.0 % more" in figure
    assert "<figure" not in prescribe.html(prescribed())
