"""Capture CUDA graphs as training does: a whole step with a second stream, a graphed callable, and what must not be."""

# ruff: noqa: D103
from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from typing import Any

import torch
from reporting import leave_with
from torch import nn

from oomdoctor.agent.null_gpu import assumptions
from oomdoctor.engines.null_gpu.library import used_bytes

MIB = 1 << 20


def make_model() -> nn.Module:
    return nn.Sequential(nn.Linear(256, 1024), nn.GELU(), nn.Dropout(0.1), nn.Linear(1024, 256)).cuda()


def in_private_pools() -> int:
    return sum(one["total_size"] for one in torch.cuda.memory_snapshot() if one["segment_pool_id"] != (0, 0))


def captured(step: Callable[[], None], seen: dict[str, Any]) -> torch.cuda.CUDAGraph:
    graph = torch.cuda.CUDAGraph()
    before = in_private_pools()
    with torch.cuda.graph(graph):
        main, side = torch.cuda.current_stream(), torch.cuda.Stream()
        side.wait_stream(main)
        seen["capturing"] = [torch.cuda.is_current_stream_capturing()]
        with torch.cuda.stream(side):
            seen["kept"] = torch.empty(40 * MIB, dtype=torch.uint8, device="cuda")
            seen["capturing"].append(torch.cuda.is_current_stream_capturing())
        main.wait_stream(side)
        step()
    seen["capturing"].append(torch.cuda.is_current_stream_capturing())
    seen["pool"] = in_private_pools() - before
    return graph


model = make_model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
batch = torch.randn(512, 256, device="cuda")


def step() -> None:
    optimizer.zero_grad(set_to_none=True)
    model(batch).square().mean().backward()
    optimizer.step()


stream = torch.cuda.Stream()
with torch.cuda.stream(stream):
    for _ in range(3):
        step()
torch.cuda.current_stream().wait_stream(stream)
eager = torch.cuda.max_memory_allocated()
seen: dict[str, Any] = {}
graph = captured(step, seen)
peak = torch.cuda.max_memory_allocated()
for _ in range(3):
    graph.replay()
accounts = [torch.cuda.memory_reserved(), used_bytes()]
replayed = torch.cuda.max_memory_allocated()
optimizer.zero_grad(set_to_none=True)  # the gradients are of the graph's pool
del seen["kept"], graph
torch.cuda.empty_cache()
left = in_private_pools()

before = torch.cuda.memory_allocated()
graphed = torch.cuda.make_graphed_callables(make_model(), (torch.randn(512, 256, device="cuda", requires_grad=True),))
for _ in range(2):
    graphed(batch).sum().backward()
callable_bytes = torch.cuda.memory_allocated() - before

errors = []
if sys.argv[1:] == ["waits"]:  # 2.6 cannot go on after a capture that failed, on any GPU
    for wait in (lambda: float(batch.sum()), torch.cuda.synchronize):
        try:
            with torch.cuda.graph(torch.cuda.CUDAGraph()):
                wait()
        except RuntimeError as error:
            errors.append(str(error).partition("\n")[0])

# An object that a graph keeps is released with the last that is made of it.
runtime, released = ctypes.CDLL(None), []
release = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(released.append)
kept, made, executable = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
runtime.cudaGraphCreate(ctypes.byref(made), 0)
runtime.cudaUserObjectCreate(ctypes.byref(kept), ctypes.c_void_p(7), release, 1, 1)
runtime.cudaGraphRetainUserObject(made, kept, 1, 1)
runtime.cudaGraphInstantiate(ctypes.byref(executable), made, ctypes.c_uint64(0))
runtime.cudaGraphDestroy(made)
while_kept = [*released]
runtime.cudaGraphExecDestroy(executable)
leave_with(
    eager=eager, peak=peak, replayed=replayed, accounts=accounts, pool=seen["pool"], capturing=seen["capturing"],
    left=left, callable=callable_bytes, errors=errors, released=[while_kept, released], assumptions=assumptions(),
)  # fmt: skip
