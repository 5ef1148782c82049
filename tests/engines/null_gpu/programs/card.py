"""Tell what PyTorch sees of the card, before and after the capacity changes."""

# ruff: noqa: D103
from __future__ import annotations

import torch
from reporting import leave_with

from oomdoctor.engines.null_gpu import library as null_gpu


def memory() -> tuple[int, int]:
    return torch.cuda.mem_get_info()


def fits(size: int) -> bool:
    try:
        torch.empty(size, dtype=torch.uint8, device="cuda")
    except torch.OutOfMemoryError:
        return False
    return True


properties = torch.cuda.get_device_properties(0)
at_first = memory()
held = torch.empty(3 << 20, dtype=torch.uint8, device="cuda")
with_three_mib = memory()
reserved = torch.cuda.memory_reserved()
null_gpu.set_capacity_bytes(1 << 30)
message = ""
try:
    torch.empty(2 << 30, dtype=torch.uint8, device="cuda")
except torch.OutOfMemoryError as error:
    message = str(error)
leave_with(
    name=torch.cuda.get_device_name(0),
    capability=torch.cuda.get_device_capability(0),
    total=properties.total_memory,
    sm_count=properties.multi_processor_count,
    threads_per_sm=properties.max_threads_per_multi_processor,
    warp=properties.warp_size,
    l2=getattr(properties, "L2_cache_size", None),
    shared=getattr(properties, "shared_memory_per_block_optin", None),
    devices=torch.cuda.device_count(),
    cuda=torch.version.cuda,
    at_first=at_first,
    with_three_mib=with_three_mib,
    reserved=reserved,
    after_change=memory(),
    capacity=null_gpu.capacity_bytes(),
    used=null_gpu.used_bytes(),
    message=message,
    one_gib_less_a_segment_fits=fits((1 << 30) - (20 << 20)),
    item=torch.ones(4, device="cuda").sum().item(),
    back_on_host=torch.ones(4, device="cuda").cpu().tolist(),
    pinned=torch.ones(4).pin_memory().is_pinned(),
)
