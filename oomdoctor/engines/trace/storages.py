"""Storages on the emulated device: resized, copied, filled and read, as FSDP and offloading of weights do.

C++ knows no memory behind them, so that its own methods end in an internal error. What reads or writes elements does so
through a tensor of their bytes. A storage that is resized keeps the number of bytes that C++ has, which is asked for by
none of our kernels; what Python is told, and what is allocated, is the new one.
"""

# ruff: noqa: ANN401, SLF001 - storages of either kind, with attributes of ours

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import torch

from oomdoctor.engines.trace.refusals import untraceable
from oomdoctor.engines.trace.tensors import CUDA
from oomdoctor.engines.trace.torch_internals import EMULATED_DEVICE, HOST_KEYS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from oomdoctor.engines.trace.device import EmulatedDevice
    from oomdoctor.engines.trace.op_trace import KernelsByName
    from oomdoctor.engines.trace.tensors import Patches

_REFUSED: Final = ("_share_cuda_", "_write_file", "byteswap", "pin_memory")
_set: Any = torch.ops.aten.set_


def kernels() -> KernelsByName:
    """Return the kernels of operators that give a tensor another storage."""
    return {"set_.source_Storage": _set_whole, "set_.source_Storage_storage_offset": _set_part}


def _set_whole(tensor: torch.Tensor, storage: Any) -> torch.Tensor:
    return _set_part(tensor, storage, 0, (storage.nbytes() // tensor.element_size(),))


def _set_part(
    tensor: torch.Tensor, storage: Any, offset: int, size: Sequence[int], stride: Sequence[int] = ()
) -> torch.Tensor:
    steps = tuple(stride) or torch.empty(size, device="meta").stride()
    last = offset + sum((length - 1) * step for length, step in zip(size, steps, strict=True))
    if 0 not in size and (last + 1) * tensor.element_size() > storage.nbytes():
        raise untraceable("torch.Tensor.set_", "the storage is smaller than what is to lie in it")
    placed: torch.Tensor = _set.source_Storage_storage_offset.redispatch(
        HOST_KEYS, tensor, storage, offset, tuple(size), steps
    )
    return placed


def patch_storages(patches: Patches, device: EmulatedDevice) -> None:
    """Patch storages to be resized, copied, filled and read on the emulated device."""
    storage_class: Any = torch.UntypedStorage
    read_device, count = storage_class.device.__get__, storage_class.nbytes

    def where(storage: Any) -> torch.device:
        found: torch.device = read_device(storage)
        return CUDA if found.type == "xla" else found

    def nbytes(storage: Any) -> int:
        resized: int | None = getattr(storage, "_oomdoctor_bytes", None)
        return int(count(storage)) if resized is None else resized

    def resize(storage: Any, size: int) -> Any:
        """Allocate anew and free what was there. Source: `resize_bytes_cuda`, Resize.cpp."""
        block = device.block(size)
        storage._oomdoctor_block, storage._oomdoctor_bytes, storage._oomdoctor_values = block, size, None
        return storage

    def address(storage: Any) -> int:
        block = getattr(storage, "_oomdoctor_block", None)
        return 0 if block is None else int(block.address)

    patches.set(storage_class, "device", property(where))
    for name in ("nbytes", "size", "__len__"):
        patches.set(storage_class, name, nbytes)
    answers: dict[str, Callable[..., Any]] = {
        "resize_": resize,
        "data_ptr": address,
        "copy_": lambda storage, source, *_: (_bytes_of(storage).copy_(_bytes_of(source)), storage)[1],
        "fill_": lambda storage, value: (_bytes_of(storage).fill_(value), storage)[1],
        "clone": lambda storage: _bytes_of(storage).clone().untyped_storage(),
        "cpu": lambda storage: _bytes_of(storage).cpu().untyped_storage(),
        "tolist": lambda storage: _bytes_of(storage).tolist(),
        "__getitem__": lambda storage, index: _bytes_of(storage)[index].item(),
        **{name: _refusal(name) for name in _REFUSED},
    }
    for name, answer in answers.items():
        patches.set(storage_class, name, _where_emulated(answer, getattr(storage_class, name)))
    patches.set(storage_class, "__new__", _maker(storage_class.__new__))
    patches.set(storage_class, "cuda", lambda storage, *_, **__: _bytes_of(storage).cuda().untyped_storage())


def _maker(make: Callable[..., Any]) -> Callable[..., Any]:
    """Return a `__new__` that makes a storage of so many bytes on the emulated device, or as it was made before."""

    def new(storage_class: Any, *args: Any, device: Any = None, **kwargs: Any) -> Any:
        place = {} if device is None else {"device": device}
        if torch.device(device or "cpu").type != "cuda":
            return make(storage_class, *args, **kwargs, **place)
        size = make(storage_class, *args, **kwargs, device="meta").nbytes()
        return torch.empty(size, dtype=torch.uint8, device=CUDA).untyped_storage()

    return new


def _bytes_of(storage: Any) -> torch.Tensor:
    untyped = storage.untyped() if hasattr(storage, "untyped") else storage
    place = EMULATED_DEVICE if _is_emulated(untyped) else untyped.device
    return torch.empty(0, dtype=torch.uint8, device=place).set_(untyped, 0, (untyped.nbytes(),), (1,))


def _is_emulated(storage: Any) -> bool:
    return bool(storage.device.type == "cuda")


def _where_emulated(ours: Callable[..., Any], theirs: Callable[..., Any]) -> Callable[..., Any]:
    def call(storage: Any, *args: Any, **kwargs: Any) -> Any:
        is_ours = _is_emulated(storage) or any(_is_emulated(one) for one in args if hasattr(one, "nbytes"))
        return ours(storage, *args, **kwargs) if is_ours else theirs(storage, *args, **kwargs)

    return call


def _refusal(name: str) -> Callable[..., Any]:
    def refuse(*_: object, **__: object) -> None:
        raise untraceable(f"torch.UntypedStorage.{name}", "a storage on an emulated GPU has no data")

    return refuse
