"""Python's view of tensors on the emulated device: they are on `cuda:0`, move there, and can be pinned."""

from __future__ import annotations

import sys
import warnings
from contextlib import contextmanager, nullcontext
from functools import wraps
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

import torch
from torch.autograd import forward_ad
from torch.nn.parameter import UninitializedBuffer, is_lazy

from oomdoctor.engines.trace.known_values import host_values
from oomdoctor.engines.trace.refusals import untraceable
from oomdoctor.engines.trace.torch_internals import (
    EMULATED_DEVICE,
    TRANSFORMS,
    autocast_of_wrappers,
    cache_device_constructors,
    check_ordinal,
    default_device,
    no_function_modes,
    swap_implementations,
    tensor_base,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import ExitStack

    from oomdoctor.engines.trace.device import EmulatedDevice


_MISSING = object()


class Patches:
    """Replace attributes until a stack of contexts ends.

    Args:
        stack: What puts them back.
    """

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack

    def set(self, owner: Any, name: str, value: object) -> None:  # noqa: ANN401 - a module or class
        """Replace `owner.name`, which may be missing."""
        before = vars(owner).get(name, _MISSING)
        setattr(owner, name, value)
        if before is _MISSING:
            self._stack.callback(delattr, owner, name)
        else:
            self._stack.callback(setattr, owner, name, before)

    def callback(self, function: Any, *args: object) -> None:  # noqa: ANN401
        """Call `function` when the stack ends."""
        self._stack.callback(function, *args)


CUDA: Final = torch.device("cuda", 0)


def patch_tensors(patches: Patches, device: EmulatedDevice) -> None:
    """Patch tensors to report `cuda:0` as their device, and to accept it as a target."""
    base = tensor_base()
    read_device = base.device.__get__

    def where(tensor: torch.Tensor) -> torch.device:
        found = read_device(tensor)
        return CUDA if found.type == "xla" else found

    patches.set(torch.Tensor, "device", property(where))
    patches.set(torch.Tensor, "is_cuda", property(lambda tensor: read_device(tensor).type in ("xla", "cuda")))
    patches.set(torch.Tensor, "is_xla", property(_is_not_xla))
    patches.set(torch.Tensor, "__setitem__", _with_numbers_on_host(base.__setitem__))
    _patch_moves(patches, base)
    _patch_addresses(patches, base)
    _patch_printing(patches, device)
    patches.set(torch.Tensor, "__deepcopy__", _deep_copying(torch.Tensor.__deepcopy__))
    # else `Module.to` would make new parameters, which optimizers and tied layers do not have
    patches.set(torch.__future__, "_swap_module_params_on_conversion", True)  # noqa: FBT003 - its value
    patches.set(torch.utils, "swap_tensors", _swap)


def _with_numbers_on_host(assign: Any) -> Any:  # noqa: ANN401 - PyTorch's function
    """Return `tensor[index] = value` with a number made into a tensor of the host, as for a CUDA tensor.

    In torch 2.6 C++ makes it on the device for all others, and then counts a mask instead of filling by it.
    """

    def assign_as_on_cuda(self: torch.Tensor, index: Any, value: Any) -> None:  # noqa: ANN401 - as PyTorch
        if type(value) in (bool, int, float) and self.is_cuda:
            value = torch.scalar_tensor(value, dtype=self.dtype, device="cpu")
        assign(self, index, value)

    return assign_as_on_cuda


def _swap(first: torch.Tensor, second: torch.Tensor) -> None:
    """Swap the C++ sides of two tensors; each keeps its class, its attributes and its hooks.

    PyTorch's own function refuses tensors with views, graphs or weak references. `.to("cuda")` on CUDA accepts them,
    and loses no hook.
    """
    swap_implementations(first, second)
    for name in ("_backward_hooks", "_post_accumulate_grad_hooks"):
        if (hooks := getattr(first, name)) is not None:
            setattr(first, name, hooks)  # they are attached to the C++ side


def _is_not_xla(_: torch.Tensor) -> bool:
    return False


def emulated_if_cuda(where: Any) -> Any:  # noqa: ANN401 - whatever takes a device's place among arguments
    """Return `cuda` in any spelling as the emulated device, and all else unchanged.

    Raises:
        RuntimeError: It is a second device, which there is not.
    """
    found = torch.device(where) if isinstance(where, str) and where.partition(":")[0] == "cuda" else where
    if not (isinstance(found, torch.device) and found.type == "cuda"):
        return where
    check_ordinal(found)
    return EMULATED_DEVICE


def _patch_moves(patches: Patches, base: Any) -> None:  # noqa: ANN401
    to = base.to

    def move(self: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:  # noqa: ANN401
        if is_lazy(self):  # there is nothing to move before its shape is known
            nothing = move(torch.empty(0, dtype=self.dtype), *args, **kwargs)
            return nothing.as_subclass(UninitializedBuffer) if isinstance(self, UninitializedBuffer) else nothing
        if args and isinstance(args[0], str | torch.device | int) and not isinstance(args[0], bool):
            first = torch.device("cuda", args[0]) if isinstance(args[0], int) else args[0]
            args = (emulated_if_cuda(first), *args[1:])
        if "device" in kwargs:
            kwargs["device"] = emulated_if_cuda(kwargs["device"])
        if self.layout in _SPARSE and EMULATED_DEVICE in (*args[:1], kwargs.get("device")):
            raise untraceable("torch.Tensor.to", "sparse tensors are not emulated")
        moved: torch.Tensor = to(self, *args, **kwargs)
        return moved

    def cuda(self: torch.Tensor, device: Any = None, *args: Any, **kwargs: Any) -> torch.Tensor:  # noqa: ANN401
        kwargs.update(zip(("non_blocking", "memory_format"), args, strict=False))
        return move(self, "cuda" if device is None else device, **kwargs)

    # whether a copy of a tensor stays on its device, as up to some version after 2.6
    with warnings.catch_warnings(action="ignore"):  # PyTorch recommends another way
        stays = torch.empty(0, device="meta").new_tensor(torch.empty(0)).device.type == "cpu"

    def new_tensor(self: torch.Tensor, data: Any, **kwargs: Any) -> torch.Tensor:  # noqa: ANN401
        where = data if isinstance(data, torch.Tensor) and stays else self
        own = {"dtype": self.dtype, "device": where.device}
        return torch.tensor(data, **{**own, **{name: given for name, given in kwargs.items() if given is not None}})

    patches.set(torch.Tensor, "to", move)
    patches.set(torch.Tensor, "cuda", cuda)
    patches.set(torch.Tensor, "new_tensor", new_tensor)
    for name in _MAKE_OF_DATA:
        patches.set(torch, name, _on_emulated_device(getattr(torch, name)))


_MAKE_OF_DATA: Final = ("tensor", "as_tensor", "asarray")
_SPARSE: Final = (torch.sparse_coo, torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc)


def _on_emulated_device(make: Any) -> Any:  # noqa: ANN401 - a function of torch's
    def placing(*args: Any, device: Any = None, **kwargs: Any) -> torch.Tensor:  # noqa: ANN401
        target = emulated_if_cuda(default_device() if device is None else device)
        if target is not EMULATED_DEVICE:
            elsewhere: torch.Tensor = make(*args, device=device, **kwargs)
            return elsewhere
        requires_grad = kwargs.pop("requires_grad", False)
        with no_function_modes() if device is None else nullcontext():
            on_host = make(*args, **kwargs)
        made: torch.Tensor = on_host.to(target)
        return made.requires_grad_() if requires_grad else made

    return placing


def _patch_addresses(patches: Patches, base: Any) -> None:  # noqa: ANN401
    tensor_address = base.data_ptr

    def address_of_tensor(tensor: torch.Tensor) -> int:
        if tensor.is_cpu:
            address: int = tensor_address(tensor)
            return address
        start = tensor.untyped_storage().data_ptr()  # which `storages` answers
        return start and start + int(tensor.storage_offset()) * tensor.element_size()

    patches.set(torch.Tensor, "data_ptr", address_of_tensor)


def _deep_copying(copy: Any) -> Any:  # noqa: ANN401 - a method of torch's
    def copied(tensor: torch.Tensor, memo: dict[int, Any]) -> Any:  # noqa: ANN401 - of its class
        """Copy a tensor; PyTorch copies the storage, and knows no storage of this device."""
        if tensor.is_cpu or not tensor.is_cuda or not tensor.is_leaf or id(tensor) in memo:
            return copy(tensor, memo)
        memo[id(tensor)] = tensor.detach().clone().requires_grad_(tensor.requires_grad)
        return memo[id(tensor)]

    return copied


def _patch_printing(patches: Patches, device: EmulatedDevice) -> None:
    show: Callable[..., str] = torch.Tensor.__repr__

    def shown(tensor: torch.Tensor, **kwargs: Any) -> str:  # noqa: ANN401
        if tensor.is_cpu or not tensor.is_cuda:
            return show(tensor, **kwargs)
        values = host_values(tensor)
        if values is None:
            device.note_read()
            values = torch.zeros(tensor.shape, dtype=tensor.dtype)
        return f"{show(values, **kwargs)[:-1]}, device='cuda:0')"

    patches.set(torch.Tensor, "__repr__", shown)
    to_numpy = tensor_base().numpy

    def as_array(tensor: torch.Tensor, **kwargs: Any) -> Any:  # noqa: ANN401 - of NumPy
        if not tensor.is_cpu and tensor.is_cuda:
            raise TypeError(_NO_ARRAY)
        return to_numpy(tensor, **kwargs)

    patches.set(torch.Tensor, "numpy", as_array)


_NO_ARRAY: Final = (
    "can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() to copy the tensor to host memory first."
)


_FACTORY_FUNCTIONS: Final = ("empty", "empty_like", "empty_strided", "zeros", "ones", "full", "rand", "randn", "tensor")


def patch_pinning(patches: Patches) -> None:
    """Replace the pinning of memory: without a driver, pinned memory is plain memory of the host."""
    cache_device_constructors()  # by which `with torch.device("cuda")` knows the functions that are replaced here
    for name in _FACTORY_FUNCTIONS:
        patches.set(torch, name, _unpinned(getattr(torch, name)))
    patches.set(torch.Tensor, "pin_memory", _return_tensor)
    loaders = torch.utils.data.dataloader
    patches.set(loaders._BaseDataLoaderIter, "__init__", _without_pinning(loaders._BaseDataLoaderIter.__init__))  # noqa: SLF001 - it has no public name


_FORWARD_MODE: Final = "torch._decomp.decompositions_for_jvp"


def patch_forward_mode(patches: Patches) -> None:
    """Patch forward-mode differentiation to load its decompositions with PyTorch's own functions.

    They are compiled from their source, with the functions that they name; the compiler cannot read what replaces them.
    It goes before all other patches.
    """
    own = {name: getattr(torch, name) for name in {*_FACTORY_FUNCTIONS, *_MAKE_OF_DATA}}
    enter: Any = forward_ad.enter_dual_level

    def load_and_enter() -> Any:  # noqa: ANN401 - the level
        if _FORWARD_MODE not in sys.modules:
            patched = {name: getattr(torch, name) for name in own}
            vars(torch).update(own)
            try:
                import_module(_FORWARD_MODE)
            finally:
                vars(torch).update(patched)
        return enter()

    patches.set(forward_ad, "enter_dual_level", load_and_enter)


def patch_transforms(patches: Patches) -> None:
    """Patch the transforms of `torch.func` to know CUDA's autocast."""
    for module, name in TRANSFORMS:
        patches.set(module, name, _with_autocast(getattr(module, name)))


def _with_autocast(nest: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(nest)
    @contextmanager
    def nested(*args: Any, **kwargs: Any) -> Iterator[Any]:  # noqa: ANN401
        with autocast_of_wrappers(), nest(*args, **kwargs) as level:
            yield level

    return nested


def _unpinned(make: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    @wraps(make)
    def made(*args: Any, pin_memory: bool = False, **kwargs: Any) -> torch.Tensor:  # noqa: ANN401, ARG001
        return make(*args, **kwargs)

    return made


def _return_tensor(tensor: torch.Tensor, *_: object) -> torch.Tensor:
    return tensor


def _without_pinning(begin: Callable[..., None]) -> Callable[..., None]:
    def begin_without(iterator: Any, loader: Any) -> None:  # noqa: ANN401 - classes of PyTorch's without types
        wanted, loader.pin_memory = loader.pin_memory, False
        try:
            begin(iterator, loader)
        finally:
            loader.pin_memory = wanted

    return begin_without
