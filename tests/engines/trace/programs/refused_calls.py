"""Calls that PyTorch refuses on CUDA: tensors of a type without a kernel, and reductions of nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.nn import functional

if TYPE_CHECKING:
    from collections.abc import Callable


def _calls() -> dict[str, Callable[[], object]]:
    whole = torch.arange(12, device="cuda").view(3, 4)
    square, flags = whole[:, :3], whole > 2
    half, numbers = torch.randn(3, 4, device="cuda", dtype=torch.float16), torch.randn(3, 4, device="cuda")
    none, rows = torch.empty(0, device="cuda"), torch.empty(0, 4, device="cuda")
    return {
        "mm": lambda: square.mm(whole),
        "bmm": lambda: torch.bmm(square[None], whole[None]),
        "matmul": lambda: square @ whole,
        "einsum": lambda: torch.einsum("ij,jk->ik", square, whole),
        "batched einsum": lambda: torch.einsum("bij,bjk->bik", square[None], whole[None]),
        "addmm": lambda: torch.addmm(whole, square, whole),
        "linear": lambda: functional.linear(whole, whole),
        "mv": lambda: whole.mv(whole[0]),
        "dot": lambda: whole[0].dot(whole[1]),
        "two types": lambda: numbers @ whole.t(),
        "half weights": lambda: functional.linear(numbers, half),
        "half bias": lambda: functional.linear(numbers, numbers, half[0, :3]),
        "half queries": lambda: functional.scaled_dot_product_attention(half[None], numbers[None], numbers[None]),
        "half pictures": lambda: functional.conv1d(half[None], numbers[:, :3, None]),
        "half scales": lambda: functional.layer_norm(numbers, (4,), half[0]),
        "half batch norm": lambda: functional.batch_norm(numbers, None, None, half[0], half[0], training=True),
        "half values": lambda: numbers.clone().index_put_((whole[:1, 0],), half[:1]),
        "half sums": lambda: numbers.index_add(0, whole[:1, 0], half[:1]),
        "softmax": lambda: whole.softmax(0),
        "cross entropy": lambda: functional.cross_entropy(whole, whole[:, 0]),
        "layer norm": lambda: functional.layer_norm(whole, (4,)),
        "std": whole.std,
        "gelu": lambda: functional.gelu(whole),
        "uniform": whole.uniform_,
        "floor of flags": flags.floor,
        "cdist in half": lambda: torch.cdist(half, half),
        "max of none": none.max,
        "min of none": none.min,
        "argmax of none": none.argmax,
        "extremes of none": none.aminmax,
        "mode of none": none.mode,
        "max of no rows": lambda: rows.max(0),
        "median of no rows": lambda: rows.median(0),
        "amax of no rows": lambda: rows.amax(0),
        "kth of no rows": lambda: rows.half().kthvalue(1, 0),
        # and those that CUDA takes
        "outer": lambda: torch.bmm(whole[None, :, :1], whole[None, :1]),
        "mean as float": lambda: whole.mean(dtype=torch.float32),
        "softmax as float": lambda: whole.softmax(0, dtype=torch.float32),
        "products of types": lambda: whole * numbers + flags,
        "difference of types": lambda: functional.mse_loss(whole, numbers),
        "batch norm in half": lambda: functional.batch_norm(half, None, None, numbers[0], numbers[0], training=True),
        "empty product": lambda: whole[:0] @ whole.t(),
        "sum of none": lambda: none.sum() + none.mean(),
        "max in rows": lambda: rows.max(1),
        "sums of a number": lambda: (none.sum().sum(0), none.sum().amax(-1), none.sum().mean(0).any(0)),
    }


def answers() -> dict[str, str]:
    """What each call raises; nothing for one that runs."""
    found = {}
    for name, call in _calls().items():
        try:
            call()
        except (RuntimeError, IndexError) as error:
            found[name] = f"{type(error).__name__}: {str(error).splitlines()[0]}"
        else:
            found[name] = ""
    return found
