"""Integers and booleans that the host knows keep their values on a null GPU, and reads of others are named."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
from null_gpu_runs import answer, each_python

pytestmark = [each_python, pytest.mark.usefixtures("null_gpu")]

KNOWN = {
    "range": [0, 9, True],
    "columns": [[3, 4], [8, 9], [13, 14], [18, 19]],
    "nonzero": [[0, 0], [1, 2], [2, 4]],
    "unique": [0, 1, 2, 3],
    "bincount": [5, 5, 5, 5],
    "masked floats": [9],
    "written": [[0, 0, 0, 0, 0], [10, 11, 12, 13, 14], [10, 11, 12, 13, 14], [99, 16, 17, 18, 19]],
    "reduced": [289, [119, 38, 41, 44, 47], 15, [16, 17, 18, 19, 99]],
    "joined": [3, 0, 9, 4, 7, 7, 0, 0, 0, 0],
    "degree": [1, 0, 0, 1, 1, 0, 0, 0, 0, 1],
    "foreach": [[2, 3, 4], [2, 3]],
    "packed": [10, 4],
    "repeated": [10, 2],
    "one hot": [3, 6],
    "inference": [3, 4],
    "autocast": [0, 2, 4],
    "batches": 1,
    "gradient": [10, 3],
    "decided": [True, 0],
    "sparse": [300, 50],
    "sparse matrix": 3,
    "counted": 0,
    "parameter": [0, 1, 2],
    "copied": [7, 8, 9, 1],
    "chosen by mask": [-1, 8, 9, -1, 0, 1, 1, 0],
    "filled": [True, [-1, -1]],
    "given out": [[4, 7, 9, 11], [7, 15, 24, 25], [7, 8, 8, 2]],
    "cut": [[7, 8], [[7, 8], [9, 1]]],
    "deep copies": [[11, 12, 13, 14, 15], [10, 11, 12, 13, 14], 0],
    "placed": [[0, 1, 0, 5], [0, 0, 0, 1], [1, 2, 0, 0]],
    "powers": [[3], [1, 2, 4]],
}


@cache
def _answer(python: str) -> Any:
    return answer("known_values.py", python=python)


def test_known_values_are_read_as_on_a_gpu(python: str) -> None:
    """What integers from the host become by comparing, reducing, indexing and writing is what is read back."""
    found = _answer(python)["found"]

    assert {name: found[name][0] for name in KNOWN} == KNOWN
    assert [name for name in KNOWN if found[name][1]] == []


def test_known_indices_out_of_range_are_errors(python: str) -> None:
    """What ends on a GPU with a device-side assert raises, with the index and the bound; what nobody knows goes on."""
    found = dict(_answer(python)["found"]["bounds"][0])

    end = "; a GPU would end with a device-side assert"
    for name in ("item", "items"):  # by the operator that PyTorch has for it, which is not the same in all
        assert found.pop(name).startswith("index 9 is out of range for the 4 positions of a dimension that is ")
    assert found == {
        "table": f"index 10 is out of range for the 10 rows of an embedding's table{end}",
        "negative": f"index -1 is out of range for the 10 rows of an embedding's table{end}",
        "classes": f"index 9 is out of range for the 5 classes of a loss{end}",
        "ignored": None,
        "pixels": f"index 3 is out of range for the 3 classes of a loss{end}",
        "select": f"index 5 is out of range for the 5 positions that `index_select` takes from{end}",
        "gather": f"index 5 is out of range for the 5 positions that `gather` takes from{end}",
        "expanded": f"index 5 is out of range for the 5 positions that `gather` takes from{end}",
        "indexed": f"index 5 is out of range for the 5 positions of a dimension that is indexed{end}",
        "from the end": None,
        "scatter": f"index 3 is out of range for the 3 positions of a dimension that is written to{end}",
        "one hot": f"index 2 is out of range for the 2 positions of a dimension that is written to{end}",
        "bag": f"index 11 is out of range for the 10 rows of an embedding's table{end}",
        "empty": None,
        "unknown": None,
    }


def test_unknown_values_are_read_as_zeros_and_named(python: str) -> None:
    """A value that comes from floating-point or random numbers is zero, and the expression that reads it is named."""
    found = _answer(python)["found"]

    assert found["unknown mask"] == [[10], ["floats[floats > 0.5]"]]
    assert found["unknown backward"] == [[6, 3], ["weights[weights.detach().sum(1) > 0]"]]
    assert found["unknown nonzero"] == [[[row] for row in range(10)], ["(floats > 1).nonzero()"]]
    assert found["unknown any"][0] is False
    assert found["unknown item"] == [0.0, ["floats.sum().item()"]]
    assert found["undecided"] == [[False, False], ["(unknown | torch.zeros_like(unknown)).tolist()"]]
    assert found["placed unknown"] == [[[0, 0, 0, 0]] * 3, ["placed.tolist()"]]
    assert found["random"] == [[0, 0, 0, 0], ["labels.tolist()"]]
    assert found["overwritten"] == [0, ["grid.sum().item()"]]
    assert found["filled and written"] == [False, ["ones.bool().all().item()"]]


def test_the_effect_of_an_unknown_value_is_told(python: str) -> None:
    """A mask has a bound, another size has none, and a number that is printed decides nothing."""
    effects = _answer(python)["effects"]

    assert effects["floats[floats > 0.5]"] == "bound"
    assert effects["(floats > 1).nonzero()"] == "bound"
    assert effects["torch.unique(floats)"] == "bound"
    if "unknown repeats" in _answer(python)["found"]:  # from torch 2.7
        assert effects["torch.repeat_interleave((floats > 1).long())"] == "size"
    assert effects["floats.sum().item()"] == "value"


def test_choices_among_a_few_are_spread_evenly(python: str) -> None:
    """What a router chooses is not known: each expert gets as many tokens, no token one twice, and that is told."""
    answer = _answer(python)
    chosen = [[0, 1], [2, 3], [0, 1], [2, 3], [0, 1], [2, 3]]

    assert answer["found"]["chosen"][0] == chosen
    assert answer["found"]["counted choices"][0] == [3, 3, 3, 3]
    assert answer["found"]["rows of an expert"] == [[1, 3, 5], ["torch.where(mask[2])", "(rows + 0 * slot).cpu()"]]
    assert answer["found"]["largest"] == [
        [0, 1, 2, 3, 0, 1],
        ['torch.randn(6, 4, device="cuda").max(1).indices.tolist()'],
    ]
    assert answer["found"]["logged"] == [2, []]
    assert answer["effects"]["torch.where(mask[2])"] == "even"


def test_the_gradient_of_a_product_takes_factors_as_not_zero(python: str) -> None:
    """PyTorch's own question for zeros among the factors is no read of the program's, and is answered with none."""
    found = _answer(python)["found"]

    assert found["products"] == [0, []]
    assert found["compared"] == [False, ["bool((products.grad == 0).any())"]]


def test_unknown_rows_of_a_sparse_tensor_count_as_different(python: str) -> None:
    """Where the indices are not known, coalescing leaves all, or all rows there are, which is told as a bound."""
    answer = _answer(python)

    assert answer["found"]["unknown sparse"] == [6, ["guessed.coalesce()"]]
    assert answer["found"]["crowded sparse"] == [4, ["crowded.coalesce()"]]
    assert answer["effects"]["guessed.coalesce()"] == "bound"


def test_a_loop_that_waits_for_a_value_is_ended(python: str) -> None:
    """A loop whose condition never changes raises an error that names the condition and its line."""
    error = _answer(python)["error"]

    assert error.startswith("`not is_done.all()` at known_values.py:")
    assert "a loop waits for a value" in error


def test_a_failure_of_ours_leaves_the_program_as_it_is(python: str) -> None:
    """Operators run as they would without us, and the failures are noted."""
    answer = _answer(python)

    assert answer["found"]["broken"][0] == [[4, 5], [3], 20]
    assert answer["failures"] == ["_find_plan", "_keep_made", "known_values"]


def test_values_hold_no_memory_of_the_device(python: str) -> None:
    """Nothing is left on the device once the program's tensors are gone."""
    assert _answer(python)["held"] == 0
