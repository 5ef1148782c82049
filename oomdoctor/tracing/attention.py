"""Which attention kernel CUDA takes, by card, type, head size and mask.

Source: `scaled_dot_product_attention`, attention.cpp, and sdp_utils.cpp for CUDA, torch 2.6 to 2.15. cuDNN's attention,
which newer versions take on compute capability 9 and 10, needs a workspace that only cuDNN knows: flash attention
stands in for it, as on a null GPU.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import torch

from oomdoctor.tracing.private import sdp_enabled
from oomdoctor.tracing.version import TORCH

if TYPE_CHECKING:
    from oomdoctor.devices.card import Card

_aten: Any = torch.ops.aten
_HALVES: Final = (torch.float16, torch.bfloat16)
_LARGEST_FLASH_HEAD: Final = 256
_ALIGNMENT: Final = 8
_WITHOUT_HEADS: Final = 3
_MASK_BY_WHERE: Final = (2, 7)
_FUSES_MORE: Final = (2, 14)
"""Efficient attention with grouped heads (pull request 191085), one head of keys for all of the query's, and tensors
without a dimension of heads; seen on null GPUs in 2.15, and not in 2.6."""


class _Question(NamedTuple):
    """What decides: the tensors, the mask, and how they are used."""

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    mask: torch.Tensor | None
    dropout: float
    causal: bool
    grouped: bool

    @property
    def needs_grad(self) -> bool:
        """Whether a backward will follow."""
        tensors = (self.query, self.key, self.value)
        return torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)


def attend(card: Card, query: torch.Tensor, *args: Any, scale: float | None = None, **kwargs: Any) -> torch.Tensor:  # noqa: ANN401
    """`scaled_dot_product_attention` as CUDA does it; the arguments are PyTorch's."""
    asked = _question(query, *args, **kwargs)
    output = _attended(card, asked, scale)
    return output if asked.query.dim() == query.dim() else output[0]


def kernel_of(card: Card, *args: Any, scale: float | None = None, **kwargs: Any) -> str:  # noqa: ANN401, ARG001
    """Which kernel `attend` would take on a card."""
    asked = _question(*args, **kwargs)
    if _takes_flash(card, asked):
        return "flash"
    return "efficient" if _takes_efficient(card, asked) else "math"


def _question(  # noqa: PLR0913, PLR0917 - PyTorch's signature
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,  # noqa: FBT001, FBT002
    *,
    enable_gqa: bool = False,
) -> _Question:
    if _FUSES_MORE <= TORCH and query.dim() == key.dim() == value.dim() == _WITHOUT_HEADS:
        query, key, value = query[None], key[None], value[None]
        if attn_mask is not None and attn_mask.dim() == _WITHOUT_HEADS:
            attn_mask = attn_mask[None]
    return _Question(query, key, value, attn_mask, dropout_p, is_causal, enable_gqa)


def _attended(card: Card, asked: _Question, scale: float | None) -> torch.Tensor:
    if _takes_flash(card, asked):
        return _flash(asked, scale)
    mask = asked.mask
    if mask is not None and mask.dtype is torch.bool:
        mask = _as_numbers(mask, asked.query.dtype)
    if _takes_efficient(card, asked):
        return _efficient(asked, mask, scale)
    if not sdp_enabled("math"):
        raise RuntimeError("No available kernel. Aborting execution.")  # as PyTorch has it
    tensors = (asked.query, asked.key, asked.value, mask, asked.dropout, asked.causal, None)
    product: torch.Tensor = _aten._scaled_dot_product_attention_math(  # noqa: SLF001
        *tensors, scale=scale, enable_gqa=asked.grouped
    )[0]
    return product


def _efficient(asked: _Question, mask: torch.Tensor | None, scale: float | None) -> torch.Tensor:
    bias = None if mask is None else _aligned(mask).expand(*asked.query.shape[:3], asked.key.shape[2])
    keeps = torch.is_grad_enabled() and asked.needs_grad
    output: torch.Tensor = _aten._scaled_dot_product_efficient_attention(  # noqa: SLF001
        asked.query, asked.key, asked.value, bias, keeps, asked.dropout, asked.causal, scale=scale
    )[0]
    return output


def _flash(asked: _Question, scale: float | None) -> torch.Tensor:
    size = asked.query.shape[-1]
    padded = [_padded(tensor, size) for tensor in (asked.query, asked.key, asked.value)]
    scale = size**-0.5 if scale is None else scale
    output: torch.Tensor = _aten._scaled_dot_product_flash_attention(  # noqa: SLF001
        *padded, asked.dropout, asked.causal, return_debug_mask=False, scale=scale
    )[0]
    return output[..., :size] if size % _ALIGNMENT else output


def _padded(tensor: torch.Tensor, size: int) -> torch.Tensor:
    missing = -size % _ALIGNMENT
    return torch.nn.functional.pad(tensor, (0, missing)) if missing else tensor


def _as_numbers(mask: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """`convert_boolean_attn_mask`."""
    if TORCH < _MASK_BY_WHERE:
        return torch.zeros_like(mask, dtype=dtype).masked_fill_(mask.logical_not(), -float("inf"))
    nothing = torch.full((), -float("inf"), dtype=dtype, device=mask.device)
    return torch.where(mask, torch.zeros((), dtype=dtype, device=mask.device), nothing)


def _aligned(mask: torch.Tensor) -> torch.Tensor:
    """`preprocess_mask`: rows begin at multiples of eight."""
    if mask.stride(-1) == 1 and all(step % _ALIGNMENT == 0 for step in mask.stride()[:-1]):
        return mask
    length = mask.shape[-1]
    return torch.nn.functional.pad(mask, (0, _ALIGNMENT - length % _ALIGNMENT))[..., :length]


def _takes_flash(card: Card, asked: _Question) -> bool:
    """`use_flash_attention`."""
    if not sdp_enabled("flash") or asked.mask is not None or card.compute_capability < (8, 0):
        return False
    if asked.query.dtype not in _HALVES or not _is_plain(asked, grouped_too=True):
        return False
    heads = {tensor.shape[-1] for tensor in (asked.query, asked.key, asked.value)}
    if len(heads) > 1 or max(heads) > _LARGEST_FLASH_HEAD:
        return False
    if asked.causal and asked.query.shape[-2] != asked.key.shape[-2]:
        return False
    return not (_is_small(card) and asked.needs_grad and _is_too_wide(max(heads), asked.dropout))


def _is_small(card: Card) -> bool:
    """Cards with little shared memory a block."""
    return (8, 6) <= card.compute_capability <= (8, 9) or card.compute_capability[0] == 12  # noqa: PLR2004 - Blackwell


def _is_too_wide(head: int, dropout: float) -> bool:
    """`check_requires_grad_and_head_dim_gt192_constraints_on_sm86_89_or_120`."""
    return 192 < head <= 224 or (head > 224 and dropout > 0)  # noqa: PLR2004 - the numbers are the rule


def _takes_efficient(card: Card, asked: _Question) -> bool:
    """`use_mem_efficient_attention`."""
    types = (torch.float32, *_HALVES) if card.compute_capability >= (8, 0) else (torch.float32, torch.float16)
    if not sdp_enabled("mem_efficient") or asked.query.dtype not in types:
        return False
    if not _is_plain(asked, grouped_too=TORCH >= _FUSES_MORE) or asked.query.shape[-1] != asked.key.shape[-1]:
        return False
    if asked.mask is not None and (asked.mask.stride(-1) != 1 or asked.causal):
        return False
    multiple = _head_multiple(card, asked.query.dtype)
    return all(size and size % multiple == 0 for size in (asked.query.shape[-1], asked.value.shape[-1]))


def _head_multiple(card: Card, dtype: torch.dtype) -> int:
    """`minimum_gemm_alignment`."""
    major, is_half = card.compute_capability[0], dtype in _HALVES
    uses_tensor_cores = major >= 8 or (major == 7 and is_half)  # noqa: PLR2004 - Ampere and Volta
    least = 4 if major >= 8 else 1  # noqa: PLR2004
    return max(least, 128 // (16 if is_half else 32)) if uses_tensor_cores else least


def _is_plain(asked: _Question, *, grouped_too: bool) -> bool:
    """Four dimensions, heads that go together, nothing empty, rows without gaps."""
    tensors = (asked.query, asked.key, asked.value)
    if any(tensor.dim() != 4 or tensor.numel() == 0 for tensor in tensors):  # noqa: PLR2004
        return False
    if any(tensor.stride(-1) != 1 and tensor.shape[-1] != 1 for tensor in tensors):
        return False
    batches, heads = ({tensor.shape[place] for tensor in tensors} for place in (0, 1))
    if len(batches) > 1 or asked.key.shape[1] != asked.value.shape[1]:
        return False
    return len(heads) == 1 or (grouped_too and asked.grouped) or (_FUSES_MORE <= TORCH and asked.key.shape[1] == 1)
