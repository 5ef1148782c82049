"""What NCCL and the devices of several ranks answer; run by `torchrun`."""

from __future__ import annotations

import ctypes
import os

import torch
import torch.distributed as dist
from reporting import leave_with

from oomdoctor.engines.null_gpu.library import used_bytes

nccl = ctypes.CDLL(None)
MIB = 1 << 20
LOCAL_RANK = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(LOCAL_RANK)
counted = (torch.cuda.device_count(), torch.cuda.current_device())

dist.init_process_group("nccl", device_id=torch.device("cuda", LOCAL_RANK))
rank, size = dist.get_rank(), dist.get_world_size()
held = torch.ones(32 * MIB, dtype=torch.uint8, device="cuda")
on_first = torch.ones(32 * MIB, dtype=torch.uint8, device="cuda:0")
free = [torch.cuda.mem_get_info(device)[0] for device in range(counted[0])]
reserved = [torch.cuda.memory_reserved(device) for device in range(counted[0])]

many = [torch.empty_like(held) for _ in range(size)]
dist.all_reduce(held)
dist.all_reduce(held, op=dist.ReduceOp.AVG)
dist.broadcast(held, 0)
dist.reduce(held, 0)
dist.all_gather(many, held)
dist.all_gather_into_tensor(torch.empty(size, 1, device="cuda"), torch.ones(1, 1, device="cuda"))
dist.reduce_scatter_tensor(torch.empty(1, 1, device="cuda"), torch.ones(size, 1, device="cuda"))
dist.all_to_all_single(torch.empty(size, device="cuda"), torch.ones(size, device="cuda"))
dist.gather(held, many if rank == 0 else None, 0)
dist.scatter(held, many if rank == 0 else None, 0)
if size > 1:
    peer = (rank + 1) % size
    both = [dist.P2POp(dist.isend, held, peer), dist.P2POp(dist.irecv, many[0], peer)]
    for work in dist.batch_isend_irecv(both):
        work.wait()
subgroup = dist.new_group([0])
if rank == 0:
    dist.all_reduce(held, group=subgroup)
dist.destroy_process_group()

pointer = ctypes.c_void_p()
before = used_bytes()
assert nccl.ncclMemAlloc(ctypes.byref(pointer), ctypes.c_size_t(40 * MIB)) == 0
with_memory = used_bytes() - before
too_much = nccl.ncclMemAlloc(ctypes.byref(ctypes.c_void_p()), ctypes.c_size_t(1 << 40))
assert nccl.ncclMemFree(pointer) == 0
after_free = used_bytes() - before

leave_with(
    rank=rank,
    devices=counted,
    device_of_tensor=held.device.index,
    device_of_pointer=on_first.device.index,
    free=free,
    reserved=reserved,
    sum=int(held.sum()),
    nccl_memory=[with_memory, after_free],
    too_much=too_much,
    version=torch.cuda.nccl.version(),
)
