"""Measure the GPU that this process sees, real or null, and print as JSON the bytes of each measure by label.

Usage: python tests/bench/gpu_measure.py COUNT context|convolutions|transforms|decompositions|graph|benchmark...
"""

from __future__ import annotations

import json
import os
import random
import sys
from collections.abc import Callable, Iterator

import torch
from torch import nn

Measured = Iterator[tuple[str, int]]
SEED = 16
WIDTHS, SIDES, KERNELS = (8, 16, 32, 64, 96, 128, 256), (7, 14, 28, 56, 112), (1, 3, 5, 7)
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def peak_of(run: Callable[[], object]) -> int:
    """Return the most bytes that are allocated while a function runs, besides those before; what it made is dropped."""
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    run()
    torch.cuda.synchronize()
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
        kept: list[torch.Tensor] = []
        yield f"{label} forward", peak_of(lambda layer=layer, x=x, kept=kept: kept.append(layer(x)))
        yield f"{label} backward", peak_of(lambda kept=kept: _backward(kept))


def _backward(kept: list[torch.Tensor]) -> None:
    made = kept.pop()
    made.backward(torch.ones_like(made))


def benchmark(count: int) -> Measured:
    """A tenth of them where cuDNN times its algorithms: a GPU takes the quickest, perhaps another at each run."""
    torch.backends.cudnn.benchmark = True
    yield from convolutions(-(-count // 10))


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


def context(_count: int) -> Measured:
    """What the process holds outside PyTorch's allocator after a small convolutional step."""
    layer = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Flatten(), nn.Linear(8 * 36, 4)).cuda()
    layer(torch.randn(2, 3, 8, 8, device="cuda")).sum().backward()
    torch.cuda.synchronize()
    yield "outside PyTorch's allocator", _outside_bytes()


def _outside_bytes() -> int:
    free, total = torch.cuda.mem_get_info()
    return total - free - torch.cuda.memory_reserved()


MEASURES = {each.__name__: each for each in (context, convolutions, transforms, decompositions, graph, benchmark)}


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
