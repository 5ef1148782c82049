"""`make gpu-check` itself, with a null GPU standing where the real one would."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from running import ROOT

from oomdoctor.engines.catalogue import find_card
from oomdoctor.engines.installed import find_torch
from oomdoctor.engines.null_gpu.library import environment

pytestmark = [pytest.mark.null_gpu, pytest.mark.slow]

FEW = (
    "--convolutions",
    "5",
    "--published",
    "1",
    "--parts",
    "libraries",
    "published",
    "examples",
    "models",
    "--models",
    "lstm",
)
SCRIPT = str(ROOT / "tests/bench/gpu_check.py")


@pytest.mark.timeout(900)
def test_the_check_compares_both_devices_and_writes_a_file(tmp_path: Path) -> None:
    """On a GPU of the machine every question goes to both devices; against a null GPU no figure differs."""
    build = find_torch()
    assert build is not None

    ended = subprocess.run(
        [sys.executable, SCRIPT, "--examples", "gpt2", "--caps", "8", "0", "--results", str(tmp_path), *FEW],
        env=environment(find_card("rtx-4090"), build, os.environ),
        capture_output=True,
        text=True,
        check=False,
    )

    assert ended.returncode == 0, ended.stderr
    assert "| gpt2 bf16 full |" in ended.stdout
    found = json.loads((tmp_path / "gpu_check-nvidia-geforce-rtx-4090.json").read_text())
    assert set(found["cases"]) == {f"gpt2 {precision} {cap}" for precision in ("fp32", "bf16") for cap in ("8", "full")}
    rows = found["libraries"]
    assert sum(name.startswith("published: ") for name in rows) == 1
    for name, row in rows.items():
        figures = row["comparison"]["figures"]
        assert figures == row["comparison"]["equal"] > 0 or name == "context, loaded eagerly"
    assert len(rows["workspaces of convolutions"]["real"]) == 2 * 5
    assert found["models"]["lstm"]["comparison"] == {"allocated_bytes": [0.0, 0.0], "reserved_bytes": [0.0, 0.0]}
    for case in found["cases"].values():
        assert case["real"]["maximum"] == case["null"]["maximum"] > 0
        assert set(case["comparison"]["allocated_relative_errors"]) == {0.0}
        assert set(case["comparison"]["reserved_relative_errors"]) == {0.0}


def test_without_a_gpu_the_check_says_so(tmp_path: Path) -> None:
    """On a machine without a GPU the check ends with one sentence and writes nothing."""
    ended = subprocess.run(
        [sys.executable, SCRIPT, "--results", str(tmp_path)], capture_output=True, text=True, check=False
    )

    assert ended.returncode == 1
    assert ended.stderr.startswith("error: no CUDA GPU can be used here")
    assert list(tmp_path.iterdir()) == []
