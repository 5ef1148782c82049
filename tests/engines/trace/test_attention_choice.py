"""The trace engine takes the attention kernel that PyTorch takes on a null GPU."""

from __future__ import annotations

import json
import os
from collections import Counter

import pytest
from run_python import run_program
from running import python_path
from traced_runs import PROGRAMS, ROOT, build_of, each_python

from oomdoctor.engines.catalogue import find_card
from oomdoctor.engines.null_gpu.library import environment

pytestmark = [pytest.mark.null_gpu, pytest.mark.timeout(200)]


def _ask(python: str, engine: str, env: dict[str, str]) -> list[str]:
    ran = run_program(python, [str(PROGRAMS / "attention_choice.py"), engine], env, timeout=100)
    assert ran.returncode == 0, ran.stderr[-3000:]
    return json.loads(ran.stdout)


@pytest.mark.parametrize("card", ["a100-sxm4-80gb", "t4"])
@each_python
def test_the_kernel_is_the_one_that_pytorch_takes(python: str, card: str) -> None:
    """For 600 random questions of heads, groups, masks, types and layouts, wherever PyTorch answers at all."""
    base = {**os.environ, "PYTHONPATH": python_path(ROOT)}
    expected = _ask(python, "null", environment(find_card(card), build_of(python), base))

    chosen = _ask(python, card, base)

    pairs = [(theirs, ours) for theirs, ours in zip(expected, chosen, strict=True) if theirs != "error"]
    assert Counter(pairs) == Counter((theirs, theirs) for theirs, _ in pairs)
    assert len(pairs) > 400
    assert {theirs for theirs, _ in pairs} >= {"math", "efficient"}
