"""The kernels of the emulated device: none computes, each makes the tensors that CUDA's would.

An operator's results are planned once for each set of shapes, by PyTorch's own kernels for `meta` tensors, and made
from the plan from then on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from oomdoctor.tracing.planning import Host, Plan, Planner, Same, View
from oomdoctor.tracing.private import below_autograd, strided_view
from oomdoctor.tracing.special import special_kernels
from oomdoctor.tracing.storage import resize

if TYPE_CHECKING:
    from collections.abc import Callable

    from oomdoctor.tracing.device import Block, EmulatedDevice


class Kernels:
    """What runs in place of CUDA's kernels.

    Args:
        device: Where the tensors lie.
    """

    def __init__(self, device: EmulatedDevice) -> None:
        self._device = device
        self._planner = Planner(device)
        self._special = special_kernels(device)
        self._plans: dict[object, Plan] = {}

    def run(self, operator: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - whatever the operator takes
        """Do what the operator does to memory, and return what it returns."""
        with below_autograd():
            kernel = self._special.get(operator)
            if kernel is not None and (result := kernel(*args, **kwargs)) is not NotImplemented:
                return result
            key = (operator, _key(args), _key(kwargs.items()) if kwargs else None)
            plan = self._plans.get(key)
            if plan is None:
                plan = self._plans[key] = self._planner.plan(operator, args, kwargs)
            return self._carry_out(plan, args, kwargs)

    def kernel(self, operator: Any) -> Callable[..., Any]:  # noqa: ANN401
        """The kernel of one operator."""
        return lambda *args, **kwargs: self.run(operator, *args, **kwargs)

    def _carry_out(self, plan: Plan, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:  # noqa: ANN401
        device = self._device
        if plan.single is not None and (plan.call is None or device.journal is None):
            return device.tensor(*plan.single)
        held: list[Block | None] = []
        self._take(plan, held, is_after=False)
        made = {index: device.tensor(*plan.results[index]) for index in plan.order}
        given = plan.tensors(args, kwargs) if plan.needs_arguments else ()
        for index, size, stride in plan.resized:
            resize(device, given[index], size, stride)
        self._take(plan, held, is_after=True)
        for index in range(len(held)):
            held[index] = None
        if plan.call is not None and device.journal is not None:
            device.journal.ended()
        results = [made[index] if index in made else _result(what, given) for index, what in enumerate(plan.results)]
        return plan.arrange(results)

    def _take(self, plan: Plan, held: list[Block | None], *, is_after: bool) -> None:
        script = plan.after if is_after else plan.before
        if plan.call is None:
            self._device.take(script, held)
        else:
            self._device.take_noted(plan.call, script, held, is_after=is_after)


def _result(what: object, given: Any) -> Any:  # noqa: ANN401
    if isinstance(what, Same):
        return given[what.argument]
    if isinstance(what, View):
        base = given[what.argument]
        return strided_view(base, what.size, what.stride, base.storage_offset() + what.offset)
    if isinstance(what, Host):
        return torch.zeros(what.size, dtype=what.dtype)
    return what


def _key(values: Any) -> tuple[object, ...]:  # noqa: ANN401
    """Arguments as something to look up: tensors by shape and type, numbers by type too."""
    parts: list[object] = []
    for value in values:
        if isinstance(value, torch.Tensor):
            parts.append((value.shape, value.stride(), value.dtype, value.is_cpu))
        elif isinstance(value, list | tuple):
            parts.append(_key(value))
        elif isinstance(value, int | float):
            parts.append((type(value), value))
        else:
            parts.append(value)
    return tuple(parts)
