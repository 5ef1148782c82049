"""Values that a null GPU's integers and booleans would have: kept on the host, beside tensors that came from there.

A null GPU runs no kernel, so what a program reads back is zero. Labels, indices, lengths and masks are integers that a
program makes on the host, though, and what it does with them decides where it goes: `labels.max() < 10`,
`lengths.cpu()`, `edges[:, mask]`. A tensor of integers or booleans that is copied to the device, or filled there, keeps
its values in host memory as long as its storage lives. Operators of which all arguments are known run on the host, too.
What is computed from floating-point numbers stays unknown; `unknown_reads` says where such a value was read.

A known tensor carries a dispatch key that no other tensor has and that PyTorch itself never uses, so operators without
known tensors run as fast as before. Views inherit the key, and the values belong to the storage, so that a write
through any view changes or drops them. Storages, strides and sizes on the device are the same, and so is its memory.

Private names of PyTorch, tested with 2.6 and 2.15: `Tensor._make_wrapper_subclass` and its `.data`, which is a plain
tensor; `torch._C._parse_dispatch_key`, `_dispatch_keyset_full_after` and `_ExcludeDispatchKeyGuard`.
"""

# ruff: noqa: ANN401, SLF001 - torch and what programs hand over have no type here; PyTorch has no public way

from __future__ import annotations

import ctypes
import functools
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from . import deep_copies, imports, index_bounds, known_constants, unknown_reads
from .assumed_values import AssumedValues
from .guard import guarded, note_failure
from .operator_kinds import (
    OperatorKind,
    given_to,
    is_out,
    is_unobserved,
    kind_of,
    replaced,
    run_on_host,
    tensors_in,
    with_tensors,
    written_tensors,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

LARGEST_BYTES = 64 << 20
"""Bytes of a storage up to which values are kept."""
_KEY = "TESTING_ONLY_GenericWrapper"
VALUES = "_oomdoctor_values"
_MAKERS = (
    "zeros", "ones", "full", "arange", "arange.start", "arange.start_step", "zeros_like", "ones_like", "full_like",
    "new_zeros", "new_ones", "new_full",
)  # fmt: skip
"""Operators that fill a new tensor with numbers that are known, and that have no kernel of their own for CUDA.

Not `scalar_tensor`, whose tensors must not have the key: see `known_constants`.
"""
_ABSORBING = {
    "aten::bitwise_and.Tensor": False,
    "aten::logical_and": False,
    "aten::bitwise_or.Tensor": True,
    "aten::logical_or": True,
}
"""Operators that one known argument can decide, and by which value of its elements: a flag of a length, with others."""
_VIEWS = frozenset(
    ("alias", "as_strided", "chunk", "contiguous", "detach", "detach_", "expand", "expand_as", "flatten.using_ints",
     "lift_fresh", "movedim.int", "narrow", "permute", "reshape", "select.int", "slice.Tensor", "split.Tensor",
     "split_with_sizes", "squeeze", "squeeze.dim", "t", "to.dtype", "to.dtype_layout", "to.device", "to.other",
     "transpose.int", "unbind.int", "unflatten.int", "unsqueeze", "view", "view_as", "_reshape_alias", "_unsafe_view",
     "result_type.Scalar", "result_type.Tensor", "is_same_size", "size.int", "stride.int")
)  # fmt: skip
"""Operators that make views, or are made of others, or read shapes only: they run as if there were no key. `detach` has
to, since C++ makes a tensor of another class of what it returns, which must not have been in Python before."""
_COUNTING = ("nonzero", "_unique", "_unique2", "unique_dim", "unique_consecutive")
"""Operators whose kernel reads from the device how many elements it has found."""


def install() -> None:
    """Begin to keep values, in a process on a null GPU that has imported torch."""
    if not _INSTALLED:
        torch = sys.modules["torch"]
        _INSTALLED.append(KnownValues(torch))
        known_constants.keep_folded(_INSTALLED[0])
        deep_copies.keep_values(torch, VALUES)


def host_values(tensor: Any) -> Any:
    """Return the values of a tensor on the device, as a tensor of the host; None where they are not known."""
    return _INSTALLED[0].host(tensor) if _INSTALLED else None


class KnownValues:
    """The operators that keep values, registered with PyTorch's dispatcher."""

    def __init__(self, torch: Any) -> None:
        self._torch, self._c = torch, torch._C
        aten, c = torch.ops.aten, torch._C
        self._key = c._parse_dispatch_key(_KEY)
        self._keys, self._below = c.DispatchKeySet(self._key), c._dispatch_keyset_full_after(self._key)
        self._host_keys = c.DispatchKeySet(c.DispatchKey.CPU)
        self._device_keys = c.DispatchKeySet(c.DispatchKey.CUDA)
        self._assumes = self.keeps_numbers = False
        self._plan = guarded(self._find_plan)
        self._checks = index_bounds.checks(torch, self.host, self._assumed)
        self._operators = functools.lru_cache(maxsize=None)(self._find_operator)
        self._answer_reads = ctypes.CDLL(None).oomdoctor_null_answer_reads
        self._answer_reads.argtypes = [ctypes.c_uint64, ctypes.c_int]
        self._bare = type("_Bare", (torch.Tensor,), {"__torch_dispatch__": classmethod(_never_called)})
        self._set, self._copy = aten.set_.source_Storage_storage_offset, aten._to_copy.default
        self._fallback, self._own = torch.library.Library("_", "IMPL"), torch.library.Library("aten", "IMPL")
        self._own.impl("_to_copy", self._to_copy, "CUDA")
        self._own.impl("scalar_tensor", known_constants.number_maker(self, torch), "CUDA")
        AssumedValues(self, torch, self._own)
        for name in _MAKERS:
            packet, _, overload = name.partition(".")
            operator = getattr(getattr(aten, packet), overload or "default")
            self._own.impl(name, self._maker(operator), "CUDA")
        self._fallback.fallback(self._run, _KEY, with_keyset=True)
        self._register_all()

    def _register_all(self) -> None:
        """Register each operator of PyTorch by its name, too, and those of libraries once they are there.

        Under a dispatch mode, and with arguments of a class of its own, PyTorch looks for a kernel in Python by the
        operator's name, and ends with an internal error where it has but the fallback. `Library.impl` takes ten times
        as long for the same.
        """
        self._register("aten", self._own)
        for namespace in ("c10d", "_c10d_functional", "torchvision"):
            library = self._torch.library.Library(namespace, "IMPL")
            module = "torch" if namespace != "torchvision" else namespace
            imports.when_imported(module, functools.partial(guarded(self._register), namespace, library))

    def _register(self, namespace: str, library: Any) -> None:
        through = self._torch.library.fallthrough_kernel
        for name in self._c._dispatch_get_all_op_names():
            if name.startswith(f"{namespace}::"):
                short = name.partition("::")[2]
                run = through if namespace == "aten" and short in _VIEWS else functools.partial(self._run_named, name)
                library.m.impl(short, _KEY, run, run is not through)

    def _run_named(self, name: str, keys: Any, *args: Any, **kwargs: Any) -> Any:
        return self._run(keys, self._operators(name), *args, **kwargs)

    def _find_operator(self, name: str) -> Any:
        namespace, _, rest = name.partition("::")
        packet, _, overload = rest.partition(".")
        return getattr(getattr(getattr(self._torch.ops, namespace), packet), overload or "default")

    # --- known tensors -----------------------------------------------------------------------------------------------

    def host(self, tensor: Any) -> Any:
        """Return the values of a tensor, as a tensor of the host with its layout; None where they are not known."""
        if tensor.is_cpu:
            return tensor
        if not self._has_key(tensor):
            return known_constants.number_of(tensor)
        flat = getattr(tensor.untyped_storage(), VALUES, None)
        if flat is None:
            return None
        return flat.view(tensor.dtype).as_strided(tensor.size(), tensor.stride(), tensor.storage_offset())

    def _has_key(self, tensor: Any) -> bool:
        return bool(self._c._dispatch_keys(tensor).has(self._key))

    def _is_kept(self, tensor: Any) -> bool:
        """Return whether values are kept of a tensor of this type and size."""
        is_real = tensor.dtype.is_floating_point or tensor.dtype.is_complex
        is_kept = (not is_real or (self.keeps_numbers and tensor.numel() == 1)) and tensor.layout is self._torch.strided
        return bool(is_kept and tensor.is_cuda and tensor.untyped_storage().nbytes() <= LARGEST_BYTES)

    def _keep(self, tensor: Any, values: Any) -> Any:
        """Return a new tensor of the device with the key; its values are those of `values`, a tensor of the host."""
        size, stride, offset = tensor.size(), tensor.stride(), tensor.storage_offset()
        storage = tensor.untyped_storage()
        with self._c._DisableTorchDispatch():
            mould = self._torch.Tensor._make_wrapper_subclass(
                self._bare, size, strides=stride, storage_offset=offset, dtype=tensor.dtype, device=tensor.device,
                _extra_dispatch_keys=self._keys,
            )  # fmt: skip
            known = mould.data
        self._set.redispatch(self._device_keys, known, storage, offset, size, stride)
        with self._torch.inference_mode(mode=False):
            # A multiple of any element's size, so that it can be viewed as any type.
            flat = self._torch.empty(-(-storage.nbytes() // 8) * 8, dtype=self._torch.uint8)
            setattr(storage, VALUES, flat)
            self.host(known).copy_(values)
        return known

    def kept(self, tensor: Any, values: Callable[[], Any], assumed: str = "") -> Any:
        """Return a tensor with values, where they can be kept; else it as it is.

        Args:
            tensor: One of the device that nobody else has seen.
            values: Returns its values, on the host.
            assumed: How they were assumed, where they are not known: an effect of `unknown_reads`.
        """
        try:
            if not self._is_kept(tensor):
                return tensor
            with self._torch.inference_mode(mode=False), self._torch.no_grad():
                found = values()
            known = self._keep(tensor, found)
            if assumed:
                self._assume(known, assumed)
        except Exception as error:  # noqa: BLE001 - ours, and no reason for the program to fail
            note_failure("known_values", error)
            return tensor
        return known

    def _assume(self, tensor: Any, how: str) -> None:
        self._assumes = True
        getattr(tensor.untyped_storage(), VALUES).assumed = how

    def _assumed(self, value: Any) -> str:
        """Return how one of the tensors' values was assumed; nothing where all are known."""
        if not self._assumes:
            return ""
        storages = [tensor.untyped_storage() for tensor in tensors_in(value) if not tensor.is_cpu]
        found = (getattr(getattr(storage, VALUES, None), "assumed", "") for storage in storages)
        return next(filter(None, found), "")

    @contextmanager
    def answering(self, count: int) -> Iterator[None]:
        """Answer what the operator inside reads from the device, which is how many elements it has found."""
        self._answer_reads(count, 1)
        try:
            yield
        finally:
            self._answer_reads(0, 0)

    def _on_host(self, operator: Any, args: Any, options: dict[str, Any]) -> Any:
        """Run an operator on the values of its arguments; None where the host cannot."""
        with self._torch.inference_mode(mode=False):  # a view made in it cannot be written outside
            hosts = {name: replaced(value, self.host) for name, value in options.items()}
            return run_on_host(operator, replaced(args, self.host), hosts)

    # --- where values come from --------------------------------------------------------------------------------------

    def _to_copy(self, source: Any, **options: Any) -> Any:
        """Copy a tensor to or on the device; where it comes from the host and is of integers, keep its values."""
        copied = self._copy.redispatch(self._host_keys, source, **options)
        known = self._keep_copied(copied, source)
        return copied if known is None else known

    @guarded
    def _keep_copied(self, copied: Any, source: Any) -> Any:
        if not source.is_cpu and self._is_kept(copied) and is_unobserved():
            number = known_constants.fill_of(source)
            full = functools.partial(self._torch.full, copied.shape, number, dtype=copied.dtype)
            return None if number is None else self.kept(copied, full)
        is_known = source.is_cpu and self._is_kept(copied) and (is_unobserved() or self.keeps_numbers)
        return known_constants.keep_traced(self, copied, source.detach) if is_known else None

    def _maker(self, operator: Any) -> Any:
        def make(*args: Any, **options: Any) -> Any:
            made = operator.redispatch(self._host_keys, *args, **options)
            known = self._keep_made(made, operator, args, options)
            return made if known is None else known

        return make

    @guarded
    def _keep_made(self, made: Any, operator: Any, args: Any, options: dict[str, Any]) -> Any:
        if not (self._is_kept(made) and is_unobserved()):
            if is_unobserved():
                known_constants.keep_fill(made, operator.name().partition(".")[0], args, options)
            return None
        # Of a tensor that the new one is like, only the shape matters.
        like = [self._torch.empty(arg.shape, dtype=made.dtype) if _is_tensor(arg) else arg for arg in args]
        values = self._on_host(operator, like, options)
        return None if values is None else self._keep(made, values)

    # --- operators on known tensors ----------------------------------------------------------------------------------

    def _run(self, keys: Any, operator: Any, *args: Any, **kwargs: Any) -> Any:
        """Run an operator of which an argument is a known tensor; where we fail, it runs as it would without us."""
        below, args = keys & self._below, with_tensors(operator, args)
        if operator in self._checks and is_unobserved():
            self._checks[operator](args)
        planned = self._plan(operator, args, kwargs)
        if planned is None:
            for tensor in tensors_in((args, tuple(kwargs.values()))):
                guarded(self._forget)(tensor)
            return operator.redispatch(below, *args, **kwargs)
        run, written = planned
        return run(operator, below, (args, kwargs), written)

    def _find_plan(self, operator: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Return how to run an operator, with the tensors that it writes to."""
        kind = self._kind(operator)
        if kind is OperatorKind.PLAIN:
            return self._run_plain, []
        written = [tensor for tensor in written_tensors(operator, args, kwargs) if not tensor.is_cpu]
        if operator.name() == "aten::resize_":
            return self._run_resized, written
        if is_out(operator) and is_unobserved() and self._are_known((args, given_to(operator, kwargs))):
            return self._run_out, written
        if kind is not OperatorKind.UNKNOWN and is_unobserved() and self._are_known((args, tuple(kwargs.values()))):
            return self._run_known, written
        for tensor in written:
            self._forget(tensor)
        is_absorbing = operator.name() in _ABSORBING and is_unobserved()
        return self._run_absorbed if is_absorbing else self._run_plain, written

    def _run_plain(self, operator: Any, below: Any, given: Any, _written: list[Any]) -> Any:
        return operator.redispatch(below, *given[0], **given[1])

    def _run_resized(self, operator: Any, below: Any, given: Any, written: list[Any]) -> Any:
        """Give a tensor another shape; its values stay known where its storage does not grow."""
        nbytes = [tensor.untyped_storage().nbytes() for tensor in written]
        result = operator.redispatch(below, *given[0], **given[1])
        for tensor, before in zip(written, nbytes):  # noqa: B905 - Python 3.8 has no `strict`
            if tensor.untyped_storage().nbytes() != before:
                guarded(self._forget)(tensor)
        return result

    def _run_out(self, operator: Any, below: Any, given: Any, written: list[Any]) -> Any:
        """Run an operator that writes to tensors that it is given for that, and keep what it writes where they can."""
        args, kwargs = given
        with self._c._ExcludeDispatchKeyGuard(self._keys):
            result = operator.redispatch(below, *args, **kwargs)
        guarded(self._keep_written)(operator, args, kwargs, written)
        return result

    def _keep_written(self, operator: Any, args: Any, kwargs: dict[str, Any], written: list[Any]) -> None:
        assumed = self._assumed((args, given_to(operator, kwargs)))
        with self._torch.inference_mode(mode=False):
            fresh = {id(tensor): self._torch.empty(tensor.shape, dtype=tensor.dtype) for tensor in written}

            def host(tensor: Any) -> Any:
                return fresh[id(tensor)] if id(tensor) in fresh else self.host(tensor)

            options = {name: replaced(value, host) for name, value in kwargs.items()}
            values = run_on_host(operator, replaced(args, host), options)
            for tensor in written:
                kept = self.host(tensor)
                if values is None or kept is None:
                    self._forget(tensor)
                    continue
                kept.copy_(fresh[id(tensor)])
                if assumed:
                    self._assume(tensor, assumed)

    def _run_absorbed(self, operator: Any, below: Any, given: Any, _written: list[Any]) -> Any:
        """Run `and` or `or`, whose result is known where one argument decides it: all zero, or all true."""
        with self._c._ExcludeDispatchKeyGuard(self._keys):
            result = operator.redispatch(below, *given[0])
        absorbing = _ABSORBING[operator.name()]
        is_decided = guarded(self._decides)(absorbing, given[0])
        return self.kept(result, lambda: self._torch.tensor(absorbing)) if is_decided else result

    def _decides(self, absorbing: bool, args: Any) -> bool:  # noqa: FBT001 - a value
        with self._torch.inference_mode(mode=False):
            known = [values for values in map(self.host, args) if values is not None]
            if absorbing and any(tensor.dtype is not self._torch.bool for tensor in args):
                return False
            return any(bool((values == absorbing).all()) for values in known if values.numel())

    def _run_known(self, operator: Any, below: Any, given: Any, written: list[Any]) -> Any:
        (args, kwargs), kind = given, self._kind(operator)
        name, assumed = operator.name().partition(".")[0], self._assumed((args, tuple(kwargs.values())))
        if kind is OperatorKind.READS or _goes_to_host(name, args, kwargs):
            found = self._on_host(operator, args, kwargs)
            if found is not None:
                if assumed:
                    unknown_reads.note(assumed, if_deciding=kind is OperatorKind.READS)
                return args[0] if name == "aten::copy_" else found
            return operator.redispatch(below, *args, **kwargs)
        if kind is OperatorKind.FINDS:
            values = self._on_host(operator, args, kwargs)
            if assumed:
                unknown_reads.note(assumed)
            return self._found(operator.redispatch, name, values, (below, args, kwargs), assumed)
        with self._c._ExcludeDispatchKeyGuard(self._keys):
            result = operator.redispatch(below, *args, **kwargs)
        is_computed = bool(written) or any(self._is_kept(tensor) for tensor in tensors_in(result))
        values = self._on_host(operator, args, kwargs) if is_computed else None
        if written:
            for tensor in written:
                if values is None:
                    self._forget(tensor)
                elif assumed:
                    self._assume(tensor, assumed)
            return result
        return result if values is None else self._with_values(result, values, assumed)

    def _found(self, run: Any, name: str, values: Any, call: Any, assumed: str) -> Any:
        """Run an operator that finds elements; its kernel is told how many, where it asks the device."""
        below, args, kwargs = call
        if values is None:
            return run(below, *args, **kwargs)
        first = values[0] if isinstance(values, tuple) else values
        if name.removeprefix("aten::") in _COUNTING:
            with self.answering(first.shape[0]):
                result = run(below, *args, **kwargs)
        else:
            result = run(below, *args, **kwargs)
        return self._with_values(result, values, assumed)

    def _with_values(self, result: Any, values: Any, assumed: str) -> Any:
        """Return results with their values; one of another shape than on the host is allocated anew."""
        if isinstance(result, (list, tuple)):
            pairs = zip(result, values, strict=False)
            return type(result)(self._with_values(one, value, assumed) for one, value in pairs)
        if not (_is_tensor(result) and self._is_kept(result)):
            return result
        if result.shape != values.shape:
            result = self._torch.empty(values.shape, dtype=result.dtype, device=result.device)
        return self.kept(result, lambda: values, assumed)

    def _are_known(self, value: Any) -> bool:
        return all(self.host(tensor) is not None for tensor in tensors_in(value))

    def _forget(self, tensor: Any) -> None:
        if self._has_key(tensor):
            setattr(tensor.untyped_storage(), VALUES, None)

    def _kind(self, operator: Any) -> OperatorKind:
        return OperatorKind.UNKNOWN if is_out(operator) else kind_of(operator)


_INSTALLED: list[KnownValues] = []
"""The one of this process, which has one dispatcher."""


def _never_called(*_: object) -> None:
    raise NotImplementedError


def _is_tensor(value: Any) -> bool:
    return isinstance(value, sys.modules["torch"].Tensor)


def _goes_to_host(name: str, args: Any, kwargs: dict[str, Any]) -> bool:
    if name == "aten::copy_":
        return bool(args[0].is_cpu)
    device = kwargs.get("device")
    return name == "aten::_to_copy" and device is not None and str(device).startswith("cpu")
