"""The trace engine takes the attention kernel that PyTorch takes on a null GPU."""

from __future__ import annotations

import json
import os
import subprocess
from collections import Counter

import pytest
from traced_runs import PROGRAMS, ROOT, build_of, each_python

from oomdoctor.engines.catalogue import find_card
from oomdoctor.engines.null_gpu.library import environment

pytestmark = [pytest.mark.null_gpu, pytest.mark.timeout(200)]


def _ask(python: str, engine: str, env: dict[str, str]) -> list[str]:
    command = [python, "-W", "ignore", str(PROGRAMS / "attention_choice.py"), engine]
    ran = subprocess.run(command, env=env, capture_output=True, text=True, timeout=100, check=False)
    assert ran.returncode == 0, ran.stderr[-3000:]
    return json.loads(ran.stdout)


@pytest.mark.parametrize("card", ["a100-sxm4-80gb", "t4"])
@each_python
def test_the_kernel_is_the_one_that_pytorch_takes(python: str, card: str) -> None:
    """For 600 random questions of heads, groups, masks, types and layouts, wherever PyTorch answers at all."""
    base = {**os.environ, "PYTHONPATH": str(ROOT)}
    expected = _ask(python, "null", environment(find_card(card), build_of(python), base))

    chosen = _ask(python, card, base)

    pairs = [(theirs, ours) for theirs, ours in zip(expected, chosen, strict=True) if theirs != "error"]
    assert Counter(pairs) == Counter((theirs, theirs) for theirs, _ in pairs)
    assert len(pairs) > 400
    assert {theirs for theirs, _ in pairs} >= {"math", "efficient"}
