"""Drive PyTorch's allocator and the simulator through the same random traces, and compare them after every event.

Usage: random_traces.py SEED TRACES EVENTS [SETTINGS...]

Each of the settings is told to the running allocator and gets so many traces; without any, the environment's hold.
Prints a JSON object: what was done, and every departure.
"""

from __future__ import annotations

import json
import os
import random
import sys
import warnings
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch

from oomdoctor.engines.allocator.caching import CachingAllocator
from oomdoctor.engines.allocator.device_memory import FIRST_ADDRESS, AllocationError, DeviceMemory
from oomdoctor.engines.allocator.settings import AllocatorSettings, parse_settings, rules_of, settings_from_environment
from oomdoctor.errors import OomdoctorError

TOTAL = int(os.environ["OOMDOCTOR_NULL_TOTAL_BYTES"])
CONTEXT = int(os.environ["OOMDOCTOR_NULL_CONTEXT_BYTES"])
RULES = rules_of(torch.__version__)
EDGES = [1, 511, 512, 513, 2**20 - 1, 2**20, 2**20 + 1, 10 * 2**20 - 512, 10 * 2**20, 19 * 2**20, 20 * 2**20, 2**30]
DRIFTING = ("inactive_split", "inactive_split_bytes")
COUNTED = ("allocation", "active", "allocated_bytes", "active_bytes", "requested_bytes")
HELD = {
    "segment": "segments",
    "reserved_bytes": "reserved_bytes",
    "inactive_split": "inactive_split",
    "inactive_split_bytes": "inactive_split_bytes",
}
DOUBTFUL = (
    "max_split_size_mb:19",
    "max_split_size_mb:20",
    "max_split_size_mb:21",
    "max_non_split_rounding_mb:20",
    "max_non_split_rounding_mb:22",
    "large_segment_size_mb:10",
    "large_segment_size_mb:11",
    "large_segment_size_mb:40,max_split_size_mb:39",
    "garbage_collection_threshold:0",
    "garbage_collection_threshold:0.5",
    "garbage_collection_threshold:1",
    "roundup_power2_divisions:3",
    "roundup_power2_divisions:0",
    "roundup_power2_divisions:[256:0,>:4]",
    "roundup_power2_divisions:[255:4]",
    "expandable_segments:true",
    "expandable_segments:False",
    "throw_on_cudamalloc_oom:False",
    "throw_on_cudamalloc_oom:0",
    "per_process_memory_fraction:1.0",
    "per_process_memory_fraction:1.1",
    "pinned_num_register_threads:2",
    "pinned_use_background_threads:False",
    "pinned_reserve_segment_size_mb:64",
    "expandable_segments_reserve:0.5",
    "no_such_key:1",
    "backend:native",
    "backend:other",
)

Found = list[Any]
"""Where the simulator departs; nothing where it does not."""


class Pair:
    """PyTorch's allocator and the simulator side by side."""

    def __init__(self, settings: AllocatorSettings, base: int, streams: list[torch.cuda.Stream]) -> None:
        self.simulated = CachingAllocator(DeviceMemory(TOTAL, CONTEXT), settings, RULES)
        self.base = base
        self.streams = streams
        self.numbers = [stream.cuda_stream for stream in streams]
        self.held = []
        self.crossed = False
        torch.cuda.set_per_process_memory_fraction(settings.memory_fraction)
        self.simulated.set_memory_fraction(settings.memory_fraction)
        torch.cuda.reset_peak_memory_stats()
        torch.cuda.reset_accumulated_memory_stats()

    def allocate(self, size: int, at: int) -> tuple[object, object]:
        """Allocate in both; the texts of their errors."""
        torch.cuda.set_stream(self.streams[at])
        real = simulated = None
        try:
            tensor = torch.empty(size, dtype=torch.uint8, device="cuda")
        except torch.OutOfMemoryError as error:
            real = str(error)
        try:
            address = self.simulated.malloc(size, self.numbers[at])
        except AllocationError as error:
            simulated = str(error)
        if real is None and simulated is None:
            self.held.append((tensor, address))
            offset = tensor.data_ptr() - self.base if size else 0
            return offset, address - FIRST_ADDRESS if size else address
        if simulated is None:
            self.simulated.free(address)
        return real, simulated

    def free(self, at: int) -> None:
        """Free in both."""
        _, address = self.held.pop(at)
        self.simulated.free(address)

    def record(self, at: int, stream: int) -> None:
        """Use a block on another stream in both."""
        tensor, address = self.held[at]
        tensor.record_stream(self.streams[stream])
        self.crossed = self.crossed or bool(address)
        if address:
            self.simulated.record_stream(address, self.numbers[stream])

    def empty(self) -> None:
        """Give back what is cached in both."""
        torch.cuda.empty_cache()
        self.simulated.empty_cache()

    def limit(self, fraction: float) -> None:
        """Limit both."""
        torch.cuda.set_per_process_memory_fraction(fraction)
        self.simulated.set_memory_fraction(fraction)

    def close(self) -> None:
        """Free what is left, ranges of addresses included that nothing could be mapped into."""
        self.limit(1.0)
        self.release()
        while self.has_ranges():
            for stream in range(len(self.streams)):
                self.allocate(1, stream)
                self.allocate(2**21, stream)
            self.release()

    def release(self) -> None:
        """Free every block, and give it back."""
        while self.held:
            self.free(-1)
        self.empty()

    def has_ranges(self) -> bool:
        """Whether there are unmapped addresses."""
        pools = self.simulated.heap.small, self.simulated.heap.large
        return any(blocks for pool in pools for blocks in pool.unmapped.values())

    def difference(self) -> Found:
        """The first number in which they differ."""
        return compared(self.simulated, drifts=self.crossed)

    def difference_now(self) -> Found:
        """The same of what is there now, which leaves the simulator's peaks to be taken when they must be."""
        real, counted = torch._C._cuda_memoryStats(0), self.simulated.heap.statistics
        own = {name: counted.current(index) for index, name in enumerate(COUNTED)}
        own |= {name: getattr(counted, attribute).current for name, attribute in HELD.items()}
        found = [(name, real[name]["all"]["current"], now) for name, now in own.items()]
        found += [("num_alloc_retries", real["num_alloc_retries"], counted.retries)]
        found += [("num_ooms", real["num_ooms"], counted.ooms)]
        return [difference for difference in found if difference[1] != difference[2]]

    def layout(self) -> Found:
        """Whether the segments and their blocks are the same."""
        real = [
            (
                segment["address"] - self.base,
                segment["total_size"],
                segment["stream"],
                segment["segment_type"] == "small",
                segment["is_expandable"],
                [(block["size"], block["state"]) for block in segment["blocks"]],
            )
            for segment in torch.cuda.memory_snapshot()
        ]
        simulated = [
            (
                segment.address - FIRST_ADDRESS,
                segment.size,
                segment.stream,
                segment.small,
                segment.expandable,
                [(block.size, block.state) for block in segment.blocks],
            )
            for segment in self.simulated.segments()
        ]
        return [] if real == simulated else [("segments", real, simulated)]


def compared(simulated: CachingAllocator, *, drifts: bool = False) -> Found:
    """Every number of the statistics in which the simulator differs from PyTorch."""
    real, own = torch._C._cuda_memoryStats(0), simulated.memory_stats()
    real.pop("reserved_bytes_by_private_pools", None)
    real["max_split_size"] = own["max_split_size"]  # what it was when the process began
    if drifts and real != own:
        real, own = current_only(real), current_only(own)
    return [] if real == own else [(name, real[name], own.get(name)) for name in real if real[name] != own.get(name)]


def current_only(stats: dict[str, Any]) -> dict[str, Any]:
    """Where several streams are done at once, they free in no order that is known, and merge in between."""
    return stats | {name: {kind: of["current"] for kind, of in stats[name].items()} for name in DRIFTING}


SIZES: list[tuple[float, Callable[[random.Random], int]]] = [
    (15, lambda chance: chance.choice(EDGES)),
    (1, lambda chance: chance.choice([0, 2**60 - 1, 2**60])),
    (14, lambda chance: 512 * chance.randrange(1, 12)),
    (10, lambda chance: chance.randrange(1, 2**20)),
    (10, lambda chance: chance.randrange(2**20, 12 * 2**20)),
    (15, lambda chance: 2**20 * chance.choice([2, 4, 5, 12, 22, 24, 42, 44, 64, 84])),
    (20, lambda chance: chance.randrange(10 * 2**20, 500 * 2**20)),
    (15, lambda chance: chance.randrange(300 * 2**20, 3 * 2**30)),
]
"""Kinds of sizes, each with its weight: mostly such where rules change or blocks fit exactly, up to some GiB."""


def size(chance: random.Random) -> int:
    """Bytes of a request."""
    (draw,) = chance.choices([draw for _, draw in SIZES], [weight for weight, _ in SIZES])
    return draw(chance)


def step(chance: random.Random, pair: Pair, done: Counter[str]) -> Found:
    """Do one thing in both; what they answered where it differs."""
    kind = chance.random()
    if kind < 0.55 or not pair.held:
        stream = 0 if chance.random() < 0.7 else chance.randrange(len(pair.streams))
        asked = size(chance)
        real, simulated = pair.allocate(asked, stream)
        done["ooms"] += isinstance(real, str)
        return [] if real == simulated else [("allocate", asked, real, simulated)]
    if kind < 0.9:
        pair.free(chance.randrange(len(pair.held)))
    elif kind < 0.95:
        pair.record(chance.randrange(len(pair.held)), chance.randrange(len(pair.streams)))
    elif kind < 0.97:
        pair.empty()
    else:
        pair.limit(chance.choice([0.3, 0.5, 0.8, 1.0, 1.0]))
    return []


def run(seed: int, events: int, pair: Pair, done: Counter[str]) -> Found:
    """One trace; the first departure of the simulator from PyTorch."""
    chance = random.Random(seed)
    for event in range(events):
        found = step(chance, pair, done) or pair.difference_now()
        if event % 5 == 4:
            found = found or pair.difference()
        if event % 25 == 24:
            found = found or pair.layout()
        done["events"] += 1
        if found:
            return [{"seed": seed, "event": event, "found": repr(found)[:1500]}]
    stats = torch._C._cuda_memoryStats(0)
    done["retries"] += stats["num_alloc_retries"]
    done["rejections"] += stats.get("num_oom_rejections", 0)
    done["releases"] += stats["num_device_free"]
    return []


def judge(text: str) -> tuple[bool, bool]:
    """Whether PyTorch takes settings, and whether we do."""
    verdicts = []
    for take in (torch.cuda.memory._set_allocator_settings, lambda text: parse_settings(text, RULES)):
        try:
            take(text)
        except (RuntimeError, ValueError, OomdoctorError):
            verdicts.append(False)
        else:
            verdicts.append(True)
    return verdicts[0], verdicts[1]


def main(first_seed: int, traces: int, events: int, *texts: str) -> None:
    """All traces under all settings."""
    warnings.simplefilter("ignore")
    torch.cuda.init()
    base = torch.empty(1, device="cuda").data_ptr()
    torch.cuda.empty_cache()
    streams = [torch.cuda.default_stream(), torch.cuda.Stream(), torch.cuda.Stream()]
    done, departures = {}, []
    for number, text in enumerate(texts or [None]):
        settings = settings_from_environment(os.environ, RULES) if text is None else parse_settings(text, RULES)
        if text is not None:
            torch.cuda.memory._set_allocator_settings(text)
        counted = done[text or ""] = Counter()
        for trace in range(traces):
            pair = Pair(settings, base, streams)
            departures += run(first_seed + 10_000 * number + trace, events, pair, counted)
            pair.close()
            counted["traces"] += 1
    judged = {text: judge(text) for text in DOUBTFUL}
    print(json.dumps({"done": done, "departures": departures, "judged": judged}))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:4]), *sys.argv[4:])
