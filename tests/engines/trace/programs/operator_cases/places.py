"""What is looked up, put, moved and sorted by place."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F  # noqa: N812 - as everybody has it

from operator_cases.making import DEVICE, HALF, Case, case, leaf, ones, places, zeros

_EMBEDDINGS = ((10, 30), (4000, 30), (5000, 20_000), (100_000, 1000))
_INDEXED: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "by one": lambda x: x[places(1)],
    "by a vector": lambda x: x[places(20)],
    "by a matrix": lambda x: x[places(5, 600)],
    "in the middle": lambda x: x[:, places(20)],
    "twice": lambda x: x[places(20), places(20)],
    "twice apart": lambda x: x[places(20), :, places(20)],
    "at the end": lambda x: x[..., places(20)],
    "by a grid": lambda x: x[places(5)[:, None], places(4)[None]],
}


def _embedding(count: int, rows: int) -> Case:
    return case(lambda weight: F.embedding(places(count), weight), leaf(rows, 16))


def _every(step: int, count: int) -> torch.Tensor:
    """A mask that the host knows."""
    return (torch.arange(count) % step == 0).to(DEVICE)


def _labels(count: int) -> torch.Tensor:
    return (torch.arange(count) % 100).to(DEVICE)


_FOUND = {
    "nonzero": lambda count: _every(3, count).nonzero(),
    "nonzero of a matrix": lambda count: _every(3, count).view(-1, 10).nonzero(),
    "unique": lambda count: _labels(count).unique(),
    "unique with all": lambda count: torch.unique(_labels(count), return_inverse=True, return_counts=True)[0],
    "unique flags": lambda count: _every(3, count).unique(),
    "unique runs": lambda count: torch.unique_consecutive(_labels(count), return_inverse=True, return_counts=True)[0],
    "bincount": lambda count: torch.bincount(_labels(count)),
    "repeats": lambda count: torch.repeat_interleave(_labels(count)),
}
"""Results whose size the values say, of few and of many."""

CASES = {
    **{f"{name} of few": case(lambda _, find=find: find(1000), leaf(2)) for name, find in _FOUND.items()},
    **{f"{name} of many": case(lambda _, find=find: find(300_000), leaf(2)) for name, find in _FOUND.items()},
    "sum beyond 32 bits": case(lambda x: x.sum(0), leaf(1_327_104, 1000)),
    "sum of all beyond 32 bits": case(lambda x: x.sum(), leaf(3_000_000, 1000)),
    "masked": case(lambda x: x[_every(3, 5000)], leaf(5000, 16)),
    "masked elements": case(lambda x: x[_every(3, 5000).view(500, 10)], leaf(500, 10)),
    "masked columns": case(lambda x: x[:, _every(3, 50)], leaf(300, 50)),
    "masked select": case(lambda x: x.masked_select(_every(3, 5000)), leaf(5000)),
    "masked put": case(lambda x: zeros(5000, 16).index_put((_every(5, 5000),), x), leaf(1000, 16)),
    "repeated": case(lambda x: x.repeat_interleave(_labels(50), dim=0), leaf(50, 16)),
    "embedding expanded": case(lambda w: F.embedding(places(1, 512).expand(8, 512), w), leaf(30, 16)),
    "embedding grad noncontig": case(lambda w: F.embedding(places(8, 512), w).transpose(0, 1), leaf(30, 16)),
    "embedding padding": case(lambda w: F.embedding(places(8, 512), w, padding_idx=0), leaf(30, 16)),
    "embedding int32": case(lambda w: F.embedding(places(8, 512).int(), w), leaf(30, 16)),
    "embedding freq": case(lambda w: F.embedding(places(8, 512), w, scale_grad_by_freq=True), leaf(30, 16)),
    "embedding bf16": case(lambda w: F.embedding(places(8, 512), w), leaf(3000, 16, dtype=HALF)),
    "index big": case(lambda x: x[places(50000)], leaf(3000, 16)),
    "index int32": case(lambda x: x[places(500).int()], leaf(3000, 16)),
    "index slice1": case(lambda x: x[:, :, [-1]], leaf(3, 100, 14, 64)),
    "index_put acc": case(lambda x: zeros(300, 16).index_put((places(5000),), x, accumulate=True), leaf(5000, 16)),
    "index_put": case(lambda x: zeros(300, 16).index_put((places(5000),), x), leaf(5000, 16)),
    "index_add": case(lambda x: zeros(300, 16).index_add(0, places(5000), x), leaf(5000, 16)),
    "index_select": case(lambda x: x.index_select(0, places(5000)), leaf(300, 16)),
    "scatter_add": case(lambda x: zeros(300, 16).scatter_add(0, places(5000, 16), x), leaf(5000, 16)),
    "gather": case(lambda x: x.gather(0, places(200, 16)), leaf(300, 16)),
    "scatter_reduce": case(lambda x: zeros(300, 16).scatter_reduce(0, places(5000, 16), x, "amax"), leaf(5000, 16)),
    "take_along": case(lambda x: torch.take_along_dim(x, places(300, 3), 1), leaf(300, 16)),
    "flip": case(lambda x: x.flip(1), leaf(20, 30, 40)),
    "flip2": case(lambda x: x.flip((0, 2)), leaf(20, 30, 40)),
    "sort": case(lambda x: x.sort(-1)[0], leaf(100, 1000)),
    "sort big": case(lambda x: x.sort(-1)[0], leaf(10, 100000)),
    "argsort": case(lambda: zeros(10, 10000).argsort(-1)),
    "topk": case(lambda x: x.topk(5, -1)[0], leaf(100, 1000)),
    "topk big": case(lambda x: x.topk(500, -1)[0], leaf(4, 100000)),
    "roll": case(lambda x: x.roll(3, 1), leaf(10, 160, 20)),
    "roll2": case(lambda x: x.roll((3, 2), (1, 2)), leaf(10, 160, 20)),
    "repeat_interleave": case(lambda x: x.repeat_interleave(3, 1), leaf(10, 160, 20)),
    "multinomial": case(lambda: torch.multinomial(ones(100, 1000), 1)),
    "multinomial rep": case(lambda: torch.multinomial(ones(100, 1000), 5, replacement=True)),
    "randperm": case(lambda: torch.randperm(1000, device=DEVICE)),
    "randperm big": case(lambda: torch.randperm(100000, device=DEVICE)),
    "embedding_bag": case(
        lambda w: F.embedding_bag(places(5000), w, torch.arange(0, 5000, 50, device=DEVICE)), leaf(3000, 16)
    ),
    "embedding_bag sum": case(lambda w: F.embedding_bag(places(50, 100), w, mode="sum"), leaf(3000, 16)),
    "embedding_bag max": case(lambda w: F.embedding_bag(places(50, 100), w, mode="max"), leaf(3000, 16)),
    "embedding_bag weights": case(
        lambda w, p: F.embedding_bag(places(50, 100), w, per_sample_weights=p, mode="sum"),
        leaf(3000, 16),
        leaf(50, 100),
    ),
    "tril": case(lambda x: x.tril(), leaf(100, 100)),
    "masked_fill": case(lambda x: x.masked_fill(zeros(100, 100) > 0, -1.0), leaf(100, 100)),
    "where": case(lambda x: torch.where(zeros(100, 100) > 0, x, 0.0), leaf(100, 100)),
    "cat": case(lambda x, y: torch.cat([x, y.transpose(0, 1)], 1), leaf(100, 100), leaf(100, 100)),
    "stack": case(lambda x, y: torch.stack([x, y], 1), leaf(100, 100), leaf(100, 100)),
    "chunk": case(lambda x: sum(x.chunk(3, -1)), leaf(100, 300)),
    "split cat": case(lambda x: torch.cat(x.split([100, 200], -1)[::-1], -1), leaf(100, 300)),
    "diag": case(lambda x: x.diagonal(), leaf(100, 300)),
    "one_hot": case(lambda: F.one_hot(places(100), 10)),
    "bucketize": case(lambda: torch.bucketize(zeros(100, 100), torch.arange(10, device=DEVICE, dtype=torch.float32))),
    "isin": case(lambda: torch.isin(places(100), places(5))),
    "histc": case(lambda: torch.histc(zeros(1000), 10)),
    "searchsorted nc": case(lambda: torch.searchsorted(zeros(100), zeros(100, 100).t())),
    "kthvalue": case(lambda x: x.kthvalue(3, -1)[0], leaf(100, 300)),
    "median": case(lambda x: x.median(-1)[0], leaf(100, 300)),
    "quantile": case(lambda x: x.quantile(0.5), leaf(100, 300)),
    **{f"embedding of {count} in {rows}": _embedding(count, rows) for count, rows in _EMBEDDINGS},
    **{f"index {name}": case(function, leaf(30, 40, 50)) for name, function in _INDEXED.items()},
}
