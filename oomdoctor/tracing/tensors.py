"""What Python sees of a tensor on the emulated device: that it is on `cuda:0`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import torch

from oomdoctor.tracing.private import STAND_IN, swap_implementations, tensor_base

if TYPE_CHECKING:
    from collections.abc import Callable

    from oomdoctor.tracing.device import EmulatedDevice
    from oomdoctor.tracing.patches import Patches

CUDA: Final = torch.device("cuda", 0)


def patch_tensors(patches: Patches, device: EmulatedDevice) -> None:
    """Make tensors tell of `cuda:0`, and take it for where they go."""
    base = tensor_base()
    read_device = base.device.__get__

    def where(tensor: torch.Tensor) -> torch.device:
        found = read_device(tensor)
        return CUDA if found.type == "xla" else found

    patches.set(torch.Tensor, "device", property(where))
    patches.set(torch.Tensor, "is_cuda", property(lambda tensor: read_device(tensor).type in ("xla", "cuda")))
    patches.set(torch.Tensor, "is_xla", property(_is_not_xla))
    _patch_moves(patches, base)
    _patch_addresses(patches, base)
    _patch_printing(patches, device)
    # else `Module.to` would make new parameters, of which an optimizer or a tied layer knows nothing
    patches.set(torch.__future__, "_swap_module_params_on_conversion", True)  # noqa: FBT003 - its value
    patches.set(torch.utils, "swap_tensors", _swap)


def _swap(first: torch.Tensor, second: torch.Tensor) -> None:
    """Swap what two tensors stand for; each keeps its class, its attributes and its hooks.

    PyTorch's own refuses where others refer to a tensor: views, graphs, weak references. `.to("cuda")` on CUDA does
    not mind them, and loses no hook.
    """
    swap_implementations(first, second)
    for name in ("_backward_hooks", "_post_accumulate_grad_hooks"):
        if (hooks := getattr(first, name)) is not None:
            setattr(first, name, hooks)  # they are called by what was swapped away


def _is_not_xla(_: torch.Tensor) -> bool:
    return False


def placed(where: Any) -> Any:  # noqa: ANN401 - whatever takes a device's place among arguments
    """`cuda` in any spelling as the device that C++ knows; all else as it is."""
    if isinstance(where, str) and where.partition(":")[0] == "cuda":
        return STAND_IN
    if isinstance(where, torch.device) and where.type == "cuda":
        return STAND_IN
    return where


def _patch_moves(patches: Patches, base: Any) -> None:  # noqa: ANN401
    to, tensor, as_tensor = base.to, torch.tensor, torch.as_tensor

    def move(self: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:  # noqa: ANN401
        if args and isinstance(args[0], str | torch.device | int) and not isinstance(args[0], bool):
            first = torch.device("cuda", args[0]) if isinstance(args[0], int) else args[0]
            args = (placed(first), *args[1:])
        if "device" in kwargs:
            kwargs["device"] = placed(kwargs["device"])
        moved: torch.Tensor = to(self, *args, **kwargs)
        return moved

    def cuda(self: torch.Tensor, *_: object, **kwargs: Any) -> torch.Tensor:  # noqa: ANN401 - there is one device
        kwargs.pop("device", None)
        moved: torch.Tensor = to(self, STAND_IN, **kwargs)
        return moved

    patches.set(torch.Tensor, "to", move)
    patches.set(torch.Tensor, "cuda", cuda)
    for name, make in (("tensor", tensor), ("as_tensor", as_tensor)):
        patches.set(torch, name, _placing(make))


def _placing(make: Any) -> Any:  # noqa: ANN401 - a function of torch's
    def placing(*args: Any, device: Any = None, **kwargs: Any) -> torch.Tensor:  # noqa: ANN401
        target = placed(device)
        if target is not STAND_IN:
            elsewhere: torch.Tensor = make(*args, device=device, **kwargs)
            return elsewhere
        requires_grad = kwargs.pop("requires_grad", False)
        made: torch.Tensor = make(*args, **kwargs).to(target)
        return made.requires_grad_() if requires_grad else made

    return placing


def _patch_addresses(patches: Patches, base: Any) -> None:  # noqa: ANN401
    storage_class = torch.UntypedStorage
    storage_address, tensor_address = storage_class.data_ptr, base.data_ptr

    def address_of_storage(storage: Any) -> int:  # noqa: ANN401
        block = getattr(storage, "_oomdoctor_block", None)
        return block.address if block is not None else storage_address(storage)

    def address_of_tensor(tensor: torch.Tensor) -> int:
        if tensor.is_cpu:
            address: int = tensor_address(tensor)
            return address
        start = address_of_storage(tensor.untyped_storage())
        return start and start + int(tensor.storage_offset()) * tensor.element_size()

    patches.set(storage_class, "data_ptr", address_of_storage)
    patches.set(torch.Tensor, "data_ptr", address_of_tensor)


def _patch_printing(patches: Patches, device: EmulatedDevice) -> None:
    show: Callable[..., str] = torch.Tensor.__repr__

    def shown(tensor: torch.Tensor, **kwargs: Any) -> str:  # noqa: ANN401
        if tensor.is_cpu or not tensor.is_cuda:
            return show(tensor, **kwargs)
        device.reads += 1
        return f"{show(torch.zeros(tensor.shape, dtype=tensor.dtype), **kwargs)[:-1]}, device='cuda:0')"

    patches.set(torch.Tensor, "__repr__", shown)
