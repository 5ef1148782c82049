"""Train every shipped example, and drive PyTorch's allocator and the simulator through what it allocated.

Usage: example_traces.py SETTINGS...

Each example's trace is run with ample memory and with too little, under settings in turn. Prints a JSON object: what
was done, and every departure.
"""

from __future__ import annotations

import json
import sys
import warnings
from collections import Counter
from itertools import cycle, islice
from multiprocessing import get_context
from types import ModuleType
from typing import Any

import torch
from random_traces import RULES, TOTAL, Found, compared

from oomdoctor.agent.allocator_blocks import AllocationTrace
from oomdoctor.engines.allocator.caching import CachingAllocator
from oomdoctor.engines.allocator.device_memory import FIRST_ADDRESS, AllocationError, DeviceMemory
from oomdoctor.engines.allocator.settings import AllocatorSettings, parse_settings
from oomdoctor.engines.null_gpu.library import set_capacity_bytes
from oomdoctor.examples import gpt2, lstm, resnet50, unet, vit_b16
from oomdoctor.trial.replay import record_allocations

SIZES = {gpt2: 2, lstm: 8, resnet50: 4, unet: 1, vit_b16: 2}


def trace_of(example: ModuleType, micro_batch: int) -> tuple[AllocationTrace, int]:
    """What building a model and two training steps allocate and free, and the most that was allocated."""
    trace = []
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    with record_allocations(trace):
        with torch.device("meta"):
            model = example.build_model()
        model.to_empty(device="cuda")
        build_optimizer = getattr(example, "build_optimizer", lambda model: torch.optim.AdamW(model.parameters()))
        optimizer = build_optimizer(model)
        for _ in range(2):
            batch = [tensor.to("cuda") for tensor in example.make_batch(micro_batch)]
            example.training_step(model, batch).backward()
            optimizer.step()
            optimizer.zero_grad()
        del model, optimizer, batch
    return trace, torch.cuda.max_memory_allocated() - before


def all_traces() -> dict[str, tuple[AllocationTrace, int]]:
    """The traces of all examples; in a process of its own, because training leaves workspaces on the card."""
    torch.cuda.init()
    return {example.__name__.rpartition(".")[2]: trace_of(example, size) for example, size in SIZES.items()}


def allocate(simulated: CachingAllocator, size: int) -> tuple[Any, Any]:
    """Allocate in both; their addresses, or the texts of their errors."""
    try:
        real = torch._C._cuda_cudaCachingAllocator_raw_alloc(size, 0)
    except torch.OutOfMemoryError as error:
        real = str(error)
    try:
        return real, simulated.malloc(size)
    except AllocationError as error:
        return real, str(error)


def run(trace: AllocationTrace, capacity: int, settings: AllocatorSettings, done: Counter[str]) -> Found:
    """Run a trace until memory is out; the first departure."""
    set_capacity_bytes(capacity)
    simulated = CachingAllocator(DeviceMemory(TOTAL), settings, RULES)
    simulated.memory.total_bytes = capacity
    torch.cuda.set_per_process_memory_fraction(1.0)
    simulated.set_memory_fraction(1.0)
    torch.cuda.reset_peak_memory_stats()
    torch.cuda.reset_accumulated_memory_stats()
    held, base, found = [], None, []
    for event in trace:
        if event < 0:
            real, address = held[-1 - event] or (None, None)
            torch._C._cuda_cudaCachingAllocator_raw_delete(real)
            simulated.free(address)
            held[-1 - event] = None
        else:
            real, address = allocate(simulated, event)
            if isinstance(real, str) or isinstance(address, str):
                found = [] if real == address else [("allocate", real, address)]
                done["ooms"] += 1
                break
            held.append((real, address))
            base = real - (address - FIRST_ADDRESS) if base is None else base
            found = [("address", real - base, address)] if real - base != address - FIRST_ADDRESS else []
        done["events"] += 1
        found = found or compared(simulated)
        if found:
            break
    release(simulated, [*filter(None, held)])
    return found


def release(simulated: CachingAllocator, held: list[tuple[Any, Any]]) -> None:
    """Free everything, ranges of addresses included that nothing could be mapped into."""
    set_capacity_bytes(TOTAL)
    simulated.memory.total_bytes = TOTAL
    while True:
        for real, address in held:
            torch._C._cuda_cudaCachingAllocator_raw_delete(real)
            simulated.free(address)
        torch.cuda.empty_cache()
        simulated.empty_cache()
        pools = simulated.heap.small, simulated.heap.large
        if not any(blocks for pool in pools for blocks in pool.unmapped.values()):
            break
        held = [allocate(simulated, 1), allocate(simulated, 2**21)]


def main(*texts: str) -> None:
    """All examples, under settings in turn so that each of them has its turn."""
    warnings.simplefilter("ignore")
    with get_context("fork").Pool(1) as pool:
        traces = pool.apply(all_traces)
    torch.cuda.init()
    done, departures = {}, []
    turn = cycle(texts)
    for name, (trace, peak) in traces.items():
        counted = done[name] = Counter()
        for text in islice(turn, -(-len(texts) // len(SIZES))):
            torch.cuda.memory._set_allocator_settings(text)
            for capacity in (TOTAL, int(1.01 * peak), int(0.9 * peak)):
                found = run(trace, capacity, parse_settings(text, RULES), counted)
                departures += [{"example": name, "settings": text, "found": repr(found)[:1500]}] if found else []
                counted["runs"] += 1
    print(json.dumps({"done": done, "departures": departures}))


if __name__ == "__main__":
    main(*sys.argv[1:])
