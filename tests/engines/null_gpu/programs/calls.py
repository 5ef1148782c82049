"""Call the null GPU's C functions directly, with no torch: random allocations from several threads, one account."""

# ruff: noqa: D103
from __future__ import annotations

import ctypes
import itertools
import random
import threading

from reporting import leave_with

from oomdoctor.engines.null_gpu.library import capacity_bytes, peak_used_bytes, set_capacity_bytes, used_bytes

PAGE = 2 << 20
OUT_OF_MEMORY = 2
cuda = ctypes.CDLL(None)
cuda.cudaFree.argtypes = [ctypes.c_void_p]
cuda.cudaMalloc.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
cuda.cuMemCreate.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p, ctypes.c_uint64]
cuda.cuMemMap.argtypes = [ctypes.c_size_t, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_void_p, ctypes.c_uint64]
cuda.cuMemUnmap.argtypes = [ctypes.c_size_t, ctypes.c_size_t]
cuda.cuMemRelease.argtypes = [ctypes.c_void_p]
cuda.cuMemAddressReserve.argtypes = [
    ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_uint64,
]  # fmt: skip


def pages(size: int) -> int:
    return -(-size // PAGE) * PAGE


def allocate(size: int) -> int | None:
    address = ctypes.c_void_p()
    error = cuda.cudaMalloc(ctypes.byref(address), size)
    assert error in (0, OUT_OF_MEMORY), error
    return None if error else address.value


def one_thread(seed: int) -> dict[int, int]:
    """Allocate and free at random; what is left is returned by address."""
    choose = random.Random(seed)
    held: dict[int, int] = {}
    for _ in range(2000):
        if held and choose.random() < 0.45:
            address = choose.choice(list(held))
            assert cuda.cudaFree(address) == 0
            del held[address]
        else:
            size = choose.choice([1, 512, PAGE - 1, PAGE, PAGE + 1, 20 << 20, choose.randrange(1, 200 << 20)])
            address = allocate(size)
            if address is not None:
                assert address not in held
                held[address] = pages(size)
    return held


results: list[dict[int, int]] = []
threads = [threading.Thread(target=lambda seed=seed: results.append(one_thread(seed))) for seed in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
ranges = sorted((address, size) for held in results for address, size in held.items())
overlapping = sum(a + size > b for (a, size), (b, _) in itertools.pairwise(ranges))
account = (used_bytes(), sum(size for _, size in ranges))
for address, _ in ranges:
    assert cuda.cudaFree(address) == 0
after_free = used_bytes()
double_free = cuda.cudaFree(ranges[0][0]) if ranges else -1

# Blocks in y, and threads a block, up to the limit and beyond.
launches = [
    cuda.cuLaunchKernel(None, 1, blocks, 1, threads, 1, 1, 0, None, None, None)
    for blocks, threads in ((65535, 1024), (65536, 1), (1, 1025), (0, 1))
]


class Extent(ctypes.Structure):
    """CUDA's dim3."""

    _fields_ = (("x", ctypes.c_uint), ("y", ctypes.c_uint), ("z", ctypes.c_uint))


cuda.cudaLaunchKernel.argtypes = [ctypes.c_void_p, Extent, Extent, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]
runtime_launches = [
    cuda.cudaLaunchKernel(None, Extent(1, 1, blocks), Extent(32, 1, 1), None, 0, None) for blocks in (65535, 65536)
]
last_errors = [cuda.cudaPeekAtLastError(), cuda.cudaGetLastError(), cuda.cudaGetLastError()]

# Memory that is mapped outlives its handle, and both kinds of memory share the account.
set_capacity_bytes(64 << 20)
handle, base = ctypes.c_void_p(), ctypes.c_size_t()
created = [
    cuda.cuMemCreate(ctypes.byref(handle), 40 << 20, None, 0),
    cuda.cuMemAddressReserve(ctypes.byref(base), 1 << 40, 0, 0, 0),
    cuda.cuMemMap(base.value, 40 << 20, 0, handle, 0),
    cuda.cuMemRelease(handle),
]
with_mapping = used_bytes()
beside_mapping = [allocate(25 << 20), allocate(24 << 20)]
cuda.cuMemUnmap(base.value, 40 << 20)
leave_with(
    overlapping=overlapping,
    account=account,
    after_free=after_free,
    double_free=double_free,
    peak_within_capacity=peak_used_bytes() <= 24 << 30,
    created=created,
    with_mapping=with_mapping,
    beside_mapping=[address is not None for address in beside_mapping],
    at_last=used_bytes(),
    launches=launches,
    runtime_launches=runtime_launches,
    last_errors=last_errors,
    capacity=capacity_bytes(),
)
