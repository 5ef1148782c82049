"""Run programs on the emulated device and on the null GPU, with each interpreter whose torch is to be tested."""

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
from running import python_path
from sharing import shared

from oomdoctor.engines.catalogue import find_card
from oomdoctor.engines.cudnn_library import cudnn_variables
from oomdoctor.engines.installed import TorchBuild, parse_version_file
from oomdoctor.engines.null_gpu.library import environment
from oomdoctor.errors import NoAnswerError

PROGRAMS = Path(__file__).parent / "programs"
RECORDED = Path(__file__).parent / "data" / "null_gpu.json"
ROOT = Path(__file__).parents[3]
PYTHONS = [sys.executable, *(path for path in os.environ.get("OOMDOCTOR_TEST_PYTHONS", "").split(":") if path)]
each_python = pytest.mark.parametrize("python", PYTHONS, ids=[Path(path).parents[1].name for path in PYTHONS])

KEPT = {"TORCH_CUBLAS_WORKSPACE_CACHE": "1"}
"""Has torch 2.15 keep cuBLAS's workspaces as older ones do: else they hide what else a peak is made of."""


@cache
def build_of(python: str) -> TorchBuild:
    """The torch of an interpreter."""
    code = "from importlib.util import find_spec; print(find_spec('torch').origin)"
    found = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True)
    root = Path(found.stdout.strip()).parent
    return parse_version_file((root / "version.py").read_text(encoding="utf-8"), root)


WITHOUT_WORKSPACES = {"TORCH_CUDNN_V8_API_DISABLED": "1"}
"""Has PyTorch use cuDNN's older interface, whose workspaces nobody tells without a GPU."""


def run(python: str, directory: Path, *, null: bool = False, workspaces: bool = True) -> Any:
    """What the programs of `programs/` answer, traced or on a null GPU; each is run once for the suite.

    Where the cuDNN beside torch can be asked without a GPU, convolutions take its workspaces, unless told otherwise.

    Raises:
        NoAnswerError: The null GPU cannot run with this interpreter's torch.
    """
    name = f"{Path(python).parents[1].name}-{'null' if null else 'trace'}{'' if workspaces else '-plain'}"
    return json.loads(shared(directory / f"{name}.json", lambda: _run(python, null=null, workspaces=workspaces)))


def _run(python: str, *, null: bool, workspaces: bool) -> str:
    base = {**os.environ, "PYTHONPATH": python_path(ROOT), **KEPT, **({} if workspaces else WITHOUT_WORKSPACES)}
    build = build_of(python)
    shown = environment(find_card("rtx-4090"), build, base) if null else {**base, **cudnn_variables(build, base)}
    ran = run_program(python, [str(PROGRAMS / "everything.py"), "null" if null else "trace"], shown, timeout=200)
    assert ran.returncode == 0, ran.stderr[-3000:]
    return ran.stdout


def truth(python: str, directory: Path) -> Any:
    """What the null GPU says: with this interpreter's torch, or as recorded where that cannot run on it."""
    try:
        return run(python, directory, null=True)
    except NoAnswerError:
        return json.loads(RECORDED.read_text(encoding="utf-8"))
