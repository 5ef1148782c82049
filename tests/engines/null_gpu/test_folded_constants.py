"""Constants that Inductor folds on a null GPU have their true values."""

from __future__ import annotations

import pytest
from null_gpu_runs import answer, each_python

pytestmark = [each_python, pytest.mark.usefixtures("null_gpu")]


def test_constants_are_folded_as_on_the_cpu(python: str) -> None:
    """Inductor folds the values, and drops the operations, that it does where numbers are computed; nothing is read."""
    found = answer("folded_constants.py", python=python)

    assert found["device"] == found["host"]
    assert sum(found["host"][0]) == 10, "operations that change nothing"
    assert (found["reads"], found["zeros"], found["failures"]) == ([], 0, [])
