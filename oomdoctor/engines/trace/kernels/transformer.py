"""The fast paths of `nn.TransformerEncoderLayer` and `nn.MultiheadAttention` where no gradients are asked for.

Each is one operator made of others, and what it takes in between is most of what an evaluation takes.

Source: `transformer_encoder_layer_forward`, transformer.cpp; `native_multi_head_attention_cuda` and
`transform_bias_rescale_qkv_cuda`, attention.cu; `qkv_projection`, `masked_softmax`, `bmm_nt` and
`transform0213_gemm_nt_bias`, attention.cpp, in ATen/native/transformers; torch 2.6 to 2.15, compared with null GPUs.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import torch
from torch.nn import functional

from oomdoctor.engines.trace.kernels.attention import chosen_attention_kernel
from oomdoctor.engines.trace.torch_internals import TORCH

if TYPE_CHECKING:
    from collections.abc import Callable

    from oomdoctor.engines.catalogue import Card
    from oomdoctor.engines.trace.device import EmulatedDevice

_HEAD_MULTIPLE: Final = 8
_ANY_HEAD: Final = (2, 14)
"""First version taken to fuse heads of any size: seen on null GPUs in 2.15, and not in 2.6."""
_PERSISTENT_LONGEST: Final = 1024
"""Longest row of scores that the kernel of masked scores keeps in registers."""
_OF_ATTENTION: Final = 6
"""How many of a layer's arguments after its input are those of its attention."""
_FUSED: Final = ("flash", "efficient", "cudnn")


class _Heads(NamedTuple):
    """The arguments of `_native_multi_head_attention` after its inputs; a layer begins with those without defaults."""

    embed_dim: int
    num_heads: int
    qkv_weight: torch.Tensor
    qkv_bias: torch.Tensor
    proj_weight: torch.Tensor
    proj_bias: torch.Tensor
    mask: torch.Tensor | None = None
    need_weights: bool = True
    average_attn_weights: bool = True
    mask_type: int | None = None

    @property
    def head_dim(self) -> int:
        return self.embed_dim // self.num_heads


class _Layer(NamedTuple):
    """The arguments of `_transformer_encoder_layer_fwd` after those of its attention."""

    use_gelu: bool
    norm_first: bool
    eps: float
    norm_weight_1: torch.Tensor
    norm_bias_1: torch.Tensor
    norm_weight_2: torch.Tensor
    norm_bias_2: torch.Tensor
    ffn_weight_1: torch.Tensor
    ffn_bias_1: torch.Tensor
    ffn_weight_2: torch.Tensor
    ffn_bias_2: torch.Tensor
    mask: torch.Tensor | None = None
    mask_type: int | None = None


def overrides(device: EmulatedDevice) -> dict[str, Callable[..., Any]]:
    """Return the operators of this family above autograd, which never records them."""
    return {
        "_transformer_encoder_layer_fwd": partial(_encoder_layer, device),
        "_native_multi_head_attention": partial(_multi_head_attention, device),
    }


def _encoder_layer(device: EmulatedDevice, src: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:  # noqa: ANN401
    layer = _Layer(*args[_OF_ATTENTION:], **kwargs)
    heads = _Heads(*args[:_OF_ATTENTION])._replace(mask=layer.mask, need_weights=False)
    if src.numel() == 0:
        return src.clone()
    norms = (layer.norm_weight_1, layer.norm_bias_1), (layer.norm_weight_2, layer.norm_bias_2)
    first, second = (partial(_norm, layer, weight, bias) for weight, bias in norms)
    x = first(src) if layer.norm_first else src
    x = _attended(device, heads, x, x, x)[0].add_(src)
    if not layer.norm_first:
        x = first(x)
    before = x
    if layer.norm_first:
        x = second(x)
    x = _feed_forward(layer, x).add_(before)
    return x if layer.norm_first else second(x)


def _norm(layer: _Layer, weight: torch.Tensor, bias: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return functional.layer_norm(x, weight.shape, weight, bias, layer.eps)


def _feed_forward(layer: _Layer, x: torch.Tensor) -> torch.Tensor:
    flat = x.view(-1, x.shape[-1])
    hidden = torch._addmm_activation(layer.ffn_bias_1, flat, layer.ffn_weight_1.t(), use_gelu=layer.use_gelu)  # noqa: SLF001
    return torch.addmm(layer.ffn_bias_2, hidden, layer.ffn_weight_2.t()).view(*x.shape[:2], -1)


def _multi_head_attention(
    device: EmulatedDevice,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *args: Any,  # noqa: ANN401 - PyTorch's signature
    **kwargs: Any,  # noqa: ANN401
) -> tuple[torch.Tensor, torch.Tensor | None]:
    return _attended(device, _Heads(*args, **kwargs), query, key, value)


def _attended(
    device: EmulatedDevice, heads: _Heads, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor | None]:
    if query is key and key is value and _is_fused(device, heads, query):
        return _fused_attention(heads, query), None
    packed = _packed(heads, query, key, value)
    size = query.shape[0] * heads.num_heads
    q, k, v = packed.view(3, size, -1, heads.head_dim).unbind(0)
    scores = torch.bmm(q, k.transpose(1, 2)).view(query.shape[0], heads.num_heads, query.shape[1], -1)
    if heads.mask is not None:
        scores = _masked_softmax(scores, heads.mask)
    torch.bmm(scores.view(size, *scores.shape[2:]), v, out=q)
    weights = scores if heads.need_weights else None
    del scores
    product = _joined(heads, q.view(query.shape[0], heads.num_heads, -1, heads.head_dim))
    if weights is not None and heads.average_attn_weights:
        weights = weights.sum(1)
        weights /= heads.num_heads
    return product.view(query.shape), weights


def _joined(heads: _Heads, context: torch.Tensor) -> torch.Tensor:
    flat = context.permute(0, 2, 1, 3).contiguous().view(-1, heads.embed_dim)
    return functional.linear(flat, heads.proj_weight, heads.proj_bias)


def _is_fused(device: EmulatedDevice, heads: _Heads, query: torch.Tensor) -> bool:
    is_refused = heads.head_dim % _HEAD_MULTIPLE and TORCH < _ANY_HEAD
    if is_refused or heads.need_weights or heads.mask is not None:
        return False
    split = query.view(query.shape[0], -1, heads.num_heads, heads.head_dim).transpose(1, 2)

    def is_fused(card: Card) -> bool:
        return chosen_attention_kernel(card, split, split, split) in _FUSED

    if device.op_trace is not None:
        device.op_trace.chosen(is_fused)
    return is_fused(device.card)


def _fused_attention(heads: _Heads, query: torch.Tensor) -> torch.Tensor:
    x = functional.linear(query, heads.qkv_weight, heads.qkv_bias)
    shape = (x.shape[0], -1, heads.num_heads, heads.head_dim)
    q, k, v = (part.view(shape).transpose(1, 2) for part in x.chunk(3, -1))
    y = functional.scaled_dot_product_attention(q, k, v)
    attended = y.transpose(1, 2).reshape(x.shape[0], -1, heads.embed_dim)
    return functional.linear(attended, heads.proj_weight, heads.proj_bias)


def _packed(heads: _Heads, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """Return queries, keys and values by heads, in one block; their projection is freed."""
    projected = _projected(heads, query, key, value)
    shape = (3, projected.shape[0], heads.num_heads, projected.shape[1], heads.head_dim)
    return torch.empty(shape, dtype=heads.qkv_bias.dtype, device=projected.device)


def _projected(heads: _Heads, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    if query is key and key is value:
        return torch.matmul(query, heads.qkv_weight.t())
    if key is value:
        weights = torch.split(heads.qkv_weight, [heads.embed_dim, 2 * heads.embed_dim])
        return torch.cat([torch.matmul(x, weight.t()) for x, weight in zip((query, key), weights, strict=True)], 2)
    weights = heads.qkv_weight.chunk(3)
    return torch.cat([torch.matmul(x, weight.t()) for x, weight in zip((query, key, value), weights, strict=True)], 2)


def _masked_softmax(scores: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Return the weights; long rows are masked in a copy before, while the block that short ones get stays empty."""
    mask = mask if mask.dtype is torch.bool else mask.to(torch.bool)
    weights = torch.empty_like(scores)
    return weights if scores.shape[-1] <= _PERSISTENT_LONGEST else torch.softmax(torch.empty_like(scores), -1)
