"""Record the history of random traces under several settings, and replay each by the simulator's rules.

Usage: random_histories.py TRACES EVENTS SETTINGS...

Half of the histories begin in the middle of their trace. Prints a JSON object with what was replayed, and every
departure.
"""

from __future__ import annotations

import json
import random
import sys
import warnings
from collections import Counter

import torch
from random_traces import RULES, Pair, step

from oomdoctor.diagnose.snapshot.layout import read_layout
from oomdoctor.diagnose.snapshot.summary import replay_by_rules
from oomdoctor.engines.allocator.settings import parse_settings


def record(*, on: bool) -> None:
    """Begin a history without stacks, or end it."""
    torch.cuda.memory._record_memory_history(
        enabled="all" if on else None, context=None, stacks="python", max_entries=100_000
    )


def run(pair: Pair, seed: int, events: int, done: Counter[str]) -> list[str]:
    """One trace; where its history departs from the rules."""
    chance = random.Random(seed)
    middle = events // 2 if seed % 2 else 0
    for event in range(events):
        if event == middle:
            record(on=True)
        step(chance, pair, done)
    raw = read_layout(torch.cuda.memory._snapshot(), "random", 10_000_000)
    record(on=False)
    found = []
    for device in raw.devices:
        replay = replay_by_rules(device, raw.allocator_settings)
        if replay is None:
            done["unknown"] += 1
        elif replay.departure is not None:
            found.append(f"{seed}: {replay}")
        else:
            done["histories"] += 1
            done["replayed"] += replay.events
            done["segments"] += replay.segment_events
    return found


def main(traces: int, events: int, *texts: str) -> None:
    """All traces under all settings."""
    warnings.simplefilter("ignore")
    torch.cuda.init()
    base = torch.empty(1, device="cuda").data_ptr()
    torch.cuda.empty_cache()
    streams = [torch.cuda.default_stream(), torch.cuda.Stream(), torch.cuda.Stream()]
    done, departures = {}, []
    for number, text in enumerate(texts):
        torch.cuda.memory._set_allocator_settings(text)
        counted = done[text] = Counter()
        for trace in range(traces):
            pair = Pair(parse_settings(text, RULES), base, streams)
            departures += run(pair, 1000 * number + trace, events, counted)
            pair.close()
    print(json.dumps({"done": done, "departures": departures}))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:3]), *sys.argv[3:])
