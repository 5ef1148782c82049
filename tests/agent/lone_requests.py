"""What a lone rank asks of the others, and what becomes of it; a JSON object on standard output."""

# ruff: noqa: D103 - the tests say what each is for

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing


def gathered() -> Any:
    found: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(found, {"rank": dist.get_rank()})
    return found


def gathered_at_own() -> Any:
    found: list[Any] = [None] * dist.get_world_size()
    dist.gather_object("own", found, dst=dist.get_rank())
    return found


def broadcast_by(rank: int) -> Callable[[], Any]:
    def broadcast() -> Any:
        objects = [f"of {dist.get_rank()}"]
        dist.broadcast_object_list(objects, src=rank)
        return objects

    return broadcast


def scattered() -> Any:
    objects: list[Any] = [None]
    given = list(range(dist.get_world_size())) if dist.get_rank() == 0 else None
    dist.scatter_object_list(objects, given, src=0)
    return objects


def received() -> Any:
    objects = [None]
    dist.recv_object_list(objects, src=(dist.get_rank() + 1) % dist.get_world_size())
    return objects


def store_key() -> Any:
    return dist.TCPStore("localhost", 1, 8, is_master=False).get("config")


def cpu_values() -> Any:
    group = dist.new_group(backend="gloo")
    value = torch.tensor([5])
    dist.broadcast(value, src=7, group=group)
    return value.tolist()


def votes() -> Any:
    vote, count = torch.tensor([1], device="cuda"), torch.tensor([[3, 4]], device="cuda")
    dist.all_reduce(vote, op=dist.ReduceOp.MIN)
    dist.all_reduce(count)
    return [vote.item(), count.tolist()]


def lengths() -> Any:
    length = torch.tensor([7 if dist.get_rank() == 0 else 0], device="cuda")
    dist.broadcast(length, src=0)
    return length.item()


def stages() -> Any:
    if torch.__version__ < "2.7":
        return None  # stages do not ask each other
    from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

    stage = PipelineStage(torch.nn.Linear(8, 8).cuda(), dist.get_rank(), dist.get_world_size(), torch.device("cuda"))
    schedule = ScheduleGPipe(stage, n_microbatches=8, loss_fn=torch.nn.functional.mse_loss)
    return schedule.step(*([torch.ones(8, 8, device="cuda")] if dist.get_rank() == 0 else []))


def splits() -> Any:
    from torch.distributed.device_mesh import init_device_mesh

    mesh = init_device_mesh("cuda", (2, 4), mesh_dim_names=("replicate", "shard"))
    whole = torch.empty(4 * 4, device="cuda")
    dist.all_gather_into_tensor(whole, torch.ones(4, device="cuda"), group=mesh["shard"].get_group())
    return [mesh["replicate"].get_local_rank(), mesh["shard"].get_local_rank(), len(mesh["shard"].mesh)]


def spawned() -> Any:
    return torch.multiprocessing.spawn(print, nprocs=2)


def called() -> Any:
    from torch.distributed import rpc

    return rpc.init_rpc("worker", rank=0, world_size=2)


def gloo_world() -> Any:
    dist.destroy_process_group()
    return dist.init_process_group("gloo")


ASKED: dict[str, Callable[[], Any]] = {
    "gathered": gathered,
    "gathered_at_own": gathered_at_own,
    "broadcast": broadcast_by(int(os.environ["RANK"])),
    "broadcast_by_first": broadcast_by(0),
    "broadcast_by_fifth": broadcast_by(5),
    "scattered": scattered,
    "received": received,
    "store_key": store_key,
    "cpu_values": cpu_values,
    "votes": votes,
    "lengths": lengths,
    "stages": stages,
    "splits": splits,
    "spawned": spawned,
    "called": called,
    "gloo_world": gloo_world,
}


def main() -> None:
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    dist.init_process_group("nccl", device_id=torch.device("cuda", local_rank))
    dist.barrier()
    found = {}
    for name, ask in ASKED.items():
        try:
            found[name] = ask()
        except RuntimeError as error:
            found[name] = f"{type(error).__name__}: {error}"
    print(json.dumps(found))
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
