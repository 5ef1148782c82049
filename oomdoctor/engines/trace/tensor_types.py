"""Types of tensors as old programs name them, such as `torch.cuda.FloatTensor` and `x.type("torch.cuda.HalfTensor")`.

C++ has such types for CUDA only where it was built with CUDA, and makes their tensors with a driver.
"""

from __future__ import annotations

import re
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import torch

from oomdoctor.engines.trace.torch_internals import tensor_base

if TYPE_CHECKING:
    from collections.abc import Iterator

    from oomdoctor.engines.trace.tensors import Patches

_DTYPES: Final = {
    "FloatTensor": torch.float32, "DoubleTensor": torch.float64, "HalfTensor": torch.float16,
    "BFloat16Tensor": torch.bfloat16, "ByteTensor": torch.uint8, "CharTensor": torch.int8, "ShortTensor": torch.int16,
    "IntTensor": torch.int32, "LongTensor": torch.int64, "BoolTensor": torch.bool,
}  # fmt: skip
_NAME_IN_ERRORS: Final = re.compile(r"\bXLA(\w+)Type\b")


@contextmanager
def errors_as_on_cuda() -> Iterator[None]:
    """Let an error of PyTorch's name the types of the emulated device as those of CUDA."""
    try:
        yield
    except RuntimeError as error:
        error.args = tuple(_as_on_cuda(part) if isinstance(part, str) else part for part in error.args)
        raise


def _as_on_cuda(text: str) -> str:
    return _NAME_IN_ERRORS.sub(r"torch.cuda.\1Tensor", text).replace("torch.xla.", "torch.cuda.")


class _CudaType(type):
    """The type of `torch.cuda.FloatTensor` and its like, which make tensors and know them."""

    dtype: torch.dtype
    is_cuda = True
    is_sparse = False
    layout = torch.strided

    def __call__(cls, *args: Any, **_: object) -> torch.Tensor:  # noqa: ANN401 - there is one device
        if args and not isinstance(args[0], int | torch.SymInt | torch.Size):
            return cls._holding(args[0])
        size = args[0] if args and isinstance(args[0], torch.Size) else args or (0,)
        return torch.empty(size, dtype=cls.dtype, device="cuda")

    def _holding(cls, data: Any) -> torch.Tensor:  # noqa: ANN401 - a tensor, or what one is made of
        if not isinstance(data, torch.Tensor):
            return torch.tensor(data, dtype=cls.dtype, device="cuda")
        if cls.__instancecheck__(data):
            return data.detach()
        message = f"expected torch.cuda.{cls.__name__} (got {data.type()})"
        raise TypeError(message)

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, torch.Tensor) and instance.is_cuda and instance.dtype is cls.dtype


def patch_tensor_types(patches: Patches) -> None:
    """Replace the types of CUDA tensors, and what takes them: `Tensor.type` and `torch.set_default_tensor_type`."""
    for name, dtype in _DTYPES.items():
        made = _CudaType(name, (), {"dtype": dtype, "__module__": "torch.cuda"})
        patches.set(torch.cuda, name, made)
    convert, set_default = tensor_base().type, torch.set_default_tensor_type

    def type_of(tensor: torch.Tensor, dtype: Any = None, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - as PyTorch
        if dtype is None:
            return _as_on_cuda(convert(tensor))
        wanted = _type_named(dtype)
        if isinstance(wanted, _CudaType):
            return tensor.to("cuda", wanted.dtype, *args, **kwargs)
        return convert(tensor, wanted, *args, **kwargs)

    def set_default_type(named: Any) -> None:  # noqa: ANN401 - a type or its name
        wanted = _type_named(named)
        is_cuda = isinstance(wanted, _CudaType)
        torch.set_default_device("cuda" if is_cuda else None)
        if is_cuda:
            patches.callback(torch.set_default_device, None)
            torch.set_default_dtype(wanted.dtype)
        else:
            set_default(wanted)

    patches.set(torch.Tensor, "type", type_of)
    patches.set(torch, "set_default_tensor_type", set_default_type)


def _type_named(named: Any) -> Any:  # noqa: ANN401 - a type or its name
    if not (isinstance(named, str) and named.startswith("torch.cuda.")):
        return named
    found = vars(torch.cuda).get(named.removeprefix("torch.cuda."))
    if not isinstance(found, _CudaType):
        message = f"invalid type: {named!r}"
        raise ValueError(message)  # noqa: TRY004 - as PyTorch has it
    return found
