"""Fast paths of attention without gradients: operators that are made of others."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import nn

from operator_cases.making import DEVICE, HALF, Case, case, given, zeros

_LENGTH = 48
_ATTENDED: dict[str, Callable[[nn.MultiheadAttention, torch.Tensor], torch.Tensor]] = {
    "weights": lambda module, x: module(x, x, x)[1],
    "weights of each head": lambda module, x: module(x, x, x, average_attn_weights=False)[0],
    "without weights": lambda module, x: module(x, x, x, need_weights=False)[0],
    "of other keys": lambda module, x: module(x, y := x + 1, y)[0],
    "of other keys and values": lambda module, x: module(x, x + 1, x + 2)[0],
    "of a few": lambda module, x: module(x, x, x, attn_mask=_causal(x), need_weights=False)[0],
}


def _causal(x: torch.Tensor) -> torch.Tensor:
    return nn.Transformer.generate_square_subsequent_mask(x.shape[1], device=x.device, dtype=x.dtype)


@cache
def _layer(dtype: torch.dtype, **options: Any) -> nn.TransformerEncoderLayer:
    return nn.TransformerEncoderLayer(64, batch_first=True, device=DEVICE, dtype=dtype, **options).eval()


@cache
def _attention(dtype: torch.dtype) -> nn.MultiheadAttention:
    return nn.MultiheadAttention(64, 4, batch_first=True, device=DEVICE, dtype=dtype).eval()


def _encoded(
    dtype: torch.dtype = torch.float32, length: int = _LENGTH, mask: str = "none", heads: int = 4, **options: Any
) -> Case:
    def encode(x: torch.Tensor) -> torch.Tensor:
        masks = {
            "none": {},
            "causal": {"src_mask": _causal(x)},
            "padding": {"src_key_padding_mask": zeros(*x.shape[:2], dtype=torch.bool)},
            "both": {"src_mask": _causal(x), "src_key_padding_mask": zeros(*x.shape[:2], dtype=torch.bool)},
        }[mask]
        with torch.no_grad():
            encoded: torch.Tensor = _layer(dtype, nhead=heads, dim_feedforward=160, **options)(x, **masks)
        return encoded

    return case(encode, given(6, length, 64, dtype=dtype))


def _attended(of: Callable[[nn.MultiheadAttention, torch.Tensor], torch.Tensor], dtype: torch.dtype) -> Case:
    def attend(x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            return of(_attention(dtype), x)

    return case(attend, given(6, _LENGTH, 64, dtype=dtype))


CASES = {
    "encoder layer": _encoded(),
    "encoder layer, norm first": _encoded(norm_first=True),
    "encoder layer, gelu": _encoded(activation="gelu"),
    "encoder layer, narrow heads": _encoded(heads=16),
    "encoder layer in bf16": _encoded(HALF, norm_first=True, activation="gelu"),
    **{f"encoder layer, {mask} mask": _encoded(mask=mask) for mask in ("causal", "padding", "both")},
    "encoder layer in bf16, padding mask": _encoded(HALF, mask="padding"),
    "encoder layer, long, causal mask": _encoded(length=1100, mask="causal"),
    "encoder layer, long, padding mask": _encoded(length=1100, mask="padding"),
    "encoder layer, long, both masks": _encoded(length=1100, mask="both"),
    "encoder layer of nothing": _encoded(length=0),
    **{
        f"attention {name}, {dtype}": _attended(of, dtype)
        for name, of in _ATTENDED.items()
        for dtype in (torch.float32, HALF)
    },
}
