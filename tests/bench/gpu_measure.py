"""Measure the GPU that this process sees, real or null, and print as JSON the bytes of each measure by label.

Usage: python tests/bench/gpu_measure.py COUNT MEASURE...    (the functions of `MEASURES`, by name)
"""

from __future__ import annotations

import json
import os
import random
import sys
from collections.abc import Callable, Iterator

import torch
from torch import nn

Measured = Iterator[tuple[str, int | str]]
"""A label with bytes, or with the error that there was in their place."""
SEED = 16
WIDTHS, SIDES, KERNELS = (8, 16, 32, 64, 96, 128, 256), (7, 14, 28, 56, 112), (1, 3, 5, 7)
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


def convolutions(count: int) -> Measured:
    """Forward and backward of random convolutions: their tensors are the same everywhere, their workspaces cuDNN's."""
    draw = random.Random(SEED)
    for _ in range(count):
        groups = draw.choice((1, 1, 1, 4))
        inputs, outputs = (groups * draw.choice(WIDTHS) for _ in range(2))
        kernel, stride, side = draw.choice(KERNELS), draw.choice((1, 1, 2)), draw.choice(SIDES)
        batch = draw.choice((4, 32))
        dtype, last = draw.choice((*DTYPES,)), draw.choice((False, True))
        layout = torch.channels_last if last else torch.contiguous_format
        layer = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups)
        layer = layer.to("cuda", DTYPES[dtype], memory_format=layout)
        x = torch.randn(batch, inputs, side, side, device="cuda", dtype=DTYPES[dtype])
        x = x.to(memory_format=layout).requires_grad_()
        label = (
            f"{batch}x{inputs}x{side} to {outputs} by {kernel}/{stride} in {groups} {dtype}{' last' if last else ''}"
        )
        yield from _both_ways(label, lambda layer=layer, x=x: layer(x))


def _both_ways(label: str, forward: Callable[[], torch.Tensor]) -> Measured:
    """A forward and its backward."""
    kept: list[torch.Tensor] = []
    yield f"{label} forward", peak_of(lambda: kept.append(forward()))
    if kept:
        yield f"{label} backward", peak_of(lambda: _backward(kept))


def _backward(kept: list[torch.Tensor]) -> None:
    made = kept.pop()
    made.backward(torch.ones_like(made))


def benchmark(count: int) -> Measured:
    """A tenth of them where cuDNN times its algorithms: a GPU takes the quickest, perhaps another at each run."""
    torch.backends.cudnn.benchmark = True
    yield from convolutions(-(-count // 10))


def compiled(_count: int) -> Measured:
    """A compiled step: Inductor's own buffers, with and without the fusions that a card's size decides."""
    for dtype in ("fp32", "bf16"):
        block = nn.TransformerEncoderLayer(512, 8, 2048, batch_first=True, device="cuda", dtype=DTYPES[dtype])
        x = torch.randn(16, 256, 512, device="cuda", dtype=DTYPES[dtype], requires_grad=True)
        run = torch.compile(block)
        for step in ("first", "second"):
            yield from _both_ways(f"encoder layer {dtype}, {step} step,", lambda run=run, x=x: run(x))


def transforms(count: int) -> Measured:
    """Fourier transforms of random lengths: their work areas are cuFFT's."""
    draw = random.Random(SEED)
    for _ in range(count):
        shape = [draw.choice((8, 64)), draw.choice((30, 64, 97, 128)), draw.choice((60, 127, 256, 400, 512))]
        name, dims = draw.choice(("fft", "rfft", "ifft")), draw.choice(((-1,), (-2, -1)))
        run = getattr(torch.fft, f"{name}n")
        x = torch.randn(shape, device="cuda", dtype=torch.float32 if name == "rfft" else torch.complex64)
        yield f"{name} of {shape} over {len(dims)}", peak_of(lambda run=run, x=x, dims=dims: run(x, dim=dims))


def decompositions(_count: int) -> Measured:
    """Decompositions: their work areas are cuSOLVER's, which the null GPU counts as 0."""
    for side in (64, 512, 2048):
        x = torch.randn(side, side, device="cuda")
        x = x @ x.T + side * torch.eye(side, device="cuda")
        for name in ("svd", "eigh", "qr", "cholesky", "inv"):
            yield f"{name} of {side}", peak_of(lambda name=name, x=x: getattr(torch.linalg, name)(x))


def graph(_count: int) -> Measured:
    """A captured step: what PyTorch's private pool holds, and what the driver holds besides."""
    model = nn.Sequential(nn.Linear(1024, 4096), nn.GELU(), nn.Linear(4096, 1024)).cuda()
    batch = torch.randn(512, 1024, device="cuda")
    with torch.cuda.stream(torch.cuda.Stream()):
        for _ in range(3):
            model(batch).mean().backward()
    model.zero_grad(set_to_none=True)
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    before, outside = torch.cuda.memory_reserved(), _outside_bytes()
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        model(batch).mean().backward()
    captured.replay()
    torch.cuda.synchronize()
    yield "reserved for the pool", torch.cuda.memory_reserved() - before
    yield "of the driver besides", _outside_bytes() - outside


def recurrent(_count: int) -> Measured:
    """Recurrent layers, whose reserve between forward and backward cuDNN names to a live handle alone."""
    for kind in (nn.LSTM, nn.GRU, nn.RNN):
        for dtype, hidden, layers, both in (
            ("fp32", 256, 1, False), ("fp32", 512, 2, True), ("bf16", 512, 2, False), ("fp16", 1024, 1, True),
        ):  # fmt: skip
            layer = kind(hidden, hidden, layers, bidirectional=both, dropout=0.1 if layers > 1 else 0.0)
            layer = layer.to("cuda", DTYPES[dtype])
            layer.flatten_parameters()
            x = torch.randn(40, 32, hidden, device="cuda", dtype=DTYPES[dtype], requires_grad=True)
            label = f"{kind.__name__} of {hidden} by {layers}{' both ways' if both else ''} {dtype}"
            yield from _both_ways(label, lambda layer=layer, x=x: layer(x)[0])


def normalizations(_count: int) -> Measured:
    """Normalizations of images; that of a batch with channels last has a reserve of cuDNN's."""
    layers = (nn.BatchNorm2d(64), nn.GroupNorm(8, 64), nn.InstanceNorm2d(64, affine=True), nn.LayerNorm(56))
    for layer in layers:
        for dtype in DTYPES:
            for layout in (torch.contiguous_format, torch.channels_last):
                x = torch.randn(32, 64, 56, 56, device="cuda", dtype=DTYPES[dtype]).to(memory_format=layout)
                label = f"{type(layer).__name__} {dtype}{' last' if layout is torch.channels_last else ''}"
                with torch.autocast("cuda", DTYPES[dtype], enabled=dtype != "fp32"):
                    yield from _both_ways(label, lambda layer=layer.cuda(), x=x.requires_grad_(): layer(x))


def attention(_count: int) -> Measured:
    """Scaled dot products: the kernel that PyTorch chooses for a card decides what is kept."""
    run = nn.functional.scaled_dot_product_attention
    for dtype in DTYPES:
        for heads, length, width in ((12, 512, 64), (16, 1024, 128), (8, 257, 80), (4, 384, 256), (6, 100, 512)):
            shape = (4, heads, length, width)
            q, k, v = (torch.randn(shape, device="cuda", dtype=DTYPES[dtype], requires_grad=True) for _ in range(3))
            mask = torch.zeros(4, 1, length, length, device="cuda", dtype=DTYPES[dtype])
            for said, options in (
                ("plain", {}), ("causal", {"is_causal": True}), ("masked", {"attn_mask": mask}),
                ("dropped", {"dropout_p": 0.1}),
            ):  # fmt: skip
                label = f"{heads}x{length}x{width} {dtype} {said}"
                yield from _both_ways(label, lambda q=q, k=k, v=v, options=options: run(q, k, v, **options))


def products(_count: int) -> Measured:
    """Matrix products; the first of each kind takes a workspace of cuBLAS that PyTorch keeps."""
    for dtype in DTYPES:
        for rows, inputs, outputs in ((64, 128, 256), (4096, 768, 3072), (1000, 333, 77), (8, 50257, 16)):
            layer = nn.Linear(inputs, outputs, device="cuda", dtype=DTYPES[dtype])
            x = torch.randn(rows, inputs, device="cuda", dtype=DTYPES[dtype], requires_grad=True)
            label = f"{rows}x{inputs}x{outputs} {dtype}"
            yield from _both_ways(label, lambda layer=layer, x=x: layer(x))
            batch = torch.randn(4, inputs, rows, device="cuda", dtype=DTYPES[dtype])
            yield from _both_ways(f"{label} batched", lambda x=x, batch=batch: x.expand(4, -1, -1) @ batch)


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
        "logsumexp": lambda: x.logsumexp(1), "variance": lambda: x.var(), "norm": lambda: x.norm(),
        "dropout": lambda: function.dropout(x), "gelu": lambda: function.gelu(x), "cdist": lambda: torch.cdist(x, x),
        "embedding": lambda: table(index), "embedding bag": lambda: bag(index, index[::64].contiguous()),
        "gather": lambda: x.gather(1, index[:4096].view(64, 64)), "index": lambda: x[rows, index % 5000],
        "scatter add": lambda: torch.zeros(64, 5000, device="cuda").scatter_add(1, index.view(64, 128) % 5000, x[:, :128]),
        "index add": lambda: torch.zeros(64, 5000, device="cuda").index_add(0, rows[:64], x),
        "grid sample": lambda: function.grid_sample(image, grid, align_corners=False),
        "interpolate": lambda: function.interpolate(image, scale_factor=2, mode="bilinear"),
        "max pool": lambda: function.max_pool2d(image, 3, 2), "average pool": lambda: function.avg_pool2d(image, 3, 2),
        "adaptive pool": lambda: function.adaptive_avg_pool2d(image, 7), "unfold": lambda: function.unfold(image, 3),
        "layer norm": lambda: function.layer_norm(x, (5000,)), "prelu": lambda: function.prelu(image, x[0, :32]),
    }  # fmt: skip
    for label, forward in forwards.items():
        yield from _both_ways(label, forward)
    alone = {
        "sort long": lambda: long.sort(), "argsort stable": lambda: long.argsort(stable=True),
        "cumsum long": lambda: long.cumsum(0), "topk long": lambda: long.topk(100), "sum long": lambda: long.sum(),
        "median long": lambda: long.median(), "randperm": lambda: torch.randperm(3_000_000, device="cuda"),
        "multinomial": lambda: torch.multinomial(x.detach().abs() + 1, 20), "histc": lambda: long.histc(50),
        "bucketize": lambda: torch.bucketize(long, long[:100]), "argmax": lambda: long.argmax(),
        "cumprod": lambda: long.cumprod(0), "logcumsumexp": lambda: long.logcumsumexp(0), "any": lambda: long.any(),
        "one hot": lambda: nn.functional.one_hot(index[:1000], 30000), "where": lambda: torch.where(long > 0, long, 1),
    }  # fmt: skip
    for label, run in alone.items():
        yield label, peak_of(run)


def context(_count: int) -> Measured:
    """What the process holds outside PyTorch's allocator, as it loads the kernels of more and more libraries."""
    x = torch.randn(512, 512, device="cuda", requires_grad=True)
    layer = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Flatten(), nn.Linear(8 * 36, 4)).cuda()
    heads = torch.randn(2, 4, 128, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    steps = {
        "a tensor": lambda: x + 1,
        "a product": lambda: (x @ x).sum().backward(),
        "a product of bf16": lambda: (x.bfloat16() @ x.bfloat16()).sum().backward(),
        "a convolution": lambda: layer(torch.randn(2, 3, 8, 8, device="cuda")).sum().backward(),
        "attention": lambda: nn.functional.scaled_dot_product_attention(heads, heads, heads).sum().backward(),
        "an optimizer": torch.optim.AdamW(layer.parameters()).step,
        "a transform": lambda: torch.fft.rfft(x.detach()),
        "a decomposition": lambda: torch.linalg.eigh(x.detach() @ x.detach().T),
    }
    for label, run in steps.items():
        run()
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        yield f"outside PyTorch's allocator after {label}", _outside_bytes()


def _outside_bytes() -> int:
    free, total = torch.cuda.mem_get_info()
    return total - free - torch.cuda.memory_reserved()


MEASURES = {
    each.__name__: each
    for each in (
        context, products, attention, normalizations, recurrent, compiled, operators, convolutions, transforms, decompositions,
        graph, benchmark,
    )
}  # fmt: skip


def taken(name: str, count: int) -> dict[str, object]:
    """Take a measure; where it fails, its error."""
    try:
        return dict(MEASURES[name](count))
    except RuntimeError as error:
        return {"error": f"{type(error).__name__}: {str(error).splitlines()[0]}"}


def main() -> None:
    """Take the measures that the arguments name, one after the other."""
    print(json.dumps({name: taken(name, int(sys.argv[1])) for name in sys.argv[2:]}), flush=True)
    os._exit(0)  # autograd's threads may still be busy, and would abort an interpreter that ends


if __name__ == "__main__":
    main()
