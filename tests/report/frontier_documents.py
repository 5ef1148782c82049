"""Documents of `oomdoctor probe` over several sizes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from oomdoctor.results import (
    Axis,
    Bucket,
    Buckets,
    Device,
    EvaluationBetween,
    EvaluationMemory,
    FrontierCell,
    FrontierDocument,
    FrontierResult,
    Reason,
    SearchedSize,
    Variant,
)
from oomdoctor.search.probe_search import plan_accumulation

MIB = 2**20
VERSIONS = {"oomdoctor": "0.1.0", "python": "3.11.7", "torch": "2.15.0+cu132", "cuda": "13.2"}


def cell(length: int, maximum: int, **changes: Any) -> FrontierCell:
    """What fits at one length."""
    plan = plan_accumulation(256, maximum) if maximum else None
    made = FrontierCell(
        (Axis("sequence_length", length),), maximum, maximum - 1, "memory", maximum * length, plan, trials=4
    )
    return replace(made, **changes)


def frontier(**changes: Any) -> FrontierDocument:
    """Four lengths: one that needs more than a longer one, one at which nothing fits, and one without an answer."""
    nothing = cell(8192, 0, recommended=0, limited_by="model")
    unknown = cell(65536, 0, recommended=0, limited_by="unknown", trials=0, problem="`make_batch` raised `IndexError`")
    result = FrontierResult(
        target="train.py",
        axes=("sequence_length",),
        searched_size=None,
        target_batch=256,
        world_size=1,
        precision="fp32",
        optimizer="AdamW",
        headroom=0.05,
        capacity_bytes=23_755 * MIB,
        device=Device("null", "NVIDIA GeForce RTX 4090", "8.9", 24_000 * MIB),
        cells=(cell(512, 30), cell(1024, 31, notes=("a condition reads a value",)), nothing, unknown),
        reasons=(Reason("peaks", "counted on the null GPU"),),
        notes=("sequence_length 512 needs more than 1024: 30 fits, and 31 there",),
    )
    return FrontierDocument("frontier", "measured", 0, VERSIONS, replace(result, **changes))


def longest() -> FrontierDocument:
    """The largest length at one micro-batch, where nothing else is varied."""
    found = cell(1, 3072, sizes=(), recommended=2880, accumulation=None, elements=8 * 3072)
    searched = SearchedSize("sequence_length", micro_batch=8, multiple_of=64)
    return frontier(axes=(), searched_size=searched, target_batch=None, cells=(found,), notes=())


def gridded() -> FrontierDocument:
    """Two lengths by three sides of an image, at one of which nothing fits and at one of which there is no answer."""
    found = {(512, 64): 300, (512, 128): 75, (512, 256): 18, (1024, 64): 150, (1024, 128): 0, (1024, 256): 0}
    cells = [
        cell(length, maximum, sizes=(Axis("sequence_length", length), Axis("side", side)), elements=1)
        for (length, side), maximum in found.items()
    ]
    cells[-2] = replace(cells[-2], recommended=0, limited_by="model")
    cells[-1] = replace(cells[-1], recommended=0, limited_by="unknown", problem="`make_batch` raised `IndexError`")
    given = Variant(precision="bf16", axes=(Axis("channels", 4),), evaluation=EvaluationBetween(64))
    memory = EvaluationMemory(64, 3 * MIB, 2 * MIB, "next_step")
    cells[0] = replace(cells[0], evaluation=memory)
    return frontier(axes=("sequence_length", "side"), cells=tuple(cells), notes=(), variant=given)


def bucketed() -> FrontierDocument:
    """Two lengths that one process trained on in turn, with fewer samples than each alone."""
    cells = (cell(512, 30), cell(1024, 15))
    rows = tuple(Bucket(found.sizes, found.recommended * 97 // 100) for found in cells)
    return frontier(cells=cells, notes=(), buckets=Buckets("nemo", rows, 97, 14_335, trials=9, cache_returns=3))


def filled_with(text: str) -> FrontierDocument:
    """A document with a text wherever the target or a saved document may put one."""
    hostile = cell(512, 30, sizes=(Axis(text, 512),), notes=(text,))
    found = frontier(
        target=text,
        axes=(text,),
        searched_size=SearchedSize(text, 8),
        precision=text,
        optimizer=text,
        device=Device("null", text, text, 1),
        cells=(hostile, replace(hostile, maximum=0, problem=text)),
        reasons=(Reason(text, text),),
        notes=(text,),
        buckets=Buckets("json", (Bucket(hostile.sizes, 1),), 50, 1, trials=1),
    )
    return replace(found, versions={text: text})
