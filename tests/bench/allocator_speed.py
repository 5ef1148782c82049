"""Allocations and frees a second that the simulated allocator takes, on one core, under settings in turn.

Usage: python tests/bench/allocator_speed.py [ROUNDS] [EVENTS]

Blocks come and go as in a training step of GPT-2: a few sizes, most of them large, the newest freed first or nearly so,
400 alive at a time.
"""

from __future__ import annotations

import random
import statistics
import sys
import time
from typing import Final

from measuring import RESULTS, gibibytes, machine, save

from oomdoctor.engines.allocator.caching import CachingAllocator
from oomdoctor.engines.allocator.device_memory import DeviceMemory
from oomdoctor.engines.allocator.settings import parse_settings
from oomdoctor.units import KIB, MIB

ABOVE_EVENTS: Final = 300_000
SETTINGS: Final = ("", "expandable_segments:True", "roundup_power2_divisions:4", "max_split_size_mb:100")
SIZES: Final = (4, 3 * KIB, 4 * KIB, MIB, 6 * MIB, 24 * MIB, 96 * MIB, 154 * MIB)
ALIVE: Final = 400
RECENT: Final = 20


def make_trace(events: int) -> list[int]:
    """An allocation is its bytes, a free is -1 less the allocation's position."""
    chance = random.Random(1)
    alive: list[int] = []
    trace: list[int] = []
    made = 0
    for _ in range(events):
        if not alive or (len(alive) < ALIVE and chance.random() < 0.5):
            trace.append(chance.choice(SIZES))
            alive.append(made)
            made += 1
        else:
            freed = alive.pop(chance.randrange(max(0, len(alive) - RECENT), len(alive)))
            trace.append(-1 - freed)
    return trace


def events_a_second(trace: list[int], text: str) -> float:
    """How fast one pass over the trace is."""
    allocator = CachingAllocator(DeviceMemory(gibibytes(80)), parse_settings(text))
    addresses: list[int] = []
    begin = time.process_time()
    for event in trace:
        if event > 0:
            addresses.append(allocator.malloc(event))
        else:
            allocator.free(addresses[-1 - event])
    return len(trace) / (time.process_time() - begin)


def main(rounds: int = 5, events: int = 200_000) -> None:
    """Measure, print and save."""
    trace = make_trace(events)
    rows = []
    for text in SETTINGS:
        speeds = [events_a_second(trace, text) for _ in range(rounds)]
        rows.append({"settings": text, "events_a_second": round(statistics.median(speeds))})
        print(f"{rows[-1]['events_a_second']:>9,} events a second  {text or 'default'}")
    claims = {
        "above_events_a_second": ABOVE_EVENTS,
        "holds": all(row["events_a_second"] > ABOVE_EVENTS for row in rows),
    }
    save(
        RESULTS / "allocator_speed.json",
        {"machine": machine(), "rounds": rounds, "events": events, "rows": rows, "claims": claims},
    )


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
