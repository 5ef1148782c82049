"""Every private name of PyTorch that the emulated device uses, in one place, and the version of torch.

Tested with torch 2.6.0 and 2.15.0 (CUDA builds) and 2.13.0 (a CPU build). Where a name is missing, `check_torch` says
so. Only the trace engine imports this file, and only when a step is traced.

| name | what for | since |
|---|---|---|
| `c10::impl::device_guard_impl_registry` | autograd asks the guard of a tensor's device for a stream | 1.1 |
| `torch._C._DisableTorchDispatch`, `Tensor._make_wrapper_subclass` | tensors of a device without memory | 1.11 |
| `torch._C._AutoDispatchBelowAutograd` | kernels run below autograd | 1.12 |
| `torch._C._IncludeDispatchKeyGuard`, `torch._functorch` | autocast of what `torch.func` wraps | 2.1 |
| `torch._C._dispatch_get_all_op_names` | the `_foreach` operators | 1.13 |
| `torch._C._swap_tensor_impl` | moved modules keep their parameters | 2.3 |
| `torch._C._current_graph_task_id` | whether a backward runs | 2.1 |
| `torch.autograd.graph._engine_run_backward` | backward that makes a graph; see `emulation` | 2.1 |
| `torch.optim.optimizer`, `torch.utils._device` | see `cuda_api` | 2.0 |
"""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path
from typing import Any, Final

import torch
from torch._functorch import eager_transforms, vmap
from torch.utils import _device

from oomdoctor.errors import NoAnswerError

TESTED: Final = ("2.6.0", "2.13.0", "2.15.0")
"""Versions of torch with which the names below were tested."""

_C: Any = torch._C  # noqa: SLF001 - the purpose of this file
_TENSOR: Any = torch._C.TensorBase if hasattr(torch._C, "TensorBase") else torch._C._TensorBase  # noqa: SLF001

EMULATED_DEVICE: Final = torch.device("xla", 0)
"""The device that the emulated device is to C++.

'cuda' makes autograd look for a CUDA device, which aborts where there is none, and 'meta' is not eligible for CUDA
autocast. 'xla' passes both: CUDA autocast takes XLA tensors (`is_autocast_eligible`, autocast_mode.h), and no build of
PyTorch has kernels for it, so ours can be registered.
"""

BACKEND_KEY: Final = "XLA"
AUTOGRAD_KEY: Final = "AutogradXLA"

_REQUIRED_NAMES: Final = (
    "_AutoDispatchBelowAutograd",
    "_DisableTorchDispatch",
    "_IncludeDispatchKeyGuard",
    "_current_graph_task_id",
    "_dispatch_get_all_op_names",
    "_swap_tensor_impl",
    "DispatchKey",
    "DispatchKeySet",
)
_SYMBOL: Final = "_ZN3c104impl26device_guard_impl_registryE"
_LIBRARIES: Final = {"linux": "libc10.so", "darwin": "libc10.dylib", "win32": "c10.dll"}


def check_torch() -> None:
    """Check that this torch has the names needed.

    Raises:
        NoAnswerError: A name is missing.
    """
    missing = [name for name in _REQUIRED_NAMES if not hasattr(_C, name)]
    if not hasattr(torch.Tensor, "_make_wrapper_subclass"):
        missing.append("Tensor._make_wrapper_subclass")
    if not hasattr(torch.library.Library, "fallback"):
        missing.append("Library.fallback")
    if missing:
        raise _untested(f"torch {torch.__version__} has no `{missing[0]}`, which the trace engine needs")


def _untested(message: str) -> NoAnswerError:
    tested = ", ".join(TESTED[:-1]) + f" and {TESTED[-1]}"
    return NoAnswerError(message, hint=f"it was tested with torch {tested}; `--engine null` needs no such name")


def install_guard() -> None:
    """Give the emulated device the guard of `meta`, which does nothing; autograd asks a guard for a stream.

    Raises:
        NoAnswerError: The table of guards cannot be found.
    """
    kinds = _C._autograd.DeviceType  # noqa: SLF001
    guards = _guard_table()
    if not guards[int(kinds.XLA)]:
        guards[int(kinds.XLA)] = guards[int(kinds.Meta)]


def _guard_table() -> Any:  # noqa: ANN401 - an array of pointers
    path = Path(torch.__path__[0], "lib", _LIBRARIES.get(sys.platform, "libc10.so"))
    try:
        return (ctypes.c_void_p * 22).in_dll(ctypes.CDLL(str(path)), _SYMBOL)
    except (OSError, ValueError) as error:
        raise _untested(f"the table of device guards of torch {torch.__version__} was not found: {error}") from None


class _BareTensor(torch.Tensor):
    """The subclass that is needed to make a tensor on a device without kernels; a plain copy of it is used."""

    @classmethod
    def __torch_dispatch__(cls, *_: object) -> None:
        raise NotImplementedError


_AUTOCAST = _C.DispatchKeySet(_C.DispatchKey.AutocastCUDA)
_no_dispatch = _C._DisableTorchDispatch  # noqa: SLF001
_wrapper: Any = torch.Tensor._make_wrapper_subclass  # noqa: SLF001


def bare_tensor(size: Any, stride: Any, dtype: torch.dtype, keys: Any = _AUTOCAST) -> torch.Tensor:  # noqa: ANN401
    """Return a plain tensor on the emulated device, whose storage has a size and no memory."""
    with _no_dispatch():
        mould = _wrapper(
            _BareTensor, size, strides=stride, dtype=dtype, device=EMULATED_DEVICE, _extra_dispatch_keys=keys
        )
        plain: torch.Tensor = mould.data
        return plain


def zero_tensor(size: Any, dtype: torch.dtype) -> torch.Tensor:  # noqa: ANN401 - a shape
    """Return zeros that never take memory, such as the derivative of what nothing is derived by."""
    stride = torch.empty(size, device="meta").stride()
    return bare_tensor(size, stride, dtype, _AUTOCAST | _C.DispatchKeySet(_C.DispatchKey.ZeroTensor))


def autocast_of_wrappers() -> Any:  # noqa: ANN401 - a context manager of C++
    """Return a context manager in which CUDA's autocast also takes what `torch.func` wraps tensors in.

    Wrappers have the keys of their backend alone, and so the autocast of XLA. Where autocast is off, or runs already,
    its key stays excluded.
    """
    return _C._IncludeDispatchKeyGuard(_C.DispatchKey.AutocastCUDA)  # noqa: SLF001


TRANSFORMS: Final = (
    (eager_transforms, "grad_increment_nesting"),
    (eager_transforms, "jvp_increment_nesting"),
    (vmap, "vmap_increment_nesting"),
)
"""Modules of `torch.func`, each with the name of a context manager in which it wraps tensors."""


HOST_KEYS: Final = _C.DispatchKeySet(_C.DispatchKey.CPU)
_aten: Any = torch.ops.aten


HOST_VIEWS: Final = (
    "as_strided", "as_strided_", "view", "_reshape_alias", "unfold", "view_as_real", "view_as_complex", "_conj",
)  # fmt: skip
"""Operators whose kernel for the host reads shapes only, so that it serves any device."""


def operator_named(name: str) -> Any:  # noqa: ANN401 - an operator, or None
    """Return an operator by its name without `aten::`, such as `add.Tensor`; None where this torch lacks it."""
    packet, _, overload = name.partition(".")
    return getattr(getattr(_aten, packet, None), overload or "default", None)


def run_host_view(operator: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - an operator
    """Run the host's kernel of an operator that reads shapes only, such as `view`."""
    return operator.redispatch(HOST_KEYS, *args, **kwargs)


def strided_view(base: torch.Tensor, size: Any, stride: Any, offset: int) -> torch.Tensor:  # noqa: ANN401 - shapes
    """Return a tensor that shares its storage with `base`."""
    view: torch.Tensor = _aten.as_strided.default.redispatch(HOST_KEYS, base, size, stride, offset)
    return view


def restride(tensor: torch.Tensor, size: Any, stride: Any) -> None:  # noqa: ANN401 - shapes
    """Give a tensor another shape in its storage."""
    _aten.as_strided_.default.redispatch(HOST_KEYS, tensor, size, stride, tensor.storage_offset())


below_autograd = _C._AutoDispatchBelowAutograd  # noqa: SLF001
"""Context manager in which operators run without autograd."""


def in_backward() -> bool:
    """Return whether autograd's engine runs on this thread; on a GPU it has a thread of its own."""
    return bool(_C._current_graph_task_id() != -1)  # noqa: SLF001


def foreach_operators() -> list[str]:
    """Return the names of operators on lists of tensors, for which CUDA has kernels and other devices loop."""
    names = _C._dispatch_get_all_op_names()  # noqa: SLF001
    return [name[6:] for name in names if name.startswith("aten::_foreach_") and not name.endswith("out")]


def foreach_grouping() -> Any:  # noqa: ANN401 - a function of C++
    """Return the C++ function that groups tensors by device and type; its result has the C++ device."""
    return _C._group_tensors_by_device_and_dtype  # noqa: SLF001


def c_module() -> Any:  # noqa: ANN401 - a module of C++
    """Return the C++ module that `torch.cuda` calls."""
    return _C


def tensor_base() -> Any:  # noqa: ANN401 - a class of C++
    """Return the C++ base class of `torch.Tensor`."""
    return _TENSOR


def reference_counts(tensor: torch.Tensor) -> tuple[int, int]:
    """Return the reference counts of a tensor and of its storage, as C++ counts them."""
    counted: Any = tensor
    storage = tensor.untyped_storage()._cdata  # noqa: SLF001
    return counted._use_count(), _C._storage_Use_Count(storage)  # noqa: SLF001


def sdp_enabled(kind: str) -> bool:
    """Return whether a kind of attention is enabled by `sdpa_kernel` or `torch.backends.cuda`."""
    return bool(getattr(_C, f"_get_{kind}_sdp_enabled")())


def single_threaded_backward() -> Any:  # noqa: ANN401 - a context
    """Return a context manager in which backward runs on the calling thread."""
    return torch.autograd.set_multithreading_enabled(False)


def engine_module() -> Any:  # noqa: ANN401 - a module
    """Return the module whose `_engine_run_backward` every backward calls."""
    return torch.autograd.graph


def has_modes() -> bool:
    """Return whether this thread has hooks or modes that another would lack; torch 2.6 does not report hooks."""
    top = getattr(_C._autograd, "_top_saved_tensors_default_hooks", None)  # noqa: SLF001
    return bool(
        (top and top(True))  # noqa: FBT003 - its argument
        or _C._len_torch_dispatch_stack()  # noqa: SLF001
        or _C._len_torch_function_stack()  # noqa: SLF001
        or _C._functorch.peek_interpreter_stack()  # noqa: SLF001
    )


def cache_device_constructors() -> None:
    """Make PyTorch cache the functions to which `with torch.device(...)` applies."""
    _device._device_constructors()  # noqa: SLF001


def default_device() -> torch.device | None:
    """Return the device of `with torch.device(...)` or `torch.set_default_device`; None for that of the host."""
    overrides: Any = torch.overrides
    modes = reversed(overrides._get_current_function_mode_stack())  # noqa: SLF001
    return next((mode.device for mode in modes if isinstance(mode, _device.DeviceContext)), None)


def check_ordinal(device: torch.device | None) -> None:
    """Refuse a CUDA device that the process does not have, as CUDA does; it has one.

    Raises:
        RuntimeError: The device is not the first.
    """
    if device is not None and device.type == "cuda" and device.index:
        raise _NO_SUCH_DEVICE(
            "CUDA error: invalid device ordinal\nGPU device may be out of range, do you have enough GPUs?\n"
        )


_NO_SUCH_DEVICE: Final = getattr(torch, "AcceleratorError", RuntimeError)


def no_function_modes() -> Any:  # noqa: ANN401 - a context
    """Return a context manager in which no mode, such as a default device, changes a function's arguments."""
    return _C.DisableTorchFunction()


def swap_implementations(first: torch.Tensor, second: torch.Tensor) -> None:
    """Swap the C++ sides of two tensors."""
    _C._swap_tensor_impl(first, second)  # noqa: SLF001


TORCH: Final = (int(torch.__version__.split(".")[0]), int(torch.__version__.split(".")[1]))
"""Major and minor version of torch, by which rules differ."""
