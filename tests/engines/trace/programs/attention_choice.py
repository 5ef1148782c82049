"""Print which attention kernel is taken for many random questions, as JSON.

Usage: attention_choice.py null|CARD
"""

from __future__ import annotations

import json
import random
import sys
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention

KERNELS = {0: "math", 1: "flash", 2: "efficient"}
QUESTIONS = 600


def question(rng: random.Random) -> dict[str, Any]:
    """Sizes, types, layouts and a mask."""
    heads, batch, size, length = (rng.choice(them) for them in ((1, 3, 12), (1, 2, 3), SIZES, (1, 8, 100, 256)))
    keys, key_batch = rng.choice([heads] * 3 + [1, 3, 4, 12]), rng.choice([batch] * 3 + [1])
    has_heads = rng.random() < 0.9
    return {
        "query": (batch, heads, length, size),
        "key": (key_batch, keys, keys_length := rng.choice([length] * 2 + [256, 7]), size),
        "value": (key_batch, rng.choice([keys] * 3 + [1]), keys_length, rng.choice([size] * 4 + [16, 2 * size])),
        "dtype": rng.choice(["bfloat16", "float16", "float32", "float32", "float64"]),
        "layout": rng.choice(["plain", "plain", "tokens first", "expanded", "transposed"]),
        "mask": rng.choice([None] * 3 + ["bool", "whole", "one head", "odd", "transposed", "flat"])
        if has_heads
        else None,
        "dropout": rng.choice([0.0, 0.0, 0.1]),
        "causal": rng.random() < 0.3,
        "grouped": rng.random() < 0.3,
        "needs_grad": rng.random() < 0.7,
        "has_heads": has_heads,
    }


SIZES = (64, 64, 32, 40, 4, 7, 128, 130, 200, 256, 264)


def _tensor(asked: dict[str, Any], name: str) -> torch.Tensor:
    (batch, heads, length, size), dtype = asked[name], getattr(torch, asked["dtype"])
    if asked["layout"] == "tokens first":
        made = torch.zeros(batch, length, heads, size, device="cuda", dtype=dtype).transpose(1, 2)
    elif asked["layout"] == "transposed":
        made = torch.zeros(batch, heads, size, length, device="cuda", dtype=dtype).transpose(2, 3)
    else:
        made = torch.zeros(batch, heads, length, size, device="cuda", dtype=dtype)
        if asked["layout"] == "expanded" and heads == 1:
            made = made.expand(-1, asked["query"][1], -1, -1)
    return made if asked["has_heads"] else made[:, 0]


def _mask(asked: dict[str, Any]) -> torch.Tensor | None:
    (batch, heads, length, _), keys = asked["query"], asked["key"][2]
    options = {"device": "cuda", "dtype": getattr(torch, asked["dtype"])}
    masks = {
        "bool": lambda: torch.zeros(length, keys, device="cuda", dtype=torch.bool).expand(batch, heads, -1, -1),
        "whole": lambda: torch.zeros(batch, heads, length, keys, **options),
        "one head": lambda: torch.zeros(batch, 1, length, keys, **options),
        "odd": lambda: torch.zeros(batch, 1, length, keys + 1, **options)[..., :keys],
        "transposed": lambda: torch.zeros(batch, 1, keys, length, **options).transpose(2, 3),
        "flat": lambda: torch.zeros(length, keys, **options),
    }
    return None if asked["mask"] is None or asked["causal"] else masks[asked["mask"]]()


def _arguments(asked: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    tensors = [_tensor(asked, name) for name in ("query", "key", "value")]
    tensors[0].requires_grad_(asked["needs_grad"])
    return (*tensors, _mask(asked), asked["dropout"], asked["causal"]), {"enable_gqa": asked["grouped"]}


def on_null_gpu(asked: dict[str, Any]) -> str:
    """What PyTorch takes; `error` for what it does not do."""
    args, kwargs = _arguments(asked)
    try:
        scaled_dot_product_attention(*args, **kwargs)
    except RuntimeError:
        return "error"
    return KERNELS[torch._fused_sdp_choice(*args, **kwargs)]


def main(engine: str) -> None:
    """Ask all questions."""
    rng = random.Random(5)
    questions = [question(rng) for _ in range(QUESTIONS)]
    if engine == "null":
        print(json.dumps([on_null_gpu(asked) for asked in questions]))
        return
    from oomdoctor.engines.catalogue import find_card
    from oomdoctor.engines.trace.emulation import emulated_cuda
    from oomdoctor.engines.trace.kernels.attention import chosen_attention_kernel

    with emulated_cuda(card := find_card(engine)):
        answers = [chosen_attention_kernel(card, *args, **kwargs) for args, kwargs in map(_arguments, questions)]
    print(json.dumps(answers))


if __name__ == "__main__":
    main(sys.argv[1])
