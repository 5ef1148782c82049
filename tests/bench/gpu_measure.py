"""Measure the GPU that this process sees, real or null, and print as JSON the bytes of each measure by label.

Usage: python tests/bench/gpu_measure.py COUNT MEASURE...    (the functions of `MEASURES`, by name)
"""

from __future__ import annotations

import json
import os
import random
import sys
import tempfile
from typing import TYPE_CHECKING

import torch
from gpu_operators import DTYPES, attention, both_ways, normalizations, operators, peak_of, products
from torch import nn

if TYPE_CHECKING:
    from gpu_operators import Measured

SEED = 16
WIDTHS, SIDES, KERNELS = (8, 16, 32, 64, 96, 128, 256), (7, 14, 28, 56, 112), (1, 3, 5, 7)


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
        yield from both_ways(label, lambda layer=layer, x=x: layer(x))


def benchmark(count: int) -> Measured:
    """A tenth of them where cuDNN times its algorithms: a GPU takes the quickest, perhaps another at each run."""
    torch.backends.cudnn.benchmark = True
    yield from convolutions(-(-count // 10))


def compiled(_count: int) -> Measured:
    """A compiled step: Inductor's own buffers, with and without the fusions that a card's size decides."""
    # What was compiled or timed before, by any process, is not allocated for again in a first step.
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = folder
        for dtype in ("fp32", "bf16"):
            block = nn.TransformerEncoderLayer(512, 8, 2048, batch_first=True, device="cuda", dtype=DTYPES[dtype])
            x = torch.randn(16, 256, 512, device="cuda", dtype=DTYPES[dtype], requires_grad=True)
            run = torch.compile(block)
            for step in ("first", "second"):
                yield from both_ways(f"encoder layer {dtype}, {step} step,", lambda run=run, x=x: run(x))


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
    names = ("svd", "svdvals", "eigh", "eigvalsh", "qr", "cholesky", "inv", "det", "lu_factor")
    for shape in ((64, 64), (300, 300), (512, 512), (1000, 1000), (2048, 2048), (8, 64, 64), (3, 600, 600)):
        x = torch.randn(shape, device="cuda")
        x = x @ x.mT + shape[-1] * torch.eye(shape[-1], device="cuda")
        for name in names:
            yield f"{name} of {list(shape)}", peak_of(lambda name=name, x=x: getattr(torch.linalg, name)(x))


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
            yield from both_ways(label, lambda layer=layer, x=x: layer(x)[0])


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
        context, graph, products, attention, normalizations, recurrent, compiled, operators, convolutions,
        transforms, decompositions, benchmark,
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
