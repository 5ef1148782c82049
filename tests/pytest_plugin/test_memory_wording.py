"""What a failing test is told of its memory, in words."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from oomdoctor.pytest_plugin.measurement import Reading
from oomdoctor.pytest_plugin.report import MOST_LINES, Held, explanation, null_gpu_notes, over_limit, ran_out
from oomdoctor.results import SourceLine

MIB = 1 << 20


def _reading(peak_bytes: int, **other: object) -> Reading:
    known = {
        "start_bytes": 0,
        "capacity_bytes": 24 << 30,
        "device": 0,
        "name": "Card",
        "ooms": 0,
        "reads": 0,
        "unknown_calls": (),
    }
    return Reading(peak_bytes=peak_bytes, **(known | other))


def _held(line: int, size: int, path: str = "/project/model.py") -> Held:
    return Held(SourceLine(path, line, "forward"), "", size, 1)


def test_excess_is_given_as_a_share() -> None:
    """The excess is given as a size and as a share, with a decimal only where that says something."""
    assert over_limit(_reading(3 * MIB), 2 * MIB).endswith(
        "of 3.00 MiB is 1.00 MiB (50.0 %) over the limit of 2.00 MiB"
    )
    assert "(200 %)" in over_limit(_reading(3 * MIB), MIB)
    assert "(0.0 %)" in over_limit(_reading((1 << 40) + 1), 1 << 40)


@given(st.lists(st.integers(min_value=1, max_value=1 << 40), min_size=1, max_size=20), st.integers(0, 1 << 30))
def test_rows_sum_to_the_peak(sizes: list[int], unknown: int) -> None:
    """The most that is named is five lines; the rest, and what the history does not know, are rows of their own."""
    lines = [_held(number, size * 512) for number, size in enumerate(sorted(sizes, reverse=True), start=1)]
    text = explanation(_reading(sum(sizes) * 512 + unknown), lines, Path("/project"))
    rows = text.split("by line:\n")[1].splitlines()
    assert len([row for row in rows if "model.py:" in row]) == min(len(sizes), MOST_LINES)
    assert any("other line" in row for row in rows) == (len(sizes) > MOST_LINES)
    assert any("not in the history" in row for row in rows) == (unknown > 0)


def test_paths_are_shown_from_the_root() -> None:
    """A file of the project is shown from its root, another one with its whole path."""
    text = explanation(_reading(2 * MIB), [_held(1, MIB), _held(2, MIB, "/elsewhere/x.py")], Path("/project"))
    assert " model.py:1 in forward" in text
    assert " /elsewhere/x.py:2 in forward" in text


def test_code_is_shown_and_cannot_colour_the_terminal(tmp_path: Path) -> None:
    """The line's code stands beside it, with what moves a terminal's cursor written out."""
    path = tmp_path / "model.py"
    path.write_text("x = torch.empty(1)  # \x1b[31m\n", encoding="utf-8")
    text = explanation(_reading(MIB), [_held(1, MIB, str(path))], tmp_path)
    assert "model.py:1 in forward    x = torch.empty(1)  # \\x1b[31m" in text


def test_out_of_memory_names_the_limit() -> None:
    """Where memory ran out, the most that was allocated and the limit are named."""
    text = ran_out(_reading(MIB, ooms=2), 3 * MIB)
    assert text == (
        "PyTorch ran out of GPU memory 2 times; the most it had allocated is 1.00 MiB; the limit is 3.00 MiB"
    )


def test_functions_that_are_not_served_are_named() -> None:
    """A failure on a null GPU names the functions that it does not serve, and nothing where there are none."""
    assert null_gpu_notes(_reading(MIB, unknown_calls=("cufftExec",))) == "the null GPU does not serve: cufftExec"
    assert not null_gpu_notes(_reading(MIB))
