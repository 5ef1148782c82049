"""Looking numbers up, and counting them.

Source: `isin_default_kernel_gpu`, TensorCompare.cu, and `isin_Tensor_Tensor_out`, TensorCompare.cpp; `_histc_cuda`,
SummaryOps.cu; torch 2.6 to 2.15.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import torch

from oomdoctor.tracing.version import TORCH

if TYPE_CHECKING:
    from collections.abc import Callable

_BOTH_ENDS_AT_ONCE: Final = (2, 7)
"""The least and the largest are found by one kernel in 2.15 and by two in 2.6; between them nothing is known."""


def kernels() -> dict[str, Callable[..., Any]]:
    """Kernels by the operator's name."""
    return {"isin.Tensor_Tensor": _isin, "histc": _histc}


def _isin(elements: torch.Tensor, tested: torch.Tensor, **_: object) -> Any:  # noqa: ANN401 - or NotImplemented
    """Each compared with each where there are few; else they are sorted, which is the plan's."""
    if tested.numel() >= 10 * elements.numel() ** 0.145:
        return NotImplemented
    result = torch.empty(elements.shape, dtype=torch.bool, device=elements.device)
    return result.copy_((elements.unsqueeze(-1) == tested.view(-1)).any(-1))


def _histc(x: torch.Tensor, bins: int = 100, least: float = 0, largest: float = 0) -> torch.Tensor:
    """Between the least and the largest there are, where it is not said."""
    result = torch.empty(bins, dtype=x.dtype, device=x.device)
    if least == largest and x.numel():
        _find_ends(x)
    return result


def _find_ends(x: torch.Tensor) -> None:
    if _BOTH_ENDS_AT_ONCE <= TORCH:
        x.aminmax()
        return
    for find in (torch.min, torch.max):
        find(x).item()
