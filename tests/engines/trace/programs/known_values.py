"""What a program reads of integers and booleans on the emulated device, and what it would on the host."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from oomdoctor.engines.catalogue import find_card
from oomdoctor.engines.trace.emulation import emulated_cuda

if TYPE_CHECKING:
    from collections.abc import Callable


def _written(device: str) -> Any:
    grid = torch.arange(20, device=device).view(4, 5)
    grid[0] = 0
    grid[1].add_(5)
    grid.t()[2].fill_(8)
    grid.index_put_((torch.tensor([3]).to(device), torch.tensor([0]).to(device)), torch.tensor(99).to(device))
    grid[2, :2].copy_(torch.tensor([41, 42]))
    return grid.tolist()


def _given_out(device: str) -> Any:
    found = torch.empty(3, dtype=torch.long, device=device)
    torch.add(torch.tensor([1, 2, 3]).to(device), 4, out=found)
    return found.tolist()


def _copied_over(device: str) -> Any:
    first, second = torch.zeros(2, 3, dtype=torch.long, device=device), torch.ones(3, dtype=torch.int32).to(device)
    first[1] = second
    second.add_(4)  # a copy keeps what was copied
    return [first.tolist(), second.tolist(), first.t().contiguous().tolist()]


def _inferred(device: str) -> Any:
    with torch.inference_mode():
        inferred = torch.tensor([1, 2], device=device) + 1
        inferred.add_(1)
        return inferred.tolist()


def _joined(device: str) -> Any:
    labels = torch.tensor([3, 0, 9, 4]).to(device)
    return torch.cat([labels, torch.full((2,), 7, device=device), torch.zeros_like(labels)]).tolist()


def _compared(device: str) -> Any:
    labels = torch.tensor([3, 0, 9, 4]).to(device)
    same = torch.equal(labels, labels.clone()), torch.equal(labels, labels + 1)
    return [labels.min().item(), bool(labels.max() < 10), (labels > 3).tolist(), *same]


def _reduced(device: str) -> Any:
    grid = torch.arange(20, device=device).view(4, 5) * 3 % 7
    return [grid.sum().item(), grid.cumsum(0).tolist(), grid.argmax().item(), grid.sort()[0].tolist()]


def _converted(device: str) -> Any:
    flags = torch.tensor([True, False, True]).to(device)
    return [flags.int().sum().item(), flags.to(torch.uint8).tolist(), (~flags).tolist(), flags.any().item()]


def _gathered(device: str) -> Any:
    counts = torch.zeros(10, dtype=torch.long, device=device)
    labels = torch.tensor([3, 0, 9, 3]).to(device)
    counts.scatter_add_(0, labels, torch.ones_like(labels))
    return [counts.tolist(), counts[labels].tolist(), torch.where(counts > 0, counts, -1).tolist()]


CASES: dict[str, Callable[[str], Any]] = {
    "written": _written,
    "given out": _given_out,
    "copied over": _copied_over,
    "inferred": _inferred,
    "joined": _joined,
    "compared": _compared,
    "reduced": _reduced,
    "converted": _converted,
    "gathered": _gathered,
}


def _unknown() -> dict[str, Any]:
    """What is read of values that nobody knows: zeros."""
    known = torch.arange(4, device="cuda")
    drawn, cast = torch.randint(5, 9, (3,), device="cuda"), torch.full((2,), 2.5, device="cuda").long()
    overwritten = known.clone()
    overwritten[1:] = (torch.ones(3, device="cuda") * 3).long()
    resized = known.clone().resize_(8)
    return {
        "drawn": drawn.tolist(),
        "cast": cast.tolist(),
        "overwritten": overwritten.tolist(),
        "mixed": (known + drawn.sum()).tolist(),
        "resized": resized.tolist(),
        "kept": known.tolist(),
    }


def _raised(call: Callable[[], object]) -> str | None:
    try:
        call()
    except IndexError as error:
        return str(error)
    return None


def _bounds() -> dict[str, str | None]:
    """What is said of indices out of range."""
    table, numbers = torch.nn.Embedding(10, 3).cuda(), torch.randn(5, 5, device="cuda")
    loss, above = torch.nn.functional.cross_entropy, torch.tensor([[1, 5]]).cuda()
    return {
        "table": _raised(lambda: table(torch.arange(11, device="cuda"))),
        "in range": _raised(lambda: table(torch.arange(10, device="cuda"))),
        "classes": _raised(lambda: loss(numbers, torch.full((5,), 9, device="cuda"))),
        "ignored": _raised(lambda: loss(numbers, torch.full((5,), -100, device="cuda"))),
        "select": _raised(lambda: numbers.index_select(0, above[0])),
        "gather": _raised(lambda: numbers.gather(1, above)),
        "unknown": _raised(lambda: table(torch.randint(50, 90, (3,), device="cuda"))),
    }


def answers() -> dict[str, Any]:
    """All that; how often data was read back without being known; and the bytes that are left."""
    expected = {name: case("cpu") for name, case in CASES.items()}
    with emulated_cuda(find_card("rtx-4090")) as device:
        found = {name: case("cuda") for name, case in CASES.items()}
        reads = device.reads
        unknown, bounds = _unknown(), _bounds()
        return {
            "expected": expected, "found": found, "reads": reads, "unknown": unknown,
            "unknown reads": device.reads - reads, "bounds": bounds, "held": torch.cuda.memory_allocated(),
        }  # fmt: skip
