"""Train in each way in which ranks share a model, and tell the memory of each phase.

For each way it forks all ranks of a world, which train together, and then some of them again, each alone. Each writes a
line, and has a process of its own: what a way leaves in cycles and in NCCL's threads goes when it goes.
Arguments: a folder for the objects of lone ranks, the world size, and the lone ranks with commas between.
"""

# ruff: noqa: D103 - the tests say what each is for

from __future__ import annotations

import gc
import json
import os
import runpy
import signal
import sys
import traceback
from collections.abc import Callable
from typing import Any

import torch
import torch._dynamo  # each rank's optimizer would import it, which takes as long as training
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

WIDTH, LAYERS, BATCH = 520, 3, 8
LONGEST_SECONDS = 30
Built = tuple[nn.Module, torch.optim.Optimizer]


def make_model(outputs: int = 1001) -> nn.Sequential:
    blocks = [nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)) for _ in range(LAYERS)]
    return nn.Sequential(*blocks, nn.Linear(WIDTH, outputs)).cuda()


def ddp() -> Built:
    model = DistributedDataParallel(make_model(), device_ids=[torch.cuda.current_device()])
    return model, torch.optim.AdamW(model.parameters())


def zero() -> Built:
    model = DistributedDataParallel(make_model(), device_ids=[torch.cuda.current_device()])
    return model, ZeroRedundancyOptimizer(model.parameters(), optimizer_class=torch.optim.AdamW)


def shard(model: nn.Sequential, mesh: DeviceMesh) -> Built:
    for block in list(model)[:-1]:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model, torch.optim.AdamW(model.parameters())


def fsdp2() -> Built:
    return shard(make_model(), init_device_mesh("cuda", (dist.get_world_size(),)))


def hsdp() -> Built:
    half = dist.get_world_size() // 2
    return shard(make_model(), init_device_mesh("cuda", (2, half), mesh_dim_names=("replicate", "shard")))


def fsdp1() -> Built:
    policy = ModuleWrapPolicy({nn.Linear})
    device = torch.cuda.current_device()
    model = FullyShardedDataParallel(make_model(), auto_wrap_policy=policy, device_id=device, use_orig_params=True)
    return model, torch.optim.AdamW(model.parameters())


def tensor_parallel() -> Built:
    half = dist.get_world_size() // 2
    mesh = init_device_mesh("cuda", (half, 2), mesh_dim_names=("dp", "tp"))
    model = make_model(1000)  # FSDP divides what tensor parallelism has divided into equal parts only
    for block in list(model)[:-1]:
        parallelize_module(block, mesh["tp"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
    parallelize_module(model, mesh["tp"], {str(LAYERS): ColwiseParallel(output_layouts=Replicate())})
    return shard(model, mesh["dp"])


WAYS: dict[str, Callable[[], Built]] = {
    "ddp": ddp, "zero": zero, "fsdp1": fsdp1, "fsdp2": fsdp2, "hsdp": hsdp, "tensor_parallel": tensor_parallel,
}  # fmt: skip


def measured(way: Callable[[], Built]) -> list[list[int]]:
    """Train three steps; return allocated and reserved bytes at the peak and at the end of each phase."""
    phases: list[list[int]] = []

    def ended() -> None:
        peaks = [torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()]
        phases.append([*peaks, torch.cuda.memory_allocated(), torch.cuda.memory_reserved()])
        torch.cuda.reset_peak_memory_stats()

    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    model, optimizer = way()
    ended()
    for _ in range(3):
        batch = torch.ones(BATCH, WIDTH, device="cuda")
        loss = model(batch).sum()
        ended()
        loss.backward()
        ended()
        optimizer.step()
        ended()
        optimizer.zero_grad()
    return phases


def train(way: str, rank: int, world: int, **variables: str) -> None:
    """Be one rank: start the agent, train in one way, tell and end."""
    signal.alarm(LONGEST_SECONDS)  # where another rank has failed
    os.environ["OOMDOCTOR_RUN_DIRECTORY"] = sys.argv[1]
    os.environ.update(
        RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(world), LOCAL_WORLD_SIZE=str(world), **variables
    )
    runpy.run_path(os.environ["OOMDOCTOR_TEST_AGENT"])
    gc.disable()
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl")
    line = json.dumps({"rank": rank, "is_lone": bool(variables), "way": way, "phases": measured(WAYS[way])})
    os.write(1, f"{line}\n".encode())  # at once, so that ranks do not write into each other's lines
    dist.barrier()


def fork(*arguments: Any, **named: str) -> int:
    """Return the process that trains."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            train(*arguments, **named)
            code = 0
        except BaseException:  # noqa: BLE001 - the end of this process
            traceback.print_exc()
        finally:
            os._exit(code)
    return child


def main() -> None:
    folder, world, lone = sys.argv[1], int(sys.argv[2]), sys.argv[3].split(",")
    codes = []
    for way in WAYS:
        store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)  # as the launcher's own
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(store.port), TORCHELASTIC_USE_AGENT_STORE="True")
        together = [fork(way, rank, world) for rank in range(world)]
        codes += [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in together]
        for rank in map(int, lone):
            child = fork(way, rank, world, OOMDOCTOR_LONE_OBJECTS=folder)
            codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    sys.exit(any(codes))


if __name__ == "__main__":
    main()
