"""What ranks do together; run by `torchrun`, with the names of what to do and a file that ranks may share."""

# ruff: noqa: D103 - the tests say what each is for

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

LOCAL_RANK = int(os.environ["LOCAL_RANK"])
WIDTH = 512
PARAMETER_BYTES = 4 * 4 * WIDTH * WIDTH


def objects(_: Path) -> dict[str, Any]:
    rank, size = dist.get_rank(), dist.get_world_size()
    gathered: list[Any] = [None] * size
    dist.all_gather_object(gathered, {"rank": rank})
    at_last: list[Any] | None = [None] * size if rank == size - 1 else None
    dist.gather_object(10 * rank, at_last, dst=size - 1)
    sent: list[Any] = ["x" * (5 << 20), 2] if rank == 0 else [None, None]
    dist.broadcast_object_list(sent, 0)
    scattered: list[Any] = [None]
    dist.scatter_object_list(scattered, list(range(size)) if rank == 0 else None, src=0)
    received: list[Any] = ["first", "second"] if rank == 0 else [None, None]
    if rank == 0:
        dist.send_object_list(received, size - 1)
    elif rank == size - 1:
        dist.recv_object_list(received, 0)
    lengths = [len(sent[0]), sent[1]]
    return {"all": gathered, "last": at_last, "sent": lengths, "own": scattered[0], "received": received}


def barrier(shared: Path) -> dict[str, Any]:
    if dist.get_rank() == 0:
        time.sleep(1)
        shared.touch()
    dist.barrier()
    return {"there": shared.exists()}


def ddp(_: Path) -> dict[str, Any]:
    model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))).cuda()
    wrapped = DistributedDataParallel(model, device_ids=[LOCAL_RANK])
    optimizer = torch.optim.AdamW(wrapped.parameters())
    for _step in range(3):
        wrapped(torch.ones(2, WIDTH, device="cuda")).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    torch._C._cuda_clearCublasWorkspaces()  # PyTorch counts them up to 2.7 or so
    return {"held": torch.cuda.memory_allocated() / PARAMETER_BYTES}


def mesh(_: Path) -> dict[str, Any]:
    from torch.distributed.device_mesh import init_device_mesh

    grid = init_device_mesh("cuda", (dist.get_world_size(), 1), mesh_dim_names=("replicate", "shard"))
    gathered = {}
    for name in ("replicate", "shard"):
        group = grid[name].get_group()
        whole = torch.empty(4 * dist.get_world_size(group), device="cuda")
        dist.all_gather_into_tensor(whole, torch.ones(4, device="cuda"), group=group)
        gathered[name] = len(whole)
    return gathered


def accelerate(_: Path) -> dict[str, Any]:
    from accelerate import Accelerator
    from accelerate.utils import pad_across_processes
    from accelerate.utils.random import synchronize_rng_states

    Accelerator()
    torch.manual_seed(dist.get_rank())
    synchronize_rng_states(["torch"])
    padded: Any = pad_across_processes(torch.ones(3, 7, device="cuda"), dim=1)
    return {"drawn": torch.rand(1).item(), "shape": list(padded.shape)}


def consolidate(_: Path) -> dict[str, Any]:
    from torch.distributed.optim import ZeroRedundancyOptimizer

    model = nn.Linear(WIDTH, WIDTH).cuda()
    optimizer = ZeroRedundancyOptimizer(model.parameters(), optimizer_class=torch.optim.AdamW)
    model(torch.ones(2, WIDTH, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.consolidate_state_dict(0)
    return {"states": len(optimizer.state_dict()["state"]) if dist.get_rank() == 0 else None}


if __name__ == "__main__":
    torch.cuda.set_device(LOCAL_RANK)
    dist.init_process_group(sys.argv[3])
    found = {name: globals()[name](Path(sys.argv[2])) for name in sys.argv[1].split(",")}
    line = json.dumps({"rank": dist.get_rank(), **found})
    os.write(1, f"{line}\n".encode())  # at once, so that ranks do not write into each other's lines
    dist.barrier()
    dist.destroy_process_group()
    os._exit(0)  # to take torch apart takes a second
