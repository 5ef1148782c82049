"""Measures of operators, and how a measure is taken: the most bytes that are allocated while something runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import nn

Measured = Iterator[tuple[str, int | str]]
"""A label with bytes, or with the error that there was in their place."""
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def peak_of(run: Callable[[], object]) -> int | str:
    """Return the most bytes that are allocated while a function runs, besides those before; what it made is dropped."""
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    try:
        run()
        torch.cuda.synchronize()
    except RuntimeError as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0]}"
    return torch.cuda.max_memory_allocated() - before


def both_ways(label: str, forward: Callable[[], torch.Tensor]) -> Measured:
    """A forward and its backward."""
    kept: list[torch.Tensor] = []
    yield f"{label} forward", peak_of(lambda: kept.append(forward()))
    if kept:
        yield f"{label} backward", peak_of(lambda: _backward(kept))


def _backward(kept: list[torch.Tensor]) -> None:
    made = kept.pop()
    made.backward(torch.ones_like(made))


def normalizations(_count: int) -> Measured:
    """Normalizations of images; that of a batch with channels last has a reserve of cuDNN's."""
    layers = (nn.BatchNorm2d(64), nn.GroupNorm(8, 64), nn.InstanceNorm2d(64, affine=True), nn.LayerNorm(56))
    for layer in layers:
        layer.cuda()
        for name, dtype in DTYPES.items():
            for layout in (torch.contiguous_format, torch.channels_last):
                x = torch.randn(32, 64, 56, 56, device="cuda", dtype=dtype).to(memory_format=layout).requires_grad_()
                label = f"{type(layer).__name__} {name}{' last' if layout is torch.channels_last else ''}"
                with torch.autocast("cuda", dtype, enabled=name != "fp32"):
                    yield from both_ways(label, lambda layer=layer, x=x: layer(x))


def attention(_count: int) -> Measured:
    """Scaled dot products: the kernel that PyTorch chooses for a card decides what is kept."""
    run = nn.functional.scaled_dot_product_attention
    for name, dtype in DTYPES.items():
        for heads, length, width in ((12, 512, 64), (16, 1024, 128), (8, 257, 80), (4, 384, 256), (6, 100, 512)):
            shape = (4, heads, length, width)
            q, k, v = (torch.randn(shape, device="cuda", dtype=dtype, requires_grad=True) for _ in range(3))
            mask = torch.zeros(4, 1, length, length, device="cuda", dtype=dtype)
            for said, options in (
                ("plain", {}), ("causal", {"is_causal": True}), ("masked", {"attn_mask": mask}),
                ("dropped", {"dropout_p": 0.1}),
            ):  # fmt: skip
                label = f"{heads}x{length}x{width} {name} {said}"
                yield from both_ways(label, lambda q=q, k=k, v=v, options=options: run(q, k, v, **options))


def products(_count: int) -> Measured:
    """Matrix products; the first of each kind takes a workspace of cuBLAS that PyTorch keeps."""
    for name, dtype in DTYPES.items():
        for rows, inputs, outputs in ((64, 128, 256), (4096, 768, 3072), (1000, 333, 77), (8, 50257, 16)):
            layer = nn.Linear(inputs, outputs, device="cuda", dtype=dtype)
            x = torch.randn(rows, inputs, device="cuda", dtype=dtype, requires_grad=True)
            label = f"{rows}x{inputs}x{outputs} {name}"
            yield from both_ways(label, lambda layer=layer, x=x: layer(x))
            batch = torch.randn(4, inputs, rows, device="cuda", dtype=dtype)
            yield from both_ways(f"{label} batched", lambda x=x, batch=batch: x.expand(4, -1, -1) @ batch)


def operators(_count: int) -> Measured:
    """Operators that take memory for their own use, by an algorithm that may look at the card."""
    function, x = nn.functional, torch.randn(64, 5000, device="cuda", requires_grad=True)
    long, image = torch.randn(3_000_000, device="cuda"), torch.randn(8, 32, 64, 64, device="cuda", requires_grad=True)
    table = nn.Embedding(30000, 256, device="cuda")
    index = torch.arange(8192, device="cuda") % 30000
    labels, rows = torch.zeros(64, dtype=torch.long, device="cuda"), index % 64
    grid = torch.zeros(8, 64, 64, 2, device="cuda")
    bag = nn.EmbeddingBag(30000, 256, device="cuda")
    forwards = {
        "sort rows": lambda: x.sort(dim=1)[0], "sort columns": lambda: x.sort(dim=0)[0], "topk": lambda: x.topk(40)[0],
        "cumsum": lambda: x.cumsum(1), "kthvalue": lambda: x.kthvalue(9)[0], "median": lambda: x.median(1)[0],
        "cross entropy": lambda: function.cross_entropy(x, labels), "softmax": lambda: x.softmax(1),
        "logsumexp": lambda: x.logsumexp(1), "variance": x.var, "norm": x.norm,
        "dropout": lambda: function.dropout(x), "gelu": lambda: function.gelu(x), "cdist": lambda: torch.cdist(x, x),
        "embedding": lambda: table(index), "embedding bag": lambda: bag(index, index[::64].contiguous()),
        "gather": lambda: x.gather(1, index[:4096].view(64, 64)), "index": lambda: x[rows, index % 5000],
        "scatter add": lambda: torch.zeros_like(x).scatter_add(1, index.view(64, 128) % 5000, x[:, :128]),
        "index add": lambda: torch.zeros_like(x).index_add(0, rows[:64], x),
        "grid sample": lambda: function.grid_sample(image, grid, align_corners=False),
        "interpolate": lambda: function.interpolate(image, scale_factor=2, mode="bilinear"),
        "max pool": lambda: function.max_pool2d(image, 3, 2), "average pool": lambda: function.avg_pool2d(image, 3, 2),
        "adaptive pool": lambda: function.adaptive_avg_pool2d(image, 7), "unfold": lambda: function.unfold(image, 3),
        "layer norm": lambda: function.layer_norm(x, (5000,)), "prelu": lambda: function.prelu(image, x[0, :32]),
    }  # fmt: skip
    for label, forward in forwards.items():
        yield from both_ways(label, forward)
    alone = {
        "sort long": long.sort, "argsort stable": lambda: long.argsort(stable=True),
        "cumsum long": lambda: long.cumsum(0), "topk long": lambda: long.topk(100), "sum long": long.sum,
        "median long": long.median, "randperm": lambda: torch.randperm(3_000_000, device="cuda"),
        "multinomial": lambda: torch.multinomial(x.detach().abs() + 1, 20), "histc": lambda: long.histc(50),
        "bucketize": lambda: torch.bucketize(long, long[:100]), "argmax": long.argmax,
        "cumprod": lambda: long.cumprod(0), "logcumsumexp": lambda: long.logcumsumexp(0), "any": long.any,
        "one hot": lambda: nn.functional.one_hot(index[:1000], 30000), "where": lambda: torch.where(long > 0, long, 1),
    }  # fmt: skip
    for label, run in alone.items():
        yield label, peak_of(run)
