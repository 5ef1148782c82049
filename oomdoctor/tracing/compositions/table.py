"""All compositions, by the operator that they stand for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from oomdoctor.tracing.compositions.batch_norm import kernels as batch_norm_kernels
from oomdoctor.tracing.compositions.complex_numbers import kernels as complex_numbers_kernels
from oomdoctor.tracing.compositions.ctc import kernels as ctc_kernels
from oomdoctor.tracing.compositions.distances import kernels as distances_kernels
from oomdoctor.tracing.compositions.drawing import kernels as drawing_kernels
from oomdoctor.tracing.compositions.indexing import kernels as indexing_kernels
from oomdoctor.tracing.compositions.losses import kernels as losses_kernels
from oomdoctor.tracing.compositions.moving import kernels as moving_kernels
from oomdoctor.tracing.compositions.reducing import kernels as reducing_kernels
from oomdoctor.tracing.compositions.scanning import kernels as scanning_kernels
from oomdoctor.tracing.compositions.searching import kernels as searching_kernels
from oomdoctor.tracing.compositions.sorting import kernels as sorting_kernels
from oomdoctor.tracing.compositions.trilinear import kernels as trilinear_kernels
from oomdoctor.tracing.private import operator_named

if TYPE_CHECKING:
    from collections.abc import Callable

    from oomdoctor.tracing.device import EmulatedDevice


def composed_kernels(device: EmulatedDevice) -> dict[object, Callable[..., Any]]:
    """Kernels by operator. One that returns NotImplemented leaves the call to a plan."""
    named = {
        **batch_norm_kernels(),
        **complex_numbers_kernels(),
        **ctc_kernels(),
        **distances_kernels(),
        **drawing_kernels(device),
        **indexing_kernels(device),
        **losses_kernels(),
        **moving_kernels(),
        **reducing_kernels(),
        **scanning_kernels(device),
        **searching_kernels(),
        **sorting_kernels(device),
        **trilinear_kernels(),
    }
    return {operator: kernel for name, kernel in named.items() if (operator := operator_named(name)) is not None}
