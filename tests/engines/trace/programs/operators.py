"""Print what little uses of many operators ask the allocator for, forward and backward, as JSON.

Usage: operators.py null|CARD [KIND...], with kinds by their modules in `operator_cases`; all if none is named.

Of each case the bytes that are allocated, in order; `-1 - k` where the k-th of them is given back. What is given back
without an allocation between is sorted, since it comes to the same; so is cut what is given back at the end.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby

import torch
from operator_cases import (
    decompositions,
    derivatives,
    fast_paths,
    layers,
    losses,
    numbers,
    pictures,
    places,
    quantization,
    sweeps,
    transforms,
    uncommon,
    views,
)
from operator_cases.making import Case

KINDS = {
    "decompositions": decompositions.CASES,
    "derivatives": derivatives.CASES,
    "fast paths": fast_paths.CASES,
    "layers": layers.CASES,
    "losses": losses.CASES,
    "pictures": pictures.CASES,
    "places": places.CASES,
    "numbers": numbers.CASES,
    "quantization": quantization.CASES,
    "sweeps": sweeps.CASES,
    "transforms": transforms.CASES,
    "uncommon": uncommon.CASES,
    "views": views.CASES,
}


def asked(function: Callable[[], None]) -> list[int]:
    """What a function asks the allocator for."""
    torch.cuda.synchronize()
    torch.cuda.memory._record_memory_history(enabled="all", context=None, stacks="python", max_entries=100_000)
    try:
        function()
        torch.cuda.synchronize()
        return list(_tidied(_numbered()))
    finally:
        torch.cuda.memory._record_memory_history(enabled=None)


def _numbered() -> Iterator[int]:
    positions: dict[int, int] = {}
    count = 0
    for event in torch.cuda.memory._snapshot()["device_traces"][0]:
        if event["action"] == "alloc":
            positions[event["addr"]] = count
            count += 1
            yield event["size"]
        elif event["action"] == "free_completed" and event["addr"] in positions:
            yield -1 - positions.pop(event["addr"])


def _tidied(numbers: Iterator[int]) -> Iterator[int]:
    waiting: list[int] = []
    for is_free, run in groupby(numbers, key=lambda number: number < 0):
        if is_free:
            waiting = sorted(run, reverse=True)
        else:
            yield from waiting
            yield from run


def answers(kinds: Sequence[str]) -> dict[str, list[int] | str]:
    """What each case asks for, once libraries have what they keep; or the error that it raises."""
    return {name: _answer(case) for kind in kinds or KINDS for name, case in KINDS[kind].items()}


def _answer(case: Case) -> list[int] | str:
    run = case.ready()
    try:
        run()
        return asked(run)
    except RuntimeError as error:
        return f"{type(error).__name__}: {error}"


if __name__ == "__main__":
    _, engine, *chosen = sys.argv
    if engine == "null":
        from oomdoctor.agent import known_values

        known_values.install()
        json.dump(answers(chosen), sys.stdout)
    else:
        from oomdoctor.engines.catalogue import find_card
        from oomdoctor.engines.trace.emulation import emulated_cuda

        with emulated_cuda(find_card(engine)):
            json.dump(answers(chosen), sys.stdout)
