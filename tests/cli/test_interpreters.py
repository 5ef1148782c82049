"""The main job on every torch that the suite is given: the newest, and the oldest supported, built for CUDA 12."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from running import ROOT, python_path

pytestmark = pytest.mark.null_gpu

PYTHONS = [sys.executable, *filter(None, os.environ.get("OOMDOCTOR_TEST_PYTHONS", "").split(":"))]


def _answer(python: str, example: str, directory: Path) -> dict:
    ended = subprocess.run(
        [python, "-m", "oomdoctor", "probe", example, "--target-batch", "64", "--gpu", "rtx-3090", "--json", "--quiet"],
        cwd=directory,
        env={**os.environ, "PYTHONPATH": python_path(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout)


@pytest.mark.parametrize("python", PYTHONS, ids=lambda python: Path(python).parents[1].name)
@pytest.mark.parametrize(("example", "expected"), [("gpt2", 17), ("resnet50", 64), ("lstm", 64)])
def test_every_torch_answers(python: str, example: str, expected: int, tmp_path: Path) -> None:
    """A null GPU serves CUDA 12 and CUDA 13 builds, attention, convolutions and recurrent networks alike."""
    document = _answer(python, example, tmp_path)

    assert document["result"]["device"]["kind"] == "null"
    assert document["result"]["micro_batch"]["maximum"] == expected


@pytest.mark.skipif(len(PYTHONS) < 2, reason="OOMDOCTOR_TEST_PYTHONS names no second torch; `make test` does")
def test_the_interpreters_differ() -> None:
    """The suite really runs a CUDA 12 and a CUDA 13 build."""
    code = "import torch; print(torch.version.cuda.split('.')[0])"
    majors = {subprocess.check_output([python, "-W", "ignore", "-c", code], text=True).strip() for python in PYTHONS}

    assert majors == {"12", "13"}
