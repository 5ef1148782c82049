"""Which attention kernel CUDA would take, by card, type, head size and mask."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from oomdoctor.devices.card import Card

_aten = torch.ops.aten


def attend(
    card: Card,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """`scaled_dot_product_attention` as CUDA does it."""
    needs_grad = torch.is_grad_enabled() and any(t.requires_grad for t in (query, key, value))
    if query.dtype in (torch.float16, torch.bfloat16):
        return _aten._scaled_dot_product_flash_attention(query, key, value, dropout_p, is_causal, False, scale=scale)[0]
    return _aten._scaled_dot_product_efficient_attention(
        query, key, value, attn_mask, needs_grad, dropout_p, is_causal, scale=scale
    )[0]
