"""Upsampling: contiguous copies of what the kernels cannot read as it lies.

Source: UpSampleNearest2d.cu, UpSampleBilinear2d.cu, UpSampleBicubic2d.cu and UpSampleNearest3d.cu, torch 2.6 to 2.15.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from oomdoctor.tracing.layouts import suggested_layout
from oomdoctor.tracing.taking import Temporaries

if TYPE_CHECKING:
    from collections.abc import Callable

    from oomdoctor.tracing.taking import Call

_NEAREST: Final = ("upsample_nearest2d", "upsample_nearest3d", "_upsample_nearest_exact2d", "_upsample_nearest_exact3d")
_OTHERS: Final = ("upsample_bilinear2d", "upsample_bicubic2d")


def _copy(call: Call) -> Temporaries:
    """The first argument's, unless it lies in order or channels last."""
    tensor = call.args[0]
    if tensor.is_contiguous(memory_format=suggested_layout(tensor)):
        return Temporaries()
    return Temporaries(after=(tensor.numel() * tensor.element_size(),))


MODELS: Final[dict[str, Callable[[Call], Temporaries]]] = {
    **dict.fromkeys(_NEAREST, _copy),
    **dict.fromkeys((f"{name}_backward" for name in (*_NEAREST, *_OTHERS)), _copy),
}
