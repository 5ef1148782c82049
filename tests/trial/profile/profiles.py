"""Profiles of small targets, all made in one process on a null GPU, because each process waits for torch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from run_python import run_program
from running import python_path
from targets_to_profile import TARGETS

from oomdoctor.codec import decode
from oomdoctor.engines.catalogue import generic_card
from oomdoctor.engines.installed import TorchBuild, parse_version_file
from oomdoctor.engines.null_gpu.library import environment
from oomdoctor.results import Category, StepMemory, Trial
from oomdoctor.units import GIB

if TYPE_CHECKING:
    from collections.abc import Sequence

PROGRAMS = Path(__file__).parent / "programs"
ROOT = Path(__file__).parents[3]


@dataclass(frozen=True)
class Profiled:
    """What came of one target."""

    trial: Trial
    memory: StepMemory | None
    reason: str | None
    is_repeated: bool
    frozen: int

    @property
    def known(self) -> StepMemory:
        """The memory, where it has to be there."""
        assert self.memory is not None, self.reason
        return self.memory


@dataclass(frozen=True)
class Case:
    """One target and how it trains."""

    name: str
    micro_steps: int = 2
    precision: str = "fp32"
    micro_batch: int = 64


PLAIN = (Case("plain"), Case("plain", precision="bf16"), Case("plain", precision="fp16"), Case("plain", micro_steps=1))
NAMES = ("adam", "not_foreach", "nested", "reentrant", "not_reentrant", "tied", "grad", "no_grad", "odd", "sparse")
WRAPPED = ("data_parallel", "compiled", "compiled_part", "scripted_part")
STUBBORN = ("no_hooks", "never_again", "optimizer_in_backward")  # late, because the last leaves memory behind
EXAMPLES = tuple(
    Case(name, precision="bf16", micro_batch=2)
    for name in ("gpt2", "gpt2:build_model(checkpoint=True)", "resnet50", "vit_b16", "unet", "lstm")
)
CASES = (*PLAIN, *(Case(name) for name in (*NAMES, *WRAPPED, *STUBBORN)), *EXAMPLES)


SETTINGS = (
    "max_split_size_mb:-1",
    "roundup_power2_divisions:4",
    "roundup_power2_divisions:1,max_split_size_mb:21",
    "max_split_size_mb:-1,expandable_segments:True",
)


def run(program: str, *arguments: str, python: str = sys.executable, cwd: Path = ROOT, **variables: str) -> str:
    """Run a program of `programs/` on a null GPU of 80 GiB; what it prints last."""
    base = {**os.environ, "PYTHONPATH": python_path(ROOT), **variables}
    shown = environment(generic_card(80 * GIB), _torch_of(python), base)
    done = run_program(python, [str(PROGRAMS / program), *arguments], shown, timeout=300, cwd=cwd)
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout.splitlines()[-1]


@cache
def _torch_of(python: str) -> TorchBuild:
    code = "from importlib.util import find_spec; print(find_spec('torch').origin)"
    root = Path(subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout.strip()).parent
    return parse_version_file((root / "version.py").read_text(encoding="utf-8"), root)


def profile(cases: Sequence[Case], python: str = sys.executable) -> str:
    """Profile some targets; the answers as JSON, by the targets' positions."""
    with TemporaryDirectory() as directory:
        for case in cases:
            if case.name in TARGETS:
                (Path(directory) / f"{case.name}.py").write_text(TARGETS[case.name])
        asked = [
            {
                "name": number,
                "target": f"{case.name}.py" if case.name in TARGETS else case.name,
                "micro_batch": case.micro_batch,
                "micro_steps": case.micro_steps,
                "precision": case.precision,
            }
            for number, case in enumerate(cases)
        ]
        return run("profile_targets.py", json.dumps(asked), python=python, cwd=Path(directory))


def read(answer: dict[str, Any]) -> Profiled:
    """One of the answers, read."""
    memory = answer["profiled"]["memory"]
    return Profiled(
        trial=decode(Trial, answer["trial"], "trial"),
        memory=None if memory is None else decode(StepMemory, memory, "memory"),
        reason=answer["profiled"]["reason"],
        is_repeated=answer["is_repeated"],
        frozen=answer["frozen"],
    )


def by_category(totals: tuple[int, ...]) -> dict[Category, int]:
    """Bytes by category, those that are there."""
    return {category: total for category, total in zip(Category, totals, strict=True) if total}
