"""Run a program on a null GPU whose memory is soon used up, with each interpreter whose torch is to be tested."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from run_python import run_program
from running import ROOT, python_path

from oomdoctor.engines.catalogue import generic_card
from oomdoctor.engines.installed import TorchBuild, parse_version_file
from oomdoctor.engines.null_gpu.library import environment
from oomdoctor.units import GIB

PROGRAMS = Path(__file__).parent / "programs"
PYTHONS = [sys.executable, *filter(None, os.environ.get("OOMDOCTOR_TEST_PYTHONS", "").split(":"))]

each_python = pytest.mark.parametrize("python", PYTHONS, ids=[Path(path).parents[1].name for path in PYTHONS])


@cache
def build_of(python: str) -> TorchBuild:
    """The torch of an interpreter."""
    code = "from importlib.util import find_spec; print(find_spec('torch').origin)"
    root = Path(subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout.strip()).parent
    return parse_version_file((root / "version.py").read_text(encoding="utf-8"), root)


def run_traces(program: str, *arguments: str, python: str, gibibytes: int = 8, **variables: str) -> dict[str, Any]:
    """Run a program of `programs/` on a null GPU; the JSON that it prints last."""
    base = {**os.environ, "PYTHONPATH": python_path(ROOT), **variables}
    shown = environment(generic_card(gibibytes * GIB), build_of(python), base)
    command = [str(PROGRAMS / program), *arguments]
    if variables:  # some are read while torch is imported
        done = subprocess.run([python, *command], env=shown, capture_output=True, text=True, timeout=250, check=False)
    else:
        done = run_program(python, command, shown, timeout=250)
    assert done.returncode == 0, done.stderr[-4000:]
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer
