"""Calls that PyTorch refuses on CUDA: types without a kernel, reductions of nothing, what does not go together."""

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
        "half numbers": lambda: functional.linear(half, numbers, numbers[0, :3]),
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
        **_mismatches(),
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


def _mismatches() -> dict[str, Callable[[], object]]:
    rows, classes = torch.zeros(2, 3, device="cuda"), torch.zeros(2, dtype=torch.int32, device="cuda")
    pictures, weight = torch.zeros(1, 4, 8, 8, device="cuda"), torch.zeros(4, 3, 3, 3, device="cuda")
    stacked, host = torch.zeros(2, 3, 4, device="cuda"), torch.zeros(2, 3)
    return {
        "rows and columns": lambda: rows @ rows,
        "linear of another width": lambda: functional.linear(rows, pictures[0, 0], rows[0]),
        "batched rows and columns": lambda: torch.bmm(stacked, stacked),
        "sum of two sizes": lambda: rows + pictures[0, 0, 0],
        "product of two sizes": lambda: rows * pictures[0, 0, 0],
        "choice of two sizes": lambda: torch.where(rows > 0, rows, pictures[0, 0, 0]),
        "joined at another size": lambda: torch.cat([rows, pictures[0, 0, :2]]),
        "channels of a convolution": lambda: functional.conv2d(pictures, weight),
        "picture below the filter": lambda: functional.conv2d(pictures[:, :3, :1], weight),
        "layer norm of another width": lambda: functional.layer_norm(rows, (4,)),
        "batch norm of other channels": lambda: functional.batch_norm(
            rows, None, None, pictures[0, :, 0, 0], training=True
        ),
        "running mean of other channels": lambda: functional.batch_norm(rows, pictures[0, :, 0, 0], rows[:, 0]),
        "classes of another type": lambda: functional.cross_entropy(rows, classes),
        "classes of pixels of another type": lambda: functional.cross_entropy(stacked, torch.zeros(2, 4).int().cuda()),
        "numbers to embed": lambda: functional.embedding(rows, stacked[0]),
        "second device": lambda: torch.zeros(2, device="cuda:1"),
        "moved to a second device": lambda: host.to("cuda:1"),
        "moved by its number": lambda: host.cuda(1),
        "like another on a second device": lambda: rows.new_zeros(2, device="cuda:1"),
        "second device chosen": lambda: torch.cuda.set_device(1),
        "host's rows by the device's places": lambda: host[torch.zeros(1, dtype=torch.int64, device="cuda")],
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
