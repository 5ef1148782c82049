"""Random numbers: cuDNN's dropout state, and draws that take more than they return.

Source: `multinomial_out`, Distributions.cpp, and `multinomial_with_replacement_kernel_impl`, MultinomialKernel.cu;
`randperm_out_cuda`, Randperm.cu; `normal_impl_`, DistributionTemplates.h; torch 2.6 to 2.15.
"""

from __future__ import annotations

from functools import partial
from math import ceil, log, log2
from typing import TYPE_CHECKING, Any, Final

import torch

from oomdoctor.engines.trace.kernels.sorting import SORT_PAIRS, select_largest
from oomdoctor.engines.trace.temporaries import Call, Temporaries, Workspace
from oomdoctor.engines.trace.torch_internals import TORCH

if TYPE_CHECKING:
    from collections.abc import Callable

    from oomdoctor.engines.catalogue import Card
    from oomdoctor.engines.trace.device import EmulatedDevice


_BYTES_A_THREAD: Final = 16
"""As the null GPU has it."""
_DROPOUT_STATE_NAME: Final = "cudnn_dropout_state"


class _DropoutStateFunction:
    """Stands for the operator that makes it, which is none of PyTorch's."""

    def name(self) -> str:
        """As an operator's."""
        return _DROPOUT_STATE_NAME


_DROPOUT_STATE: Final[Any] = _DropoutStateFunction()


def dropout_state_call(card: Card) -> Call:
    """The call that makes it."""
    return Call(card, _DROPOUT_STATE, (), {}, [])


def dropout_state_bytes(card: Card) -> int:
    """Its size."""
    return card.sm_count * card.max_threads_per_sm * _BYTES_A_THREAD


def _dropout_state_temporaries(call: Call) -> Temporaries:
    return Temporaries(after=(Workspace(_DROPOUT_STATE_NAME, dropout_state_bytes(call.card)),))


DROPOUT_TEMPORARIES: Final[dict[str, Callable[[Call], Temporaries]]] = {_DROPOUT_STATE_NAME: _dropout_state_temporaries}


_IS_NEW: Final = TORCH >= (2, 7)
"""Whether the least and the largest weight are found at once, and no copy of weights of one type is made."""
_WORD_BITS: Final = 32
_FEW_TIES: Final = log(0.9) * 12
"""That no two keys are the same, with a probability of nine in ten."""


def random_kernels(device: EmulatedDevice) -> dict[str, Callable[..., Any]]:
    """Kernels by the operator's name."""
    return {
        "multinomial": partial(_multinomial, device),
        "randperm.generator_out": partial(_randperm, device),
        "normal.Tensor_Tensor": _normal,
        "normal.float_Tensor": _normal,
    }


def _multinomial(
    device: EmulatedDevice,
    weights: torch.Tensor,
    count: int,
    replacement: bool = False,  # noqa: FBT001, FBT002 - PyTorch's signature
    **_: object,
) -> torch.Tensor:
    result = torch.empty((*weights.shape[:-1], count), dtype=torch.int64, device=weights.device)
    if replacement and count != 1:
        rows = weights.reshape(-1, weights.shape[-1])
        held = [torch.empty_like(rows) for _ in range(1 if _IS_NEW else 2)]
        held.append(rows.cumsum(1))
        return result
    checks = _check_weights(weights)
    quotients = torch.empty_like(weights)
    if count == 1:
        torch.argmax(quotients, -1, keepdim=True, out=result)
    else:
        select_largest(device, quotients, torch.empty_like(result, dtype=weights.dtype), result, -1, is_sorted=True)
    del checks
    return result


def _check_weights(weights: torch.Tensor) -> list[torch.Tensor]:
    """Whether the weights are finite and not negative, and not all of a row are zero."""
    ends = [*weights.aminmax()] if _IS_NEW else []
    kept = [*ends, _are_weights(weights, ends)]
    sums = weights.sum(-1)
    empty = sums == 0
    kept.append(empty.any() if empty.dim() else empty)
    del sums, empty
    _ = ~kept[-1]
    return kept


def _are_weights(weights: torch.Tensor, ends: list[torch.Tensor]) -> torch.Tensor:
    if ends:
        return (ends[1] < 1) & (ends[0] >= 0)
    largest = weights.max()
    is_finite = largest < 1
    least = weights.min()
    is_positive = least >= 0
    return is_finite & is_positive


def _randperm(device: EmulatedDevice, count: int, *, out: torch.Tensor, **_: object) -> torch.Tensor:
    """Places sorted by random keys, of as many bits as keep them apart."""
    out.resize_((count,))
    torch.empty((), dtype=out.dtype, device=out.device)  # whether the type holds as many
    if count:
        places = torch.empty_like(out)
        bits = min(64, ceil(log2(count - (6 * count * count + 1) / _FEW_TIES)))
        dtype = torch.int32 if bits <= _WORD_BITS else torch.int64
        keys = [torch.empty(count, dtype=dtype, device=out.device) for _ in range(2)]
        device.call_library(SORT_PAIRS, count, dtype.itemsize, out.element_size(), bits)
        del places, keys
    return out


def _normal(mean: torch.Tensor | float, deviation: torch.Tensor, **_: object) -> torch.Tensor:
    """Whether a deviation is negative is found out twice."""
    _check_deviation(deviation)
    other = mean.shape if isinstance(mean, torch.Tensor) else ()
    shape = torch.broadcast_shapes(deviation.shape, other)  # type: ignore[no-untyped-call]
    result = torch.empty(shape, dtype=deviation.dtype, device=deviation.device)
    _check_deviation(deviation)
    if not isinstance(mean, torch.Tensor):
        torch.empty((), dtype=deviation.dtype, device=deviation.device)
    return result


def _check_deviation(deviation: torch.Tensor) -> None:
    least = deviation.min()
    _ = least >= 0
