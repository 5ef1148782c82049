"""Tests that play one rank of a world whose other ranks do not run."""

from __future__ import annotations

from pathlib import Path

import pytest
from pytest_runs import run_pytest, write_files

pytestmark = pytest.mark.null_gpu

_TESTS = """
    import pytest
    import torch
    import torch.distributed as dist


    @pytest.fixture(scope="session")
    def rank():
        dist.init_process_group("nccl")
        yield dist.get_rank()
        dist.destroy_process_group()


    @pytest.mark.gpu_memory("7 MiB", gpu="h100-sxm", world_size=7, rank=6)
    @pytest.mark.parametrize("mib", [0, 1])
    def test_gathers(rank, mib):
        assert rank == 6
        dist.barrier()
        part = torch.empty(mib << 20, dtype=torch.uint8, device="cuda")
        dist.all_gather_into_tensor(torch.empty(7 * mib << 20, dtype=torch.uint8, device="cuda"), part)
"""


def test_a_test_plays_a_rank(tmp_path: Path) -> None:
    """A rank is a process of its own, which finds its number and its world as a launcher would tell it."""
    run = run_pytest(write_files(tmp_path, test_ranks=_TESTS))
    assert [run.outcome(f"test_gathers[{mib}]") for mib in (0, 1)] == ["passed", "failure"]
    assert 8 << 20 <= int(run.properties("test_gathers[1]")["gpu_memory_peak_bytes"]) < (8 << 20) + 4096
