"""Ranks on null GPUs agree on what is the program's own, as they would on real ones."""

from __future__ import annotations

import json
import os
import sys
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from running import run_command

pytestmark = [pytest.mark.null_gpu, pytest.mark.timeout(300)]
RANKS = Path(__file__).with_name("ranks.py")
PYTHONS = [sys.executable, *(path for path in os.environ.get("OOMDOCTOR_TEST_PYTHONS", "").split(":") if path)]
TOLERATED = 4.3
FIRST_OF_SEED_0 = 0.4962565898895264
each_python = pytest.mark.parametrize("python", PYTHONS, ids=[Path(path).parents[1].name for path in PYTHONS])


@cache
def _told_by(what: str, *, ranks: int = 2, python: str = sys.executable, backend: str = "nccl") -> list[dict[str, Any]]:
    """What each rank tells, by rank, of all that it was asked to do."""
    launcher = [python, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    with TemporaryDirectory() as folder:
        program = [str(RANKS), what, f"{folder}/shared", backend]
        done = run_command(["run", "--gpu", "rtx-4090", "--", *launcher, *program], cwd=Path(folder), timeout=240)
    assert done.returncode == 0, done.stderr[-4000:]
    told = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return sorted(told, key=lambda answer: answer["rank"])


def _of(name: str, python: str) -> list[dict[str, Any]]:
    """What each rank tells of one thing; the ranks of an interpreter do all of them in one run."""
    return [rank[name] for rank in _told_by("objects,barrier,ddp,mesh", python=python)]


@each_python
def test_objects_reach_every_rank(python: str) -> None:
    """Objects that are gathered, broadcast, scattered or sent arrive as they were given, large ones too."""
    first, second = _of("objects", python)
    assert first["all"] == second["all"] == [{"rank": 0}, {"rank": 1}]
    assert (first["last"], second["last"]) == (None, [0, 10])
    assert first["sent"] == second["sent"] == [5 << 20, 2]
    assert (first["own"], second["own"]) == (0, 1)
    assert second["received"] == ["first", "second"]


@each_python
def test_a_barrier_holds(python: str) -> None:
    """No rank passes a barrier before the last has come, so what one prepares before it is there for the others."""
    assert [rank["there"] for rank in _of("barrier", python)] == [True, True]


@each_python
def test_a_mesh_of_two_dimensions_gathers(python: str) -> None:
    """The groups of a device mesh have as many ranks as their dimension, not as many as the world."""
    assert _of("mesh", python) == [{"replicate": 8, "shard": 4}] * 2


@each_python
def test_ddp_trains(python: str) -> None:
    """DDP takes no zeros for other ranks' parameters and buckets, and holds buckets, weights and AdamW's state."""
    for rank in _of("ddp", python):
        assert 4.0 <= rank["held"] < TOLERATED


def test_ddp_trains_through_the_cpu() -> None:
    """So it does where ranks talk through the CPU."""
    for rank in _told_by("ddp", backend="gloo"):
        assert 4.0 <= rank["ddp"]["held"] < TOLERATED


def test_a_single_rank_has_its_own_objects() -> None:
    """A group of one gets back what it gives."""
    (only,) = (rank["objects"] for rank in _told_by("objects", ranks=1))
    assert (only["all"], only["last"], only["own"]) == ([{"rank": 0}], [0], 0)


def test_accelerate_agrees() -> None:
    """Accelerate gives ranks one random state, which is none of zeros, and pads nothing where lengths are not known."""
    first, second = (rank["accelerate"] for rank in _told_by("consolidate,accelerate"))
    assert first["drawn"] == second["drawn"] == pytest.approx(FIRST_OF_SEED_0)
    assert first["shape"] == second["shape"] == [3, 7]


def test_an_optimizer_state_is_collected() -> None:
    """`ZeroRedundancyOptimizer` collects the state that its ranks hold."""
    assert [rank["consolidate"]["states"] for rank in _told_by("consolidate,accelerate")] == [2, None]
