"""All compositions, by the operator that they stand for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from oomdoctor.tracing.compositions import (
    batch_norm,
    complex_numbers,
    ctc,
    distances,
    drawing,
    indexing,
    losses,
    moving,
    reducing,
    scanning,
    searching,
    sorting,
    trilinear,
)
from oomdoctor.tracing.private import operator_named

if TYPE_CHECKING:
    from collections.abc import Callable

    from oomdoctor.tracing.device import EmulatedDevice


def composed_kernels(device: EmulatedDevice) -> dict[object, Callable[..., Any]]:
    """Kernels by operator. One that returns NotImplemented leaves the call to a plan."""
    named = {
        **batch_norm.kernels(),
        **complex_numbers.kernels(),
        **ctc.kernels(),
        **distances.kernels(),
        **drawing.kernels(device),
        **indexing.kernels(device),
        **losses.kernels(),
        **moving.kernels(),
        **reducing.kernels(),
        **scanning.kernels(device),
        **searching.kernels(),
        **sorting.kernels(device),
        **trilinear.kernels(),
    }
    return {operator: kernel for name, kernel in named.items() if (operator := operator_named(name)) is not None}
