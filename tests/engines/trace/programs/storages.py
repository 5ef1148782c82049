"""What a program does with storages on the device, as FSDP and offloading do, and the memory that it takes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from oomdoctor.errors import NoAnswerError

if TYPE_CHECKING:
    from collections.abc import Callable

KIB = 1 << 10


def _freed_and_back() -> list[object]:
    weight = torch.randn(256 * KIB, device="cuda")
    storage, held = weight.untyped_storage(), [torch.cuda.memory_allocated()]
    for size in (0, 4 * 256 * KIB, 512 * KIB):
        storage.resize_(size)
        held.append(torch.cuda.memory_allocated())
    return [held[0] - held[1], held[2] - held[1], held[3] - held[1], storage.nbytes(), len(storage)]


def _placed() -> list[object]:
    flat = torch.randn(12, device="cuda")
    whole = torch.empty(0, device="cuda").set_(flat.untyped_storage())
    part = torch.empty(0, device="cuda").set_(flat.untyped_storage(), 4, (2, 3), (3, 1))
    part.add_(1)
    return [list(whole.shape), list(part.shape), part.storage_offset(), part.data_ptr() - flat.data_ptr()]


def _copied() -> list[object]:
    first, second = torch.randn(12, device="cuda"), torch.randn(12)
    before = torch.cuda.memory_allocated()
    first.untyped_storage().copy_(second.untyped_storage())
    second.untyped_storage().copy_(first.untyped_storage())
    twin = first.untyped_storage().clone()
    taken = torch.cuda.memory_allocated() - before
    return [taken, twin.nbytes(), twin.device.type, first.untyped_storage().cpu().device.type]


def _filled() -> list[object]:
    storage = torch.empty(6, dtype=torch.uint8, device="cuda").untyped_storage()
    storage.fill_(7)
    return [storage.nbytes(), storage.is_cuda, str(storage.device), second_storage().nbytes()]


def _made() -> list[object]:
    before = torch.cuda.memory_allocated()
    storage = torch.UntypedStorage(5 * KIB, device="cuda")
    host = torch.UntypedStorage(5)
    taken = torch.cuda.memory_allocated() - before
    return [storage.nbytes(), storage.device.type, taken, host.nbytes(), host.device.type]


def second_storage() -> torch.UntypedStorage:
    """A storage that was made on the host."""
    return torch.ones(5).untyped_storage().cuda()


CASES: dict[str, Callable[[], list[object]]] = {
    "freed and back": _freed_and_back,
    "placed": _placed,
    "copied": _copied,
    "filled": _filled,
    "made": _made,
}


def answers() -> dict[str, list[object]]:
    """What each gives."""
    return {name: case() for name, case in CASES.items()}


def own_answers() -> dict[str, object]:
    """What the emulated device alone says: values that it knows, and refusals."""
    labels = torch.tensor([3, 0, 9]).cuda()
    twin = torch.empty(0, dtype=torch.long, device="cuda").set_(labels.untyped_storage())
    target = torch.zeros(3, dtype=torch.long)
    target.untyped_storage().copy_(twin.untyped_storage())
    refused: dict[str, str] = {}
    for name, call in {
        "too small": lambda: torch.empty(0, device="cuda").set_(
            torch.ones(2, device="cuda").untyped_storage(), 0, (9,)
        ),
        "shared": lambda: labels.untyped_storage()._share_cuda_(),
        "exported": lambda: torch.utils.dlpack.to_dlpack(labels),
        "taken": lambda: torch.utils.dlpack.from_dlpack(labels),
    }.items():
        try:
            call()
        except NoAnswerError as error:
            refused[name] = str(error)
    return {"twin": twin.tolist(), "target": target.tolist(), "refused": refused}
