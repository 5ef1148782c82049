"""Operators ask the allocator for the same on the emulated device and on the null GPU, one by one."""

from __future__ import annotations

import json
import os
from typing import Any

import pytest
from run_python import run_program
from running import python_path
from traced_runs import PROGRAMS, PYTHONS, ROOT, build_of, each_python

from oomdoctor.engines.catalogue import find_card
from oomdoctor.engines.cudnn_library import cudnn_variables
from oomdoctor.engines.null_gpu.library import environment

pytestmark = [pytest.mark.null_gpu, pytest.mark.timeout(200)]

_OF_KNOWN_VALUES = (
    *(
        f"{what} of {size}"
        for size in ("few", "many")
        for what in ("nonzero", "nonzero of a matrix", "unique", "unique with all", "unique runs", "bincount")
    ),
    "repeats of few", "repeats of many", "masked", "masked elements", "masked columns", "masked select", "masked put",
    "repeated", "selected by a row", "put by a row", "nothing chosen",
)  # fmt: skip
IN_2_6 = {
    **dict.fromkeys(
        _OF_KNOWN_VALUES, "2.6 asks for scratch of another size: 256 bytes less, or up to 0.3 % more in all"
    ),
    **dict.fromkeys(
        ("irfft along 1", "fft of padded numbers"),
        "2.6 tells no layout for a transform along an inner dimension: a copy of the gradient too many",
    ),
    "gradient in autocast": "one copy of a weight in bf16 is not made again near the end, where less is held",
    "normal tt": "2.6 reads back whether a deviation is negative, and refuses the zeros that a null GPU reads",
}
IN_2_15 = {"flash dropout": "two numbers of the random state are made in the other order"}
"""Cases that are known to differ, and why."""


def _ask(python: str, engine: str, env: dict[str, str], *kinds: str, program: str = "operators.py") -> dict[str, Any]:
    ran = run_program(python, [str(PROGRAMS / program), engine, *kinds], env, timeout=100)
    assert ran.returncode == 0, ran.stderr[-3000:]
    found: dict[str, Any] = json.loads(ran.stdout)
    return found


def _differing(
    python: str, card: str, *kinds: str, program: str = "operators.py", at_least: int = 200
) -> dict[str, Any]:
    """What both engines say of the cases of which they do not say the same."""
    base = {**os.environ, "PYTHONPATH": python_path(ROOT)}
    expected = _ask(python, "null", environment(find_card(card), build_of(python), base), *kinds, program=program)
    traced = _ask(python, card, {**base, **cudnn_variables(build_of(python), base)}, *kinds, program=program)
    assert len(expected) > at_least
    assert expected.keys() == traced.keys()
    return {name: (theirs, traced[name]) for name, theirs in expected.items() if theirs != traced[name]}


_OLDEST_KINDS = (
    "derivatives", "fast paths", "layers", "losses", "numbers", "pictures", "places", "quantization", "sweeps",
    "transforms", "uncommon", "views",
)  # fmt: skip
"""All but the decompositions: 2.6 leaves many of them to MAGMA, whose copies are its own."""


@each_python
def test_each_operator_asks_for_what_it_asks_for_on_the_null_gpu(python: str) -> None:
    """Of 740 uses, forward and backward, all allocate and give back the same in the same order but the known few."""
    differing = _differing(python, "a100-sxm4-80gb", *_OLDEST_KINDS)
    known = IN_2_6 if build_of(python).version.startswith("2.6.") else IN_2_15
    assert {name: found for name, found in differing.items() if name not in known} == {}
    assert differing.keys() == known.keys()


def test_each_decomposition_asks_for_what_it_asks_for_on_the_null_gpu() -> None:
    """Of 280 decompositions, of one matrix and of many, all allocate and give back the same in the same order."""
    assert _differing(PYTHONS[0], "a100-sxm4-80gb", "decompositions") == {}


@pytest.mark.parametrize("card", ["h100-sxm-80gb", "rtx-4090"])
def test_what_kernels_take_follows_the_card(card: str) -> None:
    """What depends on sizes, types and layouts is the same on a card of another generation too."""
    assert _differing(PYTHONS[0], card, "sweeps") == {}


_CONTIGUOUS_IN_2_6 = ("rows", "softmax", "group norm")
"""Results of one pixel or channel that are contiguous there and channels last since, or the other way round."""


@each_python
def test_each_result_lies_as_it_lies_on_the_null_gpu(python: str) -> None:
    """Strides of two thousand results are the same, whatever the layouts of the arguments and however few numbers."""
    differing = _differing(python, "rtx-3060", program="layouts_of_results.py")
    known = _CONTIGUOUS_IN_2_6 if build_of(python).version.startswith("2.6.") else ()
    assert {name for name in differing if name.partition(",")[0] not in known} == set()


@each_python
def test_tensors_are_used_as_on_the_null_gpu(python: str) -> None:
    """Old names of types, default devices, lazy modules, forward mode and `new_tensor` give what they give on CUDA."""
    assert _differing(python, "rtx-3060", program="tensor_uses.py", at_least=40) == {}
