"""Real snapshots: shipped examples that PyTorch's CUDA build trains on the null GPU."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from run_python import run_program
from running import ROOT, python_path
from snapshot_scenarios import Load, Scenario, load_scenario

from oomdoctor.engines.choice import choose_engine
from oomdoctor.units import GIB

_PROGRAM = Path(__file__).parent / "programs" / "scenarios.py"


@pytest.fixture(scope="session")
def snapshots(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory with a snapshot of every scenario."""
    directory = tmp_path_factory.mktemp("snapshots")
    base = {**os.environ, "PYTHONPATH": python_path(ROOT)}
    engine = choose_engine(engine="null", gpu=None, device=None, memory_bytes=24 * GIB, base=base)
    done = run_program(sys.executable, [str(_PROGRAM), str(directory)], engine.environment, timeout=250)
    assert done.returncode == 0, done.stderr[-4000:]
    return directory


@pytest.fixture(scope="session")
def scenario(snapshots: Path) -> Load:
    """Load a scenario by its name."""
    known: dict[str, Scenario] = {}

    def load(name: str) -> Scenario:
        if name not in known:
            known[name] = load_scenario(snapshots / f"{name}.pickle")
        return known[name]

    return load
