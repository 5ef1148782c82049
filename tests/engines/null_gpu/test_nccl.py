"""NCCL on null GPUs, and the devices that ranks of one machine see."""

from __future__ import annotations

import json
import os
import subprocess
from functools import cache
from typing import Any

import pytest
from null_gpu_runs import CARD, MIB, PACKAGE_ROOT, PROGRAMS, build_of, each_python
from running import python_path

from oomdoctor.engines.null_gpu.library import environment

pytestmark = [pytest.mark.null_gpu, pytest.mark.timeout(300)]
CAPACITY = CARD.total_bytes - CARD.context_bytes


@cache
def _ranks(python: str, count: int) -> list[dict[str, Any]]:
    """What each of so many ranks tells, by rank."""
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(count)]
    done = subprocess.run(
        [python, "-W", "ignore", *launcher, str(PROGRAMS / "ranks_devices.py")],
        env=environment(CARD, build_of(python), {**os.environ, "PYTHONPATH": python_path(PACKAGE_ROOT)}),
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    told = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return sorted(told, key=lambda answer: answer["rank"])


@each_python
@pytest.mark.parametrize("count", [1, 2])
def test_serves_what_torch_calls(python: str, count: int) -> None:
    """Collectives, sends, subgroups and their ends are served, and what is received is zeros."""
    ranks = _ranks(python, count)
    assert [(rank["rank"], rank["unknown"], rank["sum"]) for rank in ranks] == [(i, [], 0) for i in range(count)]
    assert ranks[0]["version"][0] == 2


@each_python
def test_each_rank_has_its_device(python: str) -> None:
    """A rank uses the device of its number; alone on a machine it sees one."""
    assert [rank["devices"] for rank in _ranks(python, 1)] == [[1, 0]]
    assert [(rank["devices"], rank["device_of_tensor"]) for rank in _ranks(python, 2)] == [([2, 0], 0), ([2, 1], 1)]


@each_python
def test_each_device_has_its_account(python: str) -> None:
    """What a rank puts on another's device is taken from that one, in the rank's own process."""
    first, second = _ranks(python, 2)
    for rank in (first, second):
        assert rank["free"] == [CAPACITY - reserved for reserved in rank["reserved"]]
    assert min(second["reserved"]) == 32 * MIB
    assert first["reserved"] == [64 * MIB, 0]


@each_python
def test_counts_memory_that_nccl_gives(python: str) -> None:
    """`ncclMemAlloc` takes from the device, fails where that has no more, and gives back what is freed."""
    (only,) = _ranks(python, 1)
    unhandled_cuda_error = 1
    assert only["nccl_memory"] == [40 * MIB, 0]
    assert only["too_much"] == unhandled_cuda_error
