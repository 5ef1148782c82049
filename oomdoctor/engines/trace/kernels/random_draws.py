"""Random numbers: cuDNN's dropout state, and draws that take more than they return.

Source: `multinomial_out`, Distributions.cpp, and `multinomial_with_replacement_kernel_impl`, MultinomialKernel.cu;
`randperm_out_cuda`, Randperm.cu; `normal_impl_`, DistributionTemplates.h, and `bernoulli_kernel` of the
one for CUDA; torch 2.6 to 2.15.
"""

from __future__ import annotations

from functools import partial
from math import ceil, log, log2
from typing import TYPE_CHECKING, Final

import torch

from oomdoctor.engines.trace.kernels.sorting import SORT_PAIRS, select_largest
from oomdoctor.engines.trace.layouts import plain_name
from oomdoctor.engines.trace.op_trace import LibraryFunction, OperatorCall, Temporaries, Workspace
from oomdoctor.engines.trace.torch_internals import TORCH

if TYPE_CHECKING:
    from oomdoctor.engines.catalogue import Card
    from oomdoctor.engines.trace.device import EmulatedDevice
    from oomdoctor.engines.trace.op_trace import KernelsByName, TemporariesByName

_STATE_BYTES_A_THREAD: Final = 16
"""As on the null GPU."""
_DROPOUT_STATE: Final = "cudnn_dropout_state"


def dropout_state_call(card: Card) -> OperatorCall:
    """Return the call that makes cuDNN's dropout state."""
    return OperatorCall(card, LibraryFunction(_DROPOUT_STATE), (), {}, [])


def dropout_state_bytes(card: Card) -> int:
    """Return the bytes of cuDNN's dropout state: one for each thread that the card runs at a time."""
    return card.sm_count * card.max_threads_per_sm * _STATE_BYTES_A_THREAD


def _probabilities(call: OperatorCall) -> Temporaries:
    """Cast probabilities to fp32, or to fp64 for numbers of that type."""
    tensors = [given for given in call.args if isinstance(given, torch.Tensor)]
    needed = torch.float64 if tensors[0].dtype is torch.float64 else torch.float32
    is_given = len(tensors) == 2 or plain_name(call.operator) == "bernoulli"  # noqa: PLR2004 - the numbers and these
    given = tensors[-1]
    return Temporaries(after=(given.numel() * needed.itemsize,) if is_given and given.dtype is not needed else ())


TEMPORARIES: Final[TemporariesByName] = {
    _DROPOUT_STATE: (lambda call: Temporaries(after=(Workspace(_DROPOUT_STATE, dropout_state_bytes(call.card)),))),
    **dict.fromkeys(("bernoulli", "bernoulli_"), _probabilities),
}

_IS_NEW: Final = TORCH >= (2, 7)
"""Whether one kernel finds the least and the largest weight, and weights of one type are not copied."""
_WORD_BITS: Final = 32
_FEW_TIES: Final = log(0.9) * 12
"""From a probability of nine in ten that no two keys are the same."""


def kernels(device: EmulatedDevice) -> KernelsByName:
    """Return the kernels of this family."""
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
    """Allocate what the checks take: weights must be finite and not negative, and a row must not be all zeros."""
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
    """Sort indices by random keys of as many bits as keep them apart."""
    out.resize_((count,))
    torch.empty((), dtype=out.dtype, device=out.device)  # the check that the type holds the largest index
    if count:
        places = torch.empty_like(out)
        bits = min(64, ceil(log2(count - (6 * count * count + 1) / _FEW_TIES)))
        dtype = torch.int32 if bits <= _WORD_BITS else torch.int64
        keys = [torch.empty(count, dtype=dtype, device=out.device) for _ in range(2)]
        device.call_library(SORT_PAIRS, count, dtype.itemsize, out.element_size(), bits)
        del places, keys
    return out


def _normal(mean: torch.Tensor | float, deviation: torch.Tensor, **_: object) -> torch.Tensor:
    """Check twice that no deviation is negative, as CUDA does."""
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
