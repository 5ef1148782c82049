"""Run an operator on the emulated device: plan its results once for each set of shapes, then allocate them.

PyTorch's own kernels for `meta` tensors give the plan. No kernel computes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import torch

from oomdoctor.agent.operator_kinds import tensors_in, with_tensors
from oomdoctor.engines.trace.known_values import (
    CHOOSING,
    TracedValues,
    has_integers,
    keep_fills,
    spread_choices,
)
from oomdoctor.engines.trace.layouts import meta_like, plain_name, pointwise_result, resize, suggested_layout
from oomdoctor.engines.trace.op_trace import OperatorCall
from oomdoctor.engines.trace.operators import assumption_of, has_temporaries, kernels, temporaries_of
from oomdoctor.engines.trace.refusals import check_same_device, host_error, mismatch_error, untraceable
from oomdoctor.engines.trace.refused_types import check_alike, check_types
from oomdoctor.engines.trace.tensor_types import errors_as_on_cuda
from oomdoctor.engines.trace.torch_internals import HOST_KEYS, below_autograd, check_ordinal, strided_view
from oomdoctor.engines.trace.view_gradients import ChangedViews

if TYPE_CHECKING:
    from collections.abc import Callable

    from oomdoctor.engines.trace.device import Allocation, EmulatedDevice
    from oomdoctor.engines.trace.op_trace import AllocationStep


_CONTIGUOUS: Final = (
    "_log_softmax_backward_data", "glu_backward", "mse_loss_backward", "native_layer_norm_backward", "pixel_unshuffle",
    "rrelu_with_noise",
)  # fmt: skip
"""Operators whose first result is contiguous on CUDA, and on `meta` has the strides of an argument."""
_AS_SUGGESTED: Final = (
    "_upsample_bicubic2d_aa", "_upsample_bilinear2d_aa", "_upsample_nearest_exact2d", "native_group_norm",
    "upsample_bicubic2d", "upsample_bilinear2d", "upsample_nearest2d",
)  # fmt: skip
"""Operators whose first result has the layout of their first argument, and on `meta` another for one row or channel."""


class NewTensor(NamedTuple):
    """A result with memory of its own."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype


class HostTensor(NamedTuple):
    """A result on the host."""

    size: tuple[int, ...]
    dtype: torch.dtype


class ArgumentView(NamedTuple):
    """A result that shares the memory of an argument."""

    argument: int
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int


class ArgumentItself(NamedTuple):
    """A result that is an argument."""

    argument: int


@dataclass(slots=True)
class OperatorPlan:
    """The results and the memory of an operator for arguments of some shapes.

    Attributes:
        results: The results, with lists flattened.
        order: Indices of the results that are allocated, in the order of their allocation.
        before: Temporaries before the results are allocated.
        after: Temporaries after that; see `Temporaries`.
        resized: Index, size and stride of the arguments that change their shape.
        shape: Arrangement of the results: None for one, a type, or the lengths of lists in a tuple.
        call: The call on `meta` tensors, where its temporaries are traced; else None.
        single: The result, where the operator has one and does nothing else, as most do.
        needs_arguments: Whether the results refer to the arguments.
    """

    results: list[Any]
    order: list[int]
    before: tuple[AllocationStep, ...]
    after: tuple[AllocationStep, ...]
    resized: list[tuple[int, Any, Any]]
    shape: Any
    call: OperatorCall | None = None
    single: NewTensor | None = field(init=False, default=None)
    needs_arguments: bool = field(init=False)

    def __post_init__(self) -> None:
        self.needs_arguments = bool(self.resized) or any(
            isinstance(planned, ArgumentItself | ArgumentView) for planned in self.results
        )
        if (
            self.shape is None
            and isinstance(self.results[0], NewTensor)
            and not (self.before or self.after or self.resized)
        ):
            self.single = self.results[0]

    def tensors(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[torch.Tensor]:
        """Return the tensors among the arguments, in the order of the plan's indices."""
        return tensors_in((args, tuple(kwargs.values())))

    def arrange(self, results: list[Any]) -> Any:  # noqa: ANN401 - whatever the operator returns
        """Return the results as the operator returns them."""
        if self.shape is None:
            return results[0]
        if isinstance(self.shape, type):
            return self.shape(results)
        flat = iter(results)
        return tuple(next(flat) if length is None else [next(flat) for _ in range(length)] for length in self.shape)


class OperatorPlanner:
    """Plan operators for one device."""

    def __init__(self, device: EmulatedDevice) -> None:
        self._device = device

    def plan(self, operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> OperatorPlan:  # noqa: ANN401
        """Return the plan of an operator: run it on `meta` tensors and compare the results with the arguments.

        Raises:
            NoAnswerError: It cannot be told without computing.
        """
        given = tensors_in((args, tuple(kwargs.values())))  # without the numbers that become tensors now
        args = with_tensors(operator, args)
        check_same_device(operator, given)
        if (error := host_error(operator, args, kwargs)) is not None:
            raise error
        quick = pointwise_result(operator, args, kwargs)
        if quick is not None:
            made = [NewTensor(tuple(one.shape), one.stride(), one.dtype) for one in quick]
            return OperatorPlan([*made], [*range(len(made))], (), (), [], None if len(made) == 1 else tuple)
        metas: dict[int, torch.Tensor] = {}
        # What is written into a tensor is not copied there from the host.
        meta_args, meta_kwargs = (_to_meta(part, metas, keeps_numbers="out" not in kwargs) for part in (args, kwargs))
        try:
            returned = operator(*meta_args, **meta_kwargs)
        except NotImplementedError as error:
            if operator._schema.returns:  # noqa: SLF001 - an operator that returns nothing works in place
                raise untraceable(operator, error) from None
            returned = None
        except RuntimeError as error:
            raise (mismatch_error(operator, args) or error) from None
        in_order = [metas[id(tensor)] for tensor in given]
        flat, shape = _flatten(returned)
        if any(isinstance(value, torch.Tensor) and value.layout is not torch.strided for value in flat):
            raise untraceable(operator, "sparse tensors are not emulated")
        results = [_classify(value, in_order) for value in flat]
        if isinstance(results[0], NewTensor) and (layout := _result_layout(operator, args)) is not None:
            like = torch.empty(results[0].size, device="meta", memory_format=layout)
            results[0] = results[0]._replace(stride=like.stride())
        if (assumption := assumption_of(operator, args)) is not None:
            self._device.assumptions.add(assumption)
        temporaries = temporaries_of(OperatorCall(self._device.card, operator, args, kwargs, results))
        call = self._traced_call(operator, args, kwargs, results)
        for index in temporaries.on_host:
            results[index] = HostTensor(results[index].size, results[index].dtype)
        return OperatorPlan(
            results,
            temporaries.order or [index for index, planned in enumerate(results) if isinstance(planned, NewTensor)],
            temporaries.before,
            temporaries.after,
            [
                (index, tuple(meta.shape), meta.stride())
                for index, (tensor, meta) in enumerate(zip(given, in_order, strict=True))
                if tensor.shape != meta.shape
            ],
            shape,
            call,
        )

    def _traced_call(self, operator: Any, args: Any, kwargs: Any, results: list[Any]) -> OperatorCall | None:  # noqa: ANN401
        """Return the call for the trace, if one is recorded and the operator may have temporaries."""
        if self._device.op_trace is None or not has_temporaries(operator):
            return None
        metas: dict[int, torch.Tensor] = {}
        return OperatorCall(self._device.card, operator, _to_meta(args, metas), _to_meta(kwargs, metas), [*results])


def _result_layout(operator: Any, args: tuple[Any, ...]) -> torch.memory_format | None:  # noqa: ANN401
    """Return the layout that CUDA's kernel gives its first result where that of `meta` is another."""
    name = plain_name(operator)
    if name in _CONTIGUOUS:
        return torch.contiguous_format
    return suggested_layout(args[0]) if name in _AS_SUGGESTED else None


def _flatten(returned: Any) -> tuple[list[Any], Any]:  # noqa: ANN401
    if isinstance(returned, list):
        return returned, list
    if not isinstance(returned, tuple):
        return [returned], None
    if not any(isinstance(item, list) for item in returned):
        return list(returned), tuple
    flat: list[Any] = []
    for item in returned:
        flat.extend(item if isinstance(item, list) else [item])
    return flat, [len(item) if isinstance(item, list) else None for item in returned]


def _to_meta(value: Any, metas: dict[int, torch.Tensor], *, keeps_numbers: bool = True) -> Any:  # noqa: ANN401
    if isinstance(value, torch.Tensor):
        if id(value) not in metas:
            is_number = keeps_numbers and value.is_cpu and value.dim() == 0
            metas[id(value)] = value if is_number else meta_like(value)
        return metas[id(value)]
    if isinstance(value, list | tuple):
        return type(value)(_to_meta(item, metas, keeps_numbers=keeps_numbers) for item in value)
    if isinstance(value, dict):
        return {name: _to_meta(item, metas, keeps_numbers=keeps_numbers) for name, item in value.items()}
    if isinstance(value, torch.device):
        check_ordinal(value)
        return torch.device("meta")
    return None if isinstance(value, torch.Generator) else value


def _classify(value: Any, given: list[torch.Tensor]) -> Any:  # noqa: ANN401
    """Return a result on `meta` as a new tensor, an argument, or a view of one."""
    if not isinstance(value, torch.Tensor):
        return value
    for index, argument in enumerate(given):
        if value is argument:
            return ArgumentItself(index)
    storage = value.untyped_storage()._cdata  # noqa: SLF001 - the identity of a storage
    for index, argument in enumerate(given):
        if not argument.is_cpu and argument.untyped_storage()._cdata == storage:  # noqa: SLF001
            return ArgumentView(index, tuple(value.shape), value.stride(), int(value.storage_offset()))
    return NewTensor(tuple(value.shape), value.stride(), value.dtype)


class Kernels:
    """The kernels that run in place of CUDA's.

    Args:
        device: Where the tensors lie.
    """

    def __init__(self, device: EmulatedDevice) -> None:
        self._device = device
        self._planner = OperatorPlanner(device)
        self._special = kernels(device)
        self._plans: dict[object, OperatorPlan] = {}
        self._values = TracedValues()
        self._changed_views = ChangedViews()

    def run(self, operator: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - whatever the operator takes
        """Run an operator: allocate and free as its kernel does, and return its results."""
        self._changed_views.hook(operator)
        with below_autograd():
            if has_integers(args) or "out" in kwargs:
                result = self._values.run(operator, self._run, args, kwargs)
            else:
                result = self._run(operator, args, kwargs)
                if operator in CHOOSING:
                    spread_choices(operator, args, result)
                keep_fills(operator, args, result)
            self._changed_views.note(operator, args, result)
            return result

    def _run(self, operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:  # noqa: ANN401
        check_types(operator, args, kwargs)
        check_alike(operator, args)
        kernel = self._special.get(operator)
        if kernel is not None and (result := kernel(*args, **kwargs)) is not NotImplemented:
            return result
        key = (operator, _plan_key(args), _plan_key(kwargs.items()) if kwargs else None)
        plan = self._plans.get(key)
        if plan is None:
            plan = self._plans[key] = self._planner.plan(operator, args, kwargs)
        return self._carry_out(plan, args, kwargs)

    def kernel(self, operator: Any) -> Callable[..., Any]:  # noqa: ANN401
        """Return the kernel of one operator."""
        return lambda *args, **kwargs: self.run(operator, *args, **kwargs)

    def composed(self, operator: Any) -> Callable[..., Any]:  # noqa: ANN401
        """Return the kernel of an operator that C++ composes of others, which checks its indices first."""

        def run(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - whatever the operator takes
            self._values.check(operator, args)
            with errors_as_on_cuda():
                return operator.redispatch(HOST_KEYS, *args, **kwargs)

        return run

    def _carry_out(self, plan: OperatorPlan, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:  # noqa: ANN401
        device = self._device
        if plan.single is not None and (plan.call is None or device.op_trace is None):
            return device.tensor(*plan.single)
        held: list[Allocation | None] = []
        self._take(plan, held, is_after=False)
        made = {index: device.tensor(*plan.results[index]) for index in plan.order}
        given = plan.tensors(args, kwargs) if plan.needs_arguments else ()
        for index, size, stride in plan.resized:
            resize(device, given[index], size, stride)
        self._take(plan, held, is_after=True)
        for index in range(len(held)):
            held[index] = None
        if plan.call is not None and device.op_trace is not None:
            device.op_trace.ended()
        results = [
            made[index] if index in made else _make_result(planned, given) for index, planned in enumerate(plan.results)
        ]
        return plan.arrange(results)

    def _take(self, plan: OperatorPlan, held: list[Allocation | None], *, is_after: bool) -> None:
        script = plan.after if is_after else plan.before
        if plan.call is None:
            self._device.take(script, held)
        else:
            self._device.take_recorded(plan.call, script, held, is_after=is_after)


def _make_result(planned: object, given: Any) -> Any:  # noqa: ANN401
    if isinstance(planned, ArgumentItself):
        return given[planned.argument]
    if isinstance(planned, ArgumentView):
        base = given[planned.argument]
        return strided_view(base, planned.size, planned.stride, base.storage_offset() + planned.offset)
    if isinstance(planned, HostTensor):
        return torch.zeros(planned.size, dtype=planned.dtype)
    return planned


def _plan_key(values: Any) -> tuple[object, ...]:  # noqa: ANN401
    """Return a hashable key of arguments: tensors by shape and type, numbers by value and type."""
    parts: list[object] = []
    for value in values:
        if isinstance(value, torch.Tensor):
            parts.append((value.shape, value.stride(), value.dtype, value.is_cpu))
        elif isinstance(value, list | tuple):
            parts.append(_plan_key(value))
        elif isinstance(value, int | float):
            parts.append((type(value), value))
        else:
            parts.append(value)
    return tuple(parts)
