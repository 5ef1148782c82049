"""Run a program on the null GPU, with each interpreter whose torch is to be tested."""

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

from oomdoctor.engines.catalogue import Card
from oomdoctor.engines.installed import TorchBuild, parse_version_file
from oomdoctor.engines.null_gpu.library import environment

PROGRAMS = Path(__file__).parent / "programs"
PACKAGE_ROOT = Path(__file__).parents[3]
MIB = 1 << 20
GIB = 1 << 30

CARD = Card(
    key="rtx-4090",
    name="NVIDIA GeForce RTX 4090",
    total_bytes=25_386_352_640,
    total_source="test",
    compute_capability=(8, 9),
    sm_count=128,
    max_threads_per_sm=1536,
    shared_memory_per_block_bytes=101_376,
    l2_bytes=72 * MIB,
    context_bytes=400 * MIB,
    context_source="test",
)

OTHERS = [path for path in os.environ.get("OOMDOCTOR_TEST_PYTHONS", "").split(":") if path]
PYTHONS = [sys.executable, *OTHERS]
"""Interpreters to test: this one, and those that `OOMDOCTOR_TEST_PYTHONS` lists with colons between them."""

each_python = pytest.mark.parametrize("python", PYTHONS, ids=[Path(path).parents[1].name for path in PYTHONS])


@cache
def build_of(python: str) -> TorchBuild:
    """The torch of an interpreter; skips the test where it is no CUDA build."""
    code = "from importlib.util import find_spec; spec = find_spec('torch'); print(spec.origin if spec else '')"
    found = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True)
    origin = found.stdout.strip()
    if not origin:
        pytest.skip(f"{python} has no torch")
    root = Path(origin).parent
    build = parse_version_file((root / "version.py").read_text(encoding="utf-8"), root)
    if build.cuda is None:
        pytest.skip(f"torch {build.version} of {python} is no CUDA build")
    return build


def run(
    program: str,
    *arguments: str,
    python: str = sys.executable,
    card: Card = CARD,
    timeout: float = 120,
    **variables: str,
) -> subprocess.CompletedProcess[str]:
    """Run a program of `programs/` on a null GPU: in a Python of its own where it needs more variables, else a fork."""
    base = {**os.environ, "PYTHONPATH": python_path(PACKAGE_ROOT), **variables}
    command, shown = [str(PROGRAMS / program), *arguments], environment(card, build_of(python), base)
    if not variables:
        return run_program(python, command, shown, timeout=timeout)
    return subprocess.run(
        [python, "-W", "ignore", *command],
        env=shown,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
        stdin=subprocess.DEVNULL,
    )


@cache
def answer(program: str, *arguments: str, **options: Any) -> Any:
    """What a program prints as its last line, as JSON; it runs once for all that ask the same."""
    done = run(program, *arguments, **options)
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1])
