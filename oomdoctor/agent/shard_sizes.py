"""Ranks whose parts of a model have other sizes than this rank's: a lone rank works them out and leaves them told.

A world that does not divide a tensor gives some ranks a smaller part of it, or none. Where the parameters of an
optimizer are DTensors each rank's part follows from their placements; where optimizer states are divided, as by
`ZeroRedundancyOptimizer`, it follows from the optimizer's own partition.
"""

# ruff: noqa: ANN401 - torch has no type here

from __future__ import annotations

import itertools
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import imports
from .guard import guarded
from .host_memory import after_init

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_ZERO = "torch.distributed.optim.zero_redundancy_optimizer"


def watch() -> None:
    """Look at what optimizers are made of, from now on."""
    imports.when_imported("torch.optim.optimizer", guarded(_watch_optimizers))
    imports.when_imported(_ZERO, guarded(_watch_partitions))


def file_of(folder: str, rank: int) -> Path:
    """Return where a rank leaves the ranks that it found, one of each size, those with the largest parts first."""
    return Path(folder) / f"distinct-{rank}.json"


def _watch_optimizers() -> None:
    after_init(sys.modules["torch.optim.optimizer"].Optimizer, _note_parameters)


def _watch_partitions() -> None:
    after_init(sys.modules[_ZERO].ZeroRedundancyOptimizer, _note_partition)


def _note_parameters(optimizer: Any) -> None:
    found = {
        (tuple(each.shape), tuple(each.placements), each.device_mesh)
        for group in optimizer.param_groups
        for each in group["params"]
        if hasattr(each, "device_mesh")
    }
    sizes: dict[int, list[int]] = {}
    for shape, placements, mesh in found:
        for rank, elements in _parts(shape, placements, mesh.mesh):
            sizes.setdefault(rank, []).append(elements)
    _write({rank: tuple(each) for rank, each in sizes.items()})


def _note_partition(optimizer: Any) -> None:
    of_ranks = optimizer._partition_parameters()  # noqa: SLF001 - no public way
    _write({rank: (sum(_elements(groups)),) for rank, groups in enumerate(of_ranks)})


def _elements(groups: Iterable[dict[str, Any]]) -> Iterator[int]:
    return (parameter.numel() for group in groups for parameter in group["params"])


def _parts(shape: tuple[int, ...], placements: tuple[Any, ...], mesh: Any) -> Iterator[tuple[int, int]]:
    """Yield each rank of a mesh with the number of elements of its part of a tensor."""
    counts = tuple(mesh.shape)
    # FSDP divides what tensor parallelism has divided before, though its dimension of the mesh comes first.
    order = sorted(range(len(counts)), key=lambda dimension: hasattr(placements[dimension], "split_factor"))
    places = itertools.product(*(range(count) for count in counts))
    for rank, place in zip(mesh.flatten().tolist(), places):  # noqa: B905 - Python 3.8 has no `strict`
        sizes = list(shape)
        for dimension in order:
            if placements[dimension].is_shard():
                cut = placements[dimension].dim
                sizes[cut] = _chunk(sizes[cut], counts[dimension], place[dimension])
        elements = 1
        for size in sizes:
            elements *= size
        yield rank, elements


def _chunk(size: int, count: int, index: int) -> int:
    """Return the size of a part as `torch.chunk` cuts it, which leaves the last ones less or nothing."""
    whole = -(-size // count)
    return max(0, min(whole, size - index * whole))


def _write(sizes: dict[int, tuple[int, ...]]) -> None:
    """Leave a rank of each size, the first or the last where it has that size; nothing where all have the same."""
    first: dict[tuple[int, ...], int] = {}
    for rank in (*sorted(sizes)[:1], *sorted(sizes)[-1:], *sorted(sizes)):
        first.setdefault(sizes[rank], rank)
    if len(first) < 2:  # noqa: PLR2004 - all are as this one
        return
    ranks = [first[size] for size in sorted(first, key=lambda size: (-sum(size), first[size]))]
    path = file_of(os.environ["OOMDOCTOR_LONE_OBJECTS"], int(os.environ["RANK"]))
    path.write_text(json.dumps(ranks), encoding="utf-8")
