"""Products, sums, and what is done to each number."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812 - as everybody has it

from operator_cases.making import DEVICE, HALF, case, given, leaf, ones, places, zeros

CASES = {
    "vector_norm": case(lambda: torch.linalg.vector_norm(zeros(768, 32000))),
    "vector_norm bf16": case(lambda: torch.linalg.vector_norm(zeros(768, 3200, dtype=HALF))),
    "norm 1": case(lambda: zeros(768, 3200).norm(1)),
    "vector_norm dim": case(lambda x: torch.linalg.vector_norm(x, dim=-1), leaf(768, 320)),
    "normalize": case(lambda x: F.normalize(x, dim=-1), leaf(768, 320)),
    "bmm expand": case(
        lambda a, b: torch.matmul(a.expand(8, 50, 60), b.expand(8, 60, 70)), leaf(1, 50, 60), leaf(1, 60, 70)
    ),
    "bmm tr": case(lambda a, b: torch.matmul(a.transpose(1, 2), b[:, :, ::2]), leaf(8, 60, 50), leaf(8, 60, 70)),
    "matmul 4d perm": case(
        lambda a, b: torch.matmul(a.permute(0, 2, 1, 3), b.permute(0, 2, 3, 1)),
        leaf(4, 100, 8, 16),
        leaf(4, 100, 8, 16),
    ),
    "matmul sliced": case(
        lambda a, b: torch.matmul(a[:, :, :, :13], b[:, :, :13]), leaf(4, 8, 100, 16), leaf(4, 8, 16, 100)
    ),
    "bmm bf16 sliced": case(
        lambda a, b: torch.bmm(a[:, :, :13], b[:, :13]), leaf(8, 100, 16, dtype=HALF), leaf(8, 16, 100, dtype=HALF)
    ),
    "mm sliced": case(lambda a, b: torch.mm(a[:, ::2], b[::2]), leaf(100, 16), leaf(16, 100)),
    "arange": case(lambda: torch.arange(1000, device=DEVICE)),
    "arange f": case(lambda: torch.arange(0, 1000, 2, device=DEVICE, dtype=torch.float32)),
    "to cpu strided": case(lambda: torch.zeros(30, 40).t().to(DEVICE)),
    "to half": case(lambda: torch.zeros(30, 40).to(DEVICE, torch.bfloat16)),
    "to t half": case(lambda: zeros(30, 40).t().to(torch.bfloat16)),
    "to expanded": case(lambda: zeros(1, 40).expand(30, 40).to(torch.bfloat16)),
    "cumsum": case(lambda x: x.cumsum(-1), leaf(100, 1000)),
    "cumsum 1d": case(lambda x: x.cumsum(0), leaf(100000)),
    "cumsum long": case(lambda: places(16, 512).cumsum(1)),
    "max dim": case(lambda x: x.max(-1)[0], leaf(100, 1000)),
    "max all": case(lambda x: x.max(), leaf(100, 1000)),
    "argmax": case(lambda: zeros(100, 1000).argmax(-1)),
    "argmax all": case(lambda: zeros(1000, 1000).argmax()),
    "std": case(lambda x: x.std(), leaf(1000, 1000)),
    "var dim": case(lambda x: x.var(-1), leaf(1000, 1000)),
    "logsumexp": case(lambda x: x.logsumexp(-1), leaf(1000, 100)),
    "logsumexp0": case(lambda x: x.logsumexp(0), leaf(100000, 10)),
    "sum all": case(lambda x: x.sum(), leaf(1000, 1000)),
    "sum bool": case(lambda x: (x > 0).sum(), given(1000, 1000)),
    "any": case(lambda x: (x > 0).any(), given(1000, 1000)),
    "all dim": case(lambda: (zeros(1000, 1000) > 0).all(1)),
    "mean 0": case(lambda x: x.mean(0), leaf(100000, 10)),
    "cdist": case(torch.cdist, leaf(4, 100, 30), leaf(4, 80, 30)),
    "pdist": case(F.pdist, leaf(100, 30)),
    "einsum": case(lambda a, b: torch.einsum("bhid,bhjd->bhij", a, b), leaf(4, 8, 50, 16), leaf(4, 8, 60, 16)),
    "einsum2": case(lambda a, b: torch.einsum("bchw,bkhw->bck", a, b), leaf(4, 8, 50, 16), leaf(4, 9, 50, 16)),
    "normal tt": case(lambda: torch.normal(zeros(100, 10), ones(100, 10))),
    "rand_like": case(lambda: torch.rand_like(zeros(1000))),
    "bernoulli": case(lambda: torch.bernoulli(zeros(1000))),
    "complex mul": case(
        lambda x: (torch.view_as_complex(x) * torch.view_as_complex(zeros(100, 20, 2))).abs(), leaf(100, 20, 2)
    ),
    "clamp": case(lambda x: x.clamp(min=0.1), leaf(100, 300)),
    "pow": case(lambda x: x.pow(3), leaf(100, 300)),
    "prod": case(lambda x: x.prod(-1), leaf(100, 300)),
    "lerp": case(lambda: zeros(100, 100).lerp_(zeros(100, 100), 0.1)),
    "addcmul": case(lambda: zeros(100, 100).addcmul_(zeros(100, 100), zeros(100, 100))),
    "tensordot": case(lambda a, b: torch.tensordot(a, b, dims=([1, 2], [0, 1])), leaf(20, 8, 9), leaf(8, 9, 30)),
    "outer add": case(lambda a, b: a[:, None] + b[None], leaf(200), leaf(300)),
    "baddbmm": case(torch.baddbmm, leaf(8, 50, 70), leaf(8, 50, 60), leaf(8, 60, 70)),
    "addmm beta": case(lambda c, a, b: torch.addmm(c, a, b, beta=0.5), leaf(50, 70), leaf(50, 60), leaf(60, 70)),
    "logcumsumexp": case(lambda x: x.logcumsumexp(-1), leaf(20, 30)),
}
