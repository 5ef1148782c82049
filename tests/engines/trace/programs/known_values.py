"""What a program reads of integers and booleans on the emulated device, and what it would on the host."""

from __future__ import annotations

import random
from copy import deepcopy
from typing import TYPE_CHECKING, Any

import torch

from oomdoctor.engines.catalogue import find_card
from oomdoctor.engines.trace.emulation import emulated_cuda
from oomdoctor.errors import NoAnswerError

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


def _together(device: str) -> Any:
    several = [torch.arange(3, device=device), torch.arange(2, device=device)]
    torch._foreach_add_(several, 2)
    return [one.tolist() for one in several]


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
    cut = labels.clone().resize_(2)
    return [cut.tolist(), labels.min().item(), bool(labels.max() < 10), (labels > 3).tolist(), *same]


def _reduced(device: str) -> Any:
    grid = torch.arange(20, device=device).view(4, 5) * 3 % 7
    return [grid.sum().item(), grid.cumsum(0).tolist(), grid.argmax().item(), grid.sort()[0].tolist()]


def _converted(device: str) -> Any:
    flags = torch.tensor([True, False, True]).to(device)
    return [flags.int().sum().item(), flags.to(torch.uint8).tolist(), (~flags).tolist(), flags.any().item()]


def _filled(device: str) -> Any:
    ones = torch.ones(2, 3, device=device)
    fills = torch.full((3,), 2.5, device=device), torch.full_like(ones, -1)
    return [ones.bool().all().item(), ones[:, None].to(torch.bool).tolist(), [one.long().tolist() for one in fills]]


def _gathered(device: str) -> Any:
    counts = torch.zeros(10, dtype=torch.long, device=device)
    labels = torch.tensor([3, 0, 9, 3]).to(device)
    counts.scatter_add_(0, labels, torch.ones_like(labels))
    return [counts.tolist(), counts[labels].tolist(), torch.where(counts > 0, counts, -1).tolist()]


def _inverted(device: str) -> Any:
    order = torch.tensor([2, 0, 3, 1]).to(device)
    scattered, indexed = torch.empty_like(order), torch.empty_like(order)
    scattered.scatter_(0, order, torch.arange(4, device=device))
    indexed[order] = torch.arange(4, device=device)
    return [scattered.tolist(), indexed.tolist()]


def _found(device: str) -> Any:
    grid, labels = torch.arange(20, device=device).view(4, 5), torch.tensor([3, 0, 9, 4]).to(device)
    floats = torch.ones(4, 5, device=device, requires_grad=True)
    floats[grid > 10].sum().backward()
    written = grid.clone()
    written[grid % 3 == 0] = written[grid % 3 == 0] * 2
    return [
        grid[grid > 10].tolist(), grid[:, grid[0] > 2].tolist(), grid[labels > 3].tolist(), written.tolist(),
        list(floats[grid > 10].shape), list(floats[:, grid[0] > 2].shape), list(floats.masked_select(grid > 3).shape),
        (grid % 7 == 0).nonzero().tolist(), [place.tolist() for place in torch.where(grid > 17)],
        [one.tolist() for one in torch.unique(grid % 4, return_inverse=True, return_counts=True)],
        [one.tolist() for one in torch.unique_consecutive(grid // 3, return_inverse=True, return_counts=True)],
        torch.unique(labels).tolist(), (grid > 3).unique().tolist(), grid[grid > 50].tolist(),
        torch.bincount((grid % 4).flatten()).tolist(), torch.bincount(labels, minlength=12).tolist(),
        list(torch.bincount(labels, weights=labels.float()).shape), torch.repeat_interleave(labels).tolist(),
        list(floats.repeat_interleave(labels, dim=0).shape), repr(torch.unique(labels))[:19],
        list(torch.nn.functional.one_hot(labels).shape), grid.masked_select(grid > 15).tolist(),
    ]  # fmt: skip


PROGRAMS = 400
CASES: dict[str, Callable[[str], Any]] = {
    "written": _written,
    "given out": _given_out,
    "copied over": _copied_over,
    "together": _together,
    "inferred": _inferred,
    "joined": _joined,
    "compared": _compared,
    "reduced": _reduced,
    "converted": _converted,
    "filled": _filled,
    "gathered": _gathered,
    "inverted": _inverted,
    "found": _found,
}


STEPS: list[Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = [
    lambda x, _: x + 7,
    lambda x, y: x * y,
    lambda x, _: x.add_(3),
    lambda x, _: x.transpose(0, -1),
    lambda x, _: x.flatten(),
    lambda x, _: x.unsqueeze(0).expand(3, *x.shape),
    lambda x, _: x[1:],
    lambda x, _: x[..., ::2],
    lambda x, _: x.to(torch.uint8),
    lambda x, _: x.to(torch.int32),
    lambda x, _: x.to(torch.bool),
    lambda x, y: torch.cat([x.flatten(), y.flatten()]),
    lambda x, _: x.cumsum(-1),
    lambda x, _: x.sum(),
    lambda x, _: x.sort()[0],
    lambda x, y: torch.where(x > y, x, y * 2),
    lambda x, _: x.zero_(),
    lambda x, y: x.copy_(y),
    lambda x, _: x.flip(0),
    lambda x, y: x == y,
    lambda x, _: deepcopy(x.clone()),
    lambda x, _: x.masked_fill_(x > 5, 2),
    lambda x, _: torch.nn.functional.one_hot((x % 5).long(), 5),
    lambda x, _: x.roll(1, 0),
    lambda x, _: x.index_fill_(0, torch.zeros(1, dtype=torch.long, device=x.device), 9),
    torch.maximum,
    lambda x, _: ~x,
    lambda x, _: x.float().long(),
    lambda x, _: x.chunk(2)[0],
    lambda x, _: x.swapaxes_(0, -1),
    lambda x, _: x[x > 3],
    lambda x, _: x.nonzero(),
    lambda x, _: x.unique(),
    lambda x, _: torch.bincount(x.flatten()),
    lambda x, _: x.repeat_interleave(2, 0),
    lambda x, y: torch.add(x, y, out=torch.empty(0, dtype=torch.long, device=x.device)),
]
"""Uses of integers that programs make in any order; some change what others see."""


def _made(seed: int, device: str) -> list[torch.Tensor | None]:
    """What a random program of such steps makes; None for a step that no tensor of those can take."""
    chance = random.Random(seed)
    made: list[torch.Tensor | None] = [torch.tensor([[4, 9, 2], [7, 0, 5]]).to(device), torch.arange(6, device=device)]
    made.append(torch.full((2, 1), 3, device=device, dtype=torch.int32))
    for _ in range(chance.randrange(3, 12)):
        x, y, step = chance.choice(made), chance.choice(made), chance.choice(STEPS)
        try:
            made.append(None if x is None or y is None else step(x, y))
        except (RuntimeError, IndexError, NoAnswerError):
            made.append(None)
    return made


def _differing(seed: int, device: Any) -> list[object]:
    """What a random program has otherwise than on the host, of all that it does not read as unknown."""
    found: list[object] = []
    for host, emulated in zip(_made(seed, "cpu"), _made(seed, "cuda"), strict=True):
        if host is None or emulated is None:
            if host is not emulated:
                return found  # one of them refuses a step that the other takes, as memory that elements share
            continue
        reads, values = device.reads, emulated.tolist()
        if device.reads == reads and values != host.tolist():
            found.append([seed, host, values])
    return found


def _unknown() -> dict[str, Any]:
    """What is read of values that nobody knows: zeros."""
    known = torch.arange(4, device="cuda")
    drawn, cast = torch.randint(5, 9, (3,), device="cuda"), torch.full((2,), 2.5, device="cuda").mul(2).long()
    overwritten = known.clone()
    overwritten[1:] = (torch.ones(3, device="cuda") * 3).long()
    resized = known.clone().resize_(8)
    written = torch.ones(2, device="cuda")
    written[0] = 2
    partly = torch.empty_like(known)
    partly[known[1:]] = known[1:]
    added = torch.empty_like(known).index_put_((known,), known, accumulate=True)
    return {
        "drawn": drawn.tolist(),
        "filled and written": written.int().tolist(),
        "cast": cast.tolist(),
        "overwritten": overwritten.tolist(),
        "mixed": (known + drawn.sum()).tolist(),
        "resized": resized.tolist(),
        "partly written": partly.tolist(),
        "added to": added.tolist(),
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
        "indexed": _raised(lambda: numbers[:, above[0]]),
        "from the end": _raised(lambda: numbers[above[0] - 6]),
        "items": _raised(lambda: numbers.clone().__setitem__(above[0], 1)),
        "scatter": _raised(lambda: torch.zeros(3, device="cuda").scatter_(0, torch.arange(4, device="cuda"), 1.0)),
        "one hot": _raised(lambda: torch.nn.functional.one_hot(torch.arange(3, device="cuda"), 2)),
        "bag": _raised(lambda: torch.nn.functional.embedding_bag(torch.arange(12).view(3, 4).cuda(), table.weight)),
        "unknown": _raised(lambda: table(torch.randint(50, 90, (3,), device="cuda"))),
    }


def answers() -> dict[str, Any]:
    """All that; how often data was read back without being known; and the bytes that are left."""
    expected = {name: case("cpu") for name, case in CASES.items()}
    with emulated_cuda(find_card("rtx-4090")) as device:
        found = {name: case("cuda") for name, case in CASES.items()}
        reads = device.reads
        differing = [each for seed in range(PROGRAMS) for each in _differing(seed, device)]
        steps_read, reads = device.reads - reads, device.reads
        unknown, bounds = _unknown(), _bounds()
        return {
            "expected": expected, "found": found, "reads": reads - steps_read, "unknown": unknown,
            "differing": [str(each) for each in differing], "steps read": steps_read,
            "unknown reads": device.reads - reads, "bounds": bounds, "held": torch.cuda.memory_allocated(),
        }  # fmt: skip
