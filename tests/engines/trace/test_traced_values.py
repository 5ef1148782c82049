"""Integers and booleans that the host knows keep their values on the emulated device."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from traced_runs import each_python, run

pytestmark = pytest.mark.slow  # all that the programs do is done before the first answer


@pytest.fixture
def answers(python: str, directory: Path) -> dict[str, Any]:
    """What the program printed with that interpreter; it runs once for each."""
    found: dict[str, Any] = run(python, directory)["known_values"]
    return found


@each_python
def test_what_is_read_of_known_values_is_what_the_host_reads(answers: dict[str, Any]) -> None:
    """Writing, converting, comparing, reducing, joining and indexing integers gives what the host computes."""
    assert answers["found"] == answers["expected"]
    assert answers["reads"] == 0


@each_python
def test_random_programs_of_integers_read_what_the_host_reads(answers: dict[str, Any]) -> None:
    """Whatever order integers are viewed, written, copied and computed in, what is read as known is true."""
    assert answers["differing"] == []
    assert answers["steps read"] < 400, "most values are known"


@each_python
def test_what_nobody_knows_is_read_as_zeros(answers: dict[str, Any]) -> None:
    """Random and floating-point numbers are zeros, and so is all of a tensor to which such a number was written."""
    assert answers["unknown"] == {
        "drawn": [0, 0, 0],
        "filled and written": [0, 0],
        "cast": [0, 0],
        "overwritten": [0, 0, 0, 0],
        "mixed": [0, 0, 0, 0],
        "resized": [0] * 8,
        "partly written": [0, 0, 0, 0],
        "added to": [0, 0, 0, 0],
        "kept": [0, 1, 2, 3],
    }
    assert answers["unknown reads"] == 8


@each_python
def test_a_known_index_out_of_range_is_an_error(answers: dict[str, Any]) -> None:
    """What ends on a GPU with a device-side assert raises, with the index and the bound."""
    end = "; a GPU would end with a device-side assert"
    found = dict(answers["bounds"])
    assert found.pop("items").startswith("index 5 is out of range for the 5 positions of a dimension that is ")
    assert found == {
        "table": f"index 10 is out of range for the 10 rows of an embedding's table{end}",
        "in range": None,
        "classes": f"index 9 is out of range for the 5 classes of a loss{end}",
        "ignored": None,
        "select": f"index 5 is out of range for the 5 positions that `index_select` takes from{end}",
        "gather": f"index 5 is out of range for the 5 positions that `gather` takes from{end}",
        "indexed": f"index 5 is out of range for the 5 positions of a dimension that is indexed{end}",
        "from the end": None,
        "scatter": f"index 3 is out of range for the 3 positions of a dimension that is written to{end}",
        "one hot": f"index 2 is out of range for the 2 positions of a dimension that is written to{end}",
        "bag": f"index 11 is out of range for the 10 rows of an embedding's table{end}",
        "unknown": None,
    }


@each_python
def test_values_hold_no_memory_of_the_emulated_device(answers: dict[str, Any]) -> None:
    """Nothing is left on the device once the program's tensors are gone."""
    assert answers["held"] == 0
