"""Documents of `oomdoctor gpus --fit`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from oomdoctor.results import Axis, CardMicroBatch, FitDocument, FitResult, FittedCard, Reason
from oomdoctor.search.probe_search import plan_accumulation

GIB = 2**30


def fitted(target: str = "train.py", **changes: Any) -> FitDocument:
    """A table of three cards: one that the model fits, one that has room for the target, one that is too small."""
    result: dict[str, Any] = {
        "target": target,
        "target_batch": 256,
        "world_size": 1,
        "precision": "bf16",
        "optimizer": None,
        "headroom": 0.05,
        "engine": "trace",
        "weights_bytes": 3 * GIB,
        "questions": (),
        "reasons": (Reason("allocator", "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"),),
        "cards": (
            card("rtx-4090", "NVIDIA GeForce RTX 4090", 24, (100, 94, "memory")),
            card("h200", "NVIDIA H200", 140, (256, 256, "target")),
            card("gtx-1650", "NVIDIA GeForce GTX 1650", 4, (0, 0, "model")),
        ),
    }
    versions = {"oomdoctor": "0.1.0", "python": "3.11.7", "torch": "2.15.0+cu132", "cuda": "13.2"}
    return FitDocument("gpus", "fitted", 0, versions, FitResult(**(result | changes)))


def fitted_at_sizes() -> FitDocument:
    """A table of two cards at two sizes, of which the model cannot have one."""
    sizes = [(Axis("width", 8), Axis("context", size)) for size in (512, 2048)]
    found = [(100, 94, "memory"), (0, 0, "unknown"), (0, 0, "model"), (0, 0, "unknown")]
    problem = "`build_model` raised ValueError: 2048 positions"
    rows = [
        replace(card(gpu, gpu, gib, found[2 * place + at], *([problem] if at else [])), at_sizes=each)
        for place, (gpu, gib) in enumerate((("rtx-4090", 24), ("gtx-1650", 4)))
        for at, each in enumerate(sizes)
    ]
    return fitted(cards=tuple(rows), varied_sizes=("width", "context"), given_sizes=(Axis("side", 64),))


def card(gpu: str, name: str, gib: int, sizes: tuple[int, int, Any], *notes: str) -> FittedCard:
    """One card's row; its sizes are the largest, the recommended one, and what limits them."""
    found = CardMicroBatch(*sizes)
    plan = plan_accumulation(256, found.maximum) if found.maximum else None
    return FittedCard(gpu, name, gib * GIB, gib * GIB - GIB // 2, "8.9", found, plan, notes)


def filled_with(text: str) -> FitDocument:
    """A document with a text wherever the target or a saved document may put one."""
    found = fitted(text, optimizer=text, questions=(text,), reasons=(Reason(text, text),))
    cards = (card(text, text, 24, (100, 94, "memory"), text), card(text, text, 4, (0, 0, "model")))
    result = FitResult(**{name: getattr(found.result, name) for name in found.result.__slots__} | {"cards": cards})
    return FitDocument("gpus", "fitted", 0, {text: text}, result)
