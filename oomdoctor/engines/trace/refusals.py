"""Refusals of what cannot be traced: the operator, the user's line, and the engine that can run it."""

from __future__ import annotations

import re
import sys
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn

import torch

import oomdoctor
from oomdoctor.agent.operator_kinds import replaced, tensors_in
from oomdoctor.engines.trace.layouts import accumulation_type, plain_name
from oomdoctor.errors import NoAnswerError

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

    from oomdoctor.engines.trace.tensors import Patches


_OTHER_ENGINES: Final = "run it on PyTorch itself: `--engine null` on Linux with a CUDA build of torch, or a real GPU"
_NO_USER_LINE: Final = "; none of your lines calls it, as where PyTorch calls it in a backward"
_ADVICE: Final = re.compile(r"\n|(?<=\.) (?=To |This |Please |If |You )")
"""The end of PyTorch's explanation, where its advice for its own developers begins."""
_PACKAGE: Final = str(Path(oomdoctor.__file__).parent)
_EXAMPLES: Final = str(Path(_PACKAGE, "examples"))
_LIBRARY_MODULES: Final = ("torch.", "functools", "contextlib", "threading", "concurrent.", "runpy")
_TAKE_HOST_TENSORS: Final = frozenset({"aten::index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_"})
"""Operators that take tensors of the host together with those of the device."""


class UntraceableError(NoAnswerError):
    """An operator whose results' shapes or memory cannot be known without computing."""


def untraceable(operator: Any, why: object = None) -> UntraceableError:  # noqa: ANN401 - an operator
    """Return the error for an operator that cannot be traced."""
    name = str(operator).removesuffix(".default")
    line = user_line()
    return UntraceableError(
        f"`{name}` cannot be traced{f', at {line}' if line else _NO_USER_LINE}",
        hint=_OTHER_ENGINES,
        details=_ADVICE.split(str(why))[0].strip() or None if why else None,
    )


def user_line() -> str | None:
    """Return file and line of the user's innermost frame; None where there is none, as in most backwards."""
    # the only way to one's callers without reading their source
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001
    while frame is not None:
        path = frame.f_code.co_filename
        is_ours = path.startswith(_PACKAGE) and not path.startswith(_EXAMPLES)
        if not is_ours and not frame.f_globals.get("__name__", "").startswith(_LIBRARY_MODULES):
            return f"{path}:{frame.f_lineno}"
        frame = frame.f_back
    return None


def check_same_device(operator: Any, given: list[torch.Tensor]) -> None:  # noqa: ANN401
    """Refuse tensors of the host among those of the device, as CUDA does; numbers are allowed.

    Raises:
        RuntimeError: As PyTorch has it.
    """
    if given and given[0].is_cpu and given[0].dim() > 0 and operator.name().partition(".")[0] == "aten::index":
        raise RuntimeError("indices should be either on cpu or on the same device as the indexed tensor (cpu)")
    strangers = [tensor for tensor in given if tensor.is_cpu and tensor.dim() > 0]
    if strangers and operator.name().partition(".")[0] not in _TAKE_HOST_TENSORS:
        raise RuntimeError(
            "Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu!"
        )


_WITHOUT_IDENTITY: Final = frozenset(
    f"aten::{name}"
    for name in ("max", "min", "amax", "amin", "aminmax", "argmax", "argmin", "median", "nanmedian", "mode", "kthvalue")
)
"""Reductions that have no result for no elements."""


def host_error(operator: Any, args: Any, kwargs: dict[str, Any]) -> Exception | None:  # noqa: ANN401 - an operator
    """Return the error with which PyTorch refuses to reduce no elements; None for all else.

    The kernels for shapes do not look, or say it in other words; that of the host has nothing to compute.
    """
    given = tensors_in((args, tuple(kwargs.values())))
    if operator.name().partition(".")[0] not in _WITHOUT_IDENTITY or given[0].numel():
        return None
    try:
        operator(*replaced(args, _on_host), **{name: replaced(value, _on_host) for name, value in kwargs.items()})
    except (RuntimeError, IndexError) as error:
        return error.with_traceback(None)
    return None


_JOINING: Final = (
    "add", "addbmm", "addcmul", "addmm", "addmv", "baddbmm", "bmm", "cat", "convolution", "div", "dot", "eq", "gt",
    "lt", "maximum", "minimum", "mm", "mul", "mv", "stack", "sub", "where",
)  # fmt: skip
"""Operators whose kernels for shapes say in words of their own what does not fit."""


def mismatch_error(operator: Any, args: Any) -> Exception | None:  # noqa: ANN401 - an operator
    """Return the error with which PyTorch refuses shapes or types that do not go together; None for other operators.

    The host's kernel is given tensors of one element that only seem to have the shapes, and refuses before it computes.
    """
    if plain_name(operator) not in _JOINING:
        return None
    try:
        operator(*replaced(args, _of_one_element))
    except RuntimeError as error:
        return error.with_traceback(None)
    return None


def _of_one_element(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty((), dtype=tensor.dtype, device="cpu").expand(tensor.shape)


def _on_host(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty(tensor.shape, dtype=accumulation_type(tensor.dtype), device="cpu")


_SPARSE: Final = (
    "embedding_sparse_backward", "_embedding_bag_sparse_backward", "sparse_coo_tensor.indices",
    "sparse_coo_tensor.indices_size", "sparse_coo_tensor.size", "_sparse_coo_tensor_unsafe", "_to_sparse",
    "_to_sparse.sparse_dim",
)  # fmt: skip


def sparse_refusals() -> dict[str, Callable[..., Any]]:
    """Return functions that refuse, by the name of an operator that makes a sparse tensor."""
    return {name: _refusal(name, "sparse tensors are not emulated") for name in _SPARSE}


def refuse_unsupported(patches: Patches) -> None:
    """Patch scripted modules, nested tensors, and what saves tensors or hands them to other libraries, to refuse."""
    for name in ("nested_tensor", "as_nested_tensor", "nested_tensor_from_jagged"):
        patches.set(torch.nested, name, _refusal(f"torch.nested.{name}", "nested tensors are not emulated"))
    scripted = _refusal("torch.jit.ScriptModule", "the tensors of a scripted or traced module cannot be moved")
    patches.set(torch.jit.ScriptModule, "_apply", scripted)
    tag, save = torch.serialization.location_tag, _refusal("torch.save", "tensors on an emulated GPU have no data")
    patches.set(torch.serialization, "location_tag", _unless_emulated(tag, save))
    graph, graphed = (
        _refusal(f"torch.cuda.{name}", "a trace cannot capture a graph")
        for name in ("CUDAGraph", "make_graphed_callables")
    )
    patches.set(torch.cuda, "CUDAGraph", type("CUDAGraph", (), {"__new__": graph}))  # a class: annotations name it
    patches.set(torch.cuda, "make_graphed_callables", graphed)
    for name in ("sparse_coo_tensor", "sparse_csr_tensor", "sparse_csc_tensor", "sparse_compressed_tensor"):
        refuse = _refusal(f"torch.{name}", "sparse tensors are not emulated")
        patches.set(torch, name, _unless_on_device(getattr(torch, name), refuse))
    _refuse_exchange(patches)


def _unless_on_device(theirs: Callable[..., Any], refuse: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(theirs)
    def call(*args: object, device: Any = None, **kwargs: object) -> object:  # noqa: ANN401 - a device, or its name
        if device is not None and torch.device(device).type == "cuda":
            refuse()
        return theirs(*args, device=device, **kwargs)

    return call


def _refuse_exchange(patches: Patches) -> None:
    """Patch the ways by which a tensor on the device is handed to another library through DLPack."""
    ways = ((torch, "to_dlpack"), (torch.utils.dlpack, "to_dlpack"), (torch.Tensor, "__dlpack__"))
    refuse = _refusal("torch.to_dlpack", "tensors on an emulated GPU have no data")
    for owner, name in ways:
        patches.set(owner, name, _unless_emulated(getattr(owner, name), refuse))


def _unless_emulated(theirs: Callable[..., Any], refuse: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(theirs)
    def call(given: Any, *args: object, **kwargs: object) -> object:  # noqa: ANN401 - a tensor, or a storage of either kind
        return (refuse if _is_emulated(given) else theirs)(given, *args, **kwargs)

    return call


def _is_emulated(given: Any) -> bool:  # noqa: ANN401 - a tensor, or a storage of either kind
    return torch.device(given.device).type in ("xla", "cuda")


def _refusal(name: str, why: str) -> Callable[..., Any]:
    def refuse(*_: object, **__: object) -> None:
        raise untraceable(name, why)

    return refuse


def refuse_compiled(patches: Patches) -> None:
    """Patch `torch.compile` to return a function that refuses: what fused code allocates, only the compiler knows."""
    patches.set(torch, "compile", _refused_compile)
    patches.set(torch.nn.Module, "compile", lambda module, *_, **__: _refused_compile(module) and None)


def _refused_compile(model: Any = None, **options: object) -> Any:  # noqa: ANN401 - a module or a function, as `torch.compile`
    if model is None:
        return lambda given: _refused_compile(given, **options)
    if isinstance(model, torch.nn.Module):
        model.register_forward_pre_hook(_refuse_call)
        return model
    return _refused_function(model)


def _refused_function(function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    def refuse(*_: object, **__: object) -> NoReturn:
        _refuse_call()

    return refuse


def _refuse_call(*_: object) -> NoReturn:
    raise untraceable("torch.compile")
