"""Allocate and free at random, and hold the model of the allocator to its own count after every step.

Usage: random_blocks.py SETTINGS...

Prints a JSON object with what came of it under each of the allocator's settings.
"""

import json
import random
import sys

import torch

from oomdoctor.agent.allocator_blocks import HistoryMismatchError
from oomdoctor.trial.profile.allocation_log import build_log
from oomdoctor.trial.profile.marks import Mark, MarkKind, count_now, read_events, start_recording, stop_recording

SIZES = [1, 511, 512, 513, 4096, 600_000, 2**20 - 1, 2**20, 2**20 + 1, 3_000_000, 9_999_999, 10 * 2**20, 40_000_000]


def compare(settings: str) -> dict[str, object]:
    """Allocate and free, then tell the story with a mark after each step."""
    torch.cuda.empty_cache()
    torch.cuda.memory._set_allocator_settings(settings)
    chance = random.Random(5)
    held = [torch.empty(chance.choice(SIZES), dtype=torch.uint8, device="cuda") for _ in range(40)]
    del held[::3]
    start = start_recording()
    marks = []
    for _ in range(1000):
        step(chance, held)
        count, allocated = count_now()
        marks.append(Mark(count, allocated, MarkKind.BACK, None))
    events = read_events()
    stop_recording()
    try:
        story = build_log(start, events, marks)
    except HistoryMismatchError as error:
        return {"error": str(error)}
    live = sum(block.size for block in story.before) + sum(change[1] for change in story.changes if change)
    return {
        "error": None,
        "events": len(events),
        "mapped": sum(event["action"] == "segment_map" for event in events),
        "live": [live, torch.cuda.memory_allocated()],
        "reserved": [story.reserved[-1], torch.cuda.memory_reserved()],
    }


def step(chance: random.Random, held: list[torch.Tensor]) -> None:
    """Do one thing."""
    kind = chance.random()
    if kind < 0.5 or not held:
        size = chance.choice(SIZES) if chance.random() < 0.5 else chance.randrange(1, 30_000_000)
        held.append(torch.empty(size, dtype=torch.uint8, device="cuda"))
    elif kind < 0.99:
        held.pop(chance.randrange(len(held)))
    else:
        torch.cuda.empty_cache()


if __name__ == "__main__":
    torch.empty(1, device="cuda")
    print(json.dumps({settings: compare(settings) for settings in sys.argv[1:]}))
