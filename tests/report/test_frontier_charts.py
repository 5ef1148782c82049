"""The report of a frontier: its table, a grid of two sizes, and a chart."""

from __future__ import annotations

from dataclasses import replace

import pytest
from frontier_documents import cell, frontier, gridded, longest

from oomdoctor.output import Terminal
from oomdoctor.report import frontier as report
from oomdoctor.report.charts.frontier import chart
from oomdoctor.report.charts.scales import SCALE
from oomdoctor.results import Axis


def block(text: str, start: str) -> list[str]:
    """Return the lines from the one that begins so up to an empty one."""
    lines = text.splitlines()
    first = next(place for place, line in enumerate(lines) if line.strip().startswith(start))
    return lines[first : lines.index("", first)]


def test_two_sizes_are_a_grid() -> None:
    """A row for each value of the first size and a column for each of the second, with both micro-batches."""
    shown = block(report.text(gridded(), Terminal(100)), "largest micro-batch, and in brackets")
    assert [line.split("  ")[-1].strip() for line in shown[1:2]] == ["side 256"]
    assert [line.split() for line in shown[3:]] == [
        ["512", "300", "(299)", "75", "(74)", "18", "(17)"],
        ["1024", "150", "(149)", "-", "no", "answer"],
    ]
    found = report.markdown(gridded())
    assert "| sequence\\_length | side 64 | side 128 | side 256 |" in found
    assert "| 1024 | 150 (149) | - | no answer |" in found
    assert "<td>150 (149)</td><td>-</td><td>no answer</td>" in report.html(gridded())


def test_one_size_is_no_grid() -> None:
    """Where one size is varied, or the second has one value, the table says everything."""
    one = gridded().result
    column = replace(gridded(), result=replace(one, cells=tuple(one.cells[place] for place in (0, 3))))
    for document in (frontier(), longest(), column):
        assert "in brackets" not in report.text(document, Terminal(100))


@pytest.mark.parametrize(("unicode", "full", "rest"), [(True, "\u2588", "\u2592"), (False, "#", "=")])
def test_what_fits_is_a_bar(unicode: bool, full: str, rest: str) -> None:
    """Each cell with an answer is a bar whose length is its maximum and whose dark part is what is recommended."""
    cells = (cell(512, 40, recommended=30), cell(1024, 20, recommended=20), cell(2048, 0, recommended=0))
    shown = block(report.text(frontier(cells=cells), Terminal(100, unicode=unicode)), "sequence_length  micro-batch:")
    bars = [line.split() for line in shown[1:]]
    assert [words[0] for words in bars] == ["512", "1024", "2048"]
    assert bars[0][1:] == [full * 37 + rest * 13, "40"]
    assert bars[1][1:] == [full * 25, "20"]
    assert bars[2][1:] == ["0"]


def test_one_cell_is_no_chart() -> None:
    """Nothing is drawn of a single answer."""
    assert chart(longest().result) is None
    assert "recommended \u2592" not in report.text(longest(), Terminal(100))
    assert "<figure" not in report.html(longest())


def test_the_chart_has_a_line_for_each_value_of_the_shorter_size() -> None:
    """The size with most values runs along the edge; what fits nowhere is a cross at the bottom."""
    found = chart(gridded().result)
    assert found is not None
    assert (found.across, found.up, found.logarithmic) == ("side", "micro-batch", ("micro-batch",))
    assert [line.name for line in found.series] == ["sequence_length 512", "sequence_length 1024"]
    first, second = found.series
    assert [point.fits for point in second.points] == [True, False]
    assert second.points[1].y == SCALE
    assert first.points[0].title == "sequence_length 512, side 64: 300, recommended 299"
    heights = [point.y for point in first.points]
    assert heights == sorted(heights)
    assert [size for _, size in found.labels] == [64, 128, 256]


def test_the_chart_is_on_the_page() -> None:
    """The page draws the largest and the recommended micro-batches, each point with its words."""
    page = report.html(gridded())
    assert page.count('<polyline class="series s') == 2
    assert page.count('<polyline class="series recommended s') == 2
    assert "<title>sequence_length 512, side 64: 300, recommended 299</title>" in page
    assert "Largest micro-batch by side" in page


def test_many_lines_are_left_to_the_table() -> None:
    """More lines than colours tell apart are counted and not drawn."""
    cells = tuple(
        cell(length, 9, sizes=(Axis("kind", kind), Axis("sequence_length", length)))
        for kind in range(1, 9)
        for length in range(512, 512 + 9)
    )
    found = chart(frontier(axes=("kind", "sequence_length"), cells=cells).result)
    assert found is not None
    assert (len(found.series), found.left_out) == (6, 2)


def test_what_every_cell_has_is_told() -> None:
    """Sizes that are given once and the evaluation between the steps are named, and a cell that it limits as well."""
    shown = report.text(gridded(), Terminal(100))
    assert "train.py, channels 4, fp32, AdamW, a target batch of 256, evaluation of 64 between steps." in shown
    limit = "one more would fit without the evaluation: the training step after it runs out of memory"
    assert f"Sequence_length 512, side 64: {limit}" in shown or f"sequence_length 512, side 64: {limit}" in shown
