"""Attention: the kernel that CUDA chooses by card, type, head size and mask, and the temporaries of each.

cuDNN's attention, which newer versions choose on compute capability 9.0 and 10.0, is taken where cuDNN can be asked, as
on a null GPU; its workspaces are those that null GPUs took in 2.15 and an H200 in 2.11.

Source: `scaled_dot_product_attention`, attention.cpp, and sdp_utils.cpp for CUDA; attention.cu, attention_backward.cu;
`mha_fwd` and `mha_bwd`, flash_api.cpp; `kernel_backward.h` of mem_eff_attention; torch 2.6 to 2.15.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import torch

from oomdoctor.engines.cudnn_library import cudnn_version
from oomdoctor.engines.trace.layouts import HALF_TYPES
from oomdoctor.engines.trace.op_trace import Temporaries
from oomdoctor.engines.trace.torch_internals import TORCH, sdp_enabled

if TYPE_CHECKING:
    from oomdoctor.engines.catalogue import Card
    from oomdoctor.engines.trace.op_trace import OperatorCall, TemporariesByName

_aten: Any = torch.ops.aten
_LARGEST_FLASH_HEAD: Final = 256
_ALIGNMENT: Final = 8
_WITHOUT_HEADS: Final = 3
_MASK_BY_WHERE: Final = (2, 7)
_PREFERS_CUDNN: Final = (2, 11)
_PREFERRED_CUDNN: Final = (9, 15)
_PREFERRED_ON: Final = ((9, 0), (10, 0))
_CUDNN_HEAD: Final = 128
"""Largest size of a head for cuDNN's attention, but for 256; null GPUs did not take it for 192."""
_COARSE_DROPOUT: Final = (2, 12)
"""First version without cuDNN's attention for a dropout that is no multiple of 1/16: seen in 2.15, not in 2.11."""
_CUDNN_WORKSPACE: Final = {(9, 0): 256}
"""Bytes of the workspace of cuDNN's own kernel, by compute capability; none on others."""
_FUSES_MORE: Final = (2, 14)
"""First version with efficient attention for grouped heads (pull request 191085), for one head of keys, and for tensors
without a dimension of heads; seen on null GPUs in 2.15, and not in 2.6."""


class _AttentionCall(NamedTuple):
    """The arguments of attention, by which the kernel is chosen."""

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    mask: torch.Tensor | None
    dropout: float
    causal: bool
    grouped: bool

    @property
    def needs_grad(self) -> bool:
        """Whether autograd records the call."""
        tensors = (self.query, self.key, self.value)
        return torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)


def scaled_dot_product_attention(
    card: Card,
    query: torch.Tensor,
    *args: Any,  # noqa: ANN401
    scale: float | None = None,
    **kwargs: Any,  # noqa: ANN401
) -> torch.Tensor:
    """Run attention as CUDA does; the arguments are those of PyTorch's operator."""
    asked = _attention_call(query, *args, **kwargs)
    output = _run_attention(card, asked, scale)
    return output if asked.query.dim() == query.dim() else output.squeeze(0)


def chosen_attention_kernel(card: Card, *args: Any, scale: float | None = None, **kwargs: Any) -> str:  # noqa: ANN401, ARG001
    """Return the kernel that a card would run: `cudnn`, `flash`, `efficient` or `math`."""
    asked = _attention_call(*args, **kwargs)
    if _can_use_cudnn(card, asked):
        return "cudnn"
    if _can_use_flash(card, asked):
        return "flash"
    return "efficient" if _can_use_efficient(card, asked) else "math"


def _attention_call(  # noqa: PLR0913, PLR0917 - PyTorch's signature
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,  # noqa: FBT001, FBT002
    *,
    enable_gqa: bool = False,
) -> _AttentionCall:
    if _FUSES_MORE <= TORCH and query.dim() == key.dim() == value.dim() == _WITHOUT_HEADS:
        query, key, value = query[None], key[None], value[None]
        if attn_mask is not None and attn_mask.dim() == _WITHOUT_HEADS:
            attn_mask = attn_mask[None]
    return _AttentionCall(query, key, value, attn_mask, dropout_p, is_causal, enable_gqa)


def _run_attention(card: Card, asked: _AttentionCall, scale: float | None) -> torch.Tensor:
    uses_cudnn = _can_use_cudnn(card, asked)
    if not uses_cudnn and _can_use_flash(card, asked):
        return _run_flash(asked, scale)
    mask = asked.mask
    if mask is not None and mask.dtype is torch.bool:
        mask = _float_mask(mask, asked.query.dtype)
    if uses_cudnn:
        return _run_cudnn(asked, mask, scale)
    if _can_use_efficient(card, asked):
        bias = None if mask is None else _aligned_mask(mask).expand(*asked.query.shape[:3], asked.key.shape[2])
        keeps = torch.is_grad_enabled() and asked.needs_grad
        output: torch.Tensor = _aten._scaled_dot_product_efficient_attention(  # noqa: SLF001
            asked.query, asked.key, asked.value, bias, keeps, asked.dropout, asked.causal, scale=scale
        )[0]
        return output
    if not sdp_enabled("math"):
        raise RuntimeError("No available kernel. Aborting execution.")  # as PyTorch has it
    tensors = (asked.query, asked.key, asked.value, mask, asked.dropout, asked.causal, None)
    product: torch.Tensor = _aten._scaled_dot_product_attention_math(  # noqa: SLF001
        *tensors, scale=scale, enable_gqa=asked.grouped
    )[0]
    return product


def _run_cudnn(asked: _AttentionCall, mask: torch.Tensor | None, scale: float | None) -> torch.Tensor:
    bias = None if mask is None else mask.expand(*asked.query.shape[:3], asked.key.shape[2])
    output: torch.Tensor = _aten._scaled_dot_product_cudnn_attention(  # noqa: SLF001
        asked.query, asked.key, asked.value, bias, asked.needs_grad, asked.dropout, asked.causal,
        return_debug_mask=False, scale=scale,
    )[0]  # fmt: skip
    return output


def _run_flash(asked: _AttentionCall, scale: float | None) -> torch.Tensor:
    size = asked.query.shape[-1]
    padded = [_padded_head(tensor, size) for tensor in (asked.query, asked.key, asked.value)]
    scale = size**-0.5 if scale is None else scale
    output: torch.Tensor = _aten._scaled_dot_product_flash_attention(  # noqa: SLF001
        *padded, asked.dropout, asked.causal, return_debug_mask=False, scale=scale
    )[0]
    return output[..., :size] if size % _ALIGNMENT else output


def _padded_head(tensor: torch.Tensor, size: int) -> torch.Tensor:
    missing = -size % _ALIGNMENT
    return torch.nn.functional.pad(tensor, (0, missing)) if missing else tensor


def _float_mask(mask: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return a boolean mask as 0 and -inf. Source: `convert_boolean_attn_mask`."""
    if TORCH < _MASK_BY_WHERE:
        return torch.zeros_like(mask, dtype=dtype).masked_fill_(mask.logical_not(), -float("inf"))
    nothing = torch.full((), -float("inf"), dtype=dtype, device=mask.device)
    return torch.where(mask, torch.zeros((), dtype=dtype, device=mask.device), nothing)


def _aligned_mask(mask: torch.Tensor) -> torch.Tensor:
    """Return the mask with rows that begin at multiples of eight. Source: `preprocess_mask`."""
    if mask.stride(-1) == 1 and all(step % _ALIGNMENT == 0 for step in mask.stride()[:-1]):
        return mask
    length = mask.shape[-1]
    return torch.nn.functional.pad(mask, (0, _ALIGNMENT - length % _ALIGNMENT))[..., :length]


def _prefers_cudnn(card: Card) -> bool:
    """Return whether cuDNN's attention comes first. Source: `check_prefer_cudnn_attention`."""
    version = cudnn_version(os.environ)
    if version is None or TORCH < _PREFERS_CUDNN or "TORCH_CUDNN_SDPA_DEPRIORITIZED" in os.environ:
        return False
    return card.compute_capability in _PREFERRED_ON and tuple(map(int, version.split(".")[:2])) >= _PREFERRED_CUDNN


def _can_use_cudnn(card: Card, asked: _AttentionCall) -> bool:
    """Return whether cuDNN's attention is preferred and can run. Source: `use_cudnn_attention`."""
    if not sdp_enabled("cudnn") or not _prefers_cudnn(card) or asked.query.dtype not in HALF_TYPES:
        return False
    if not _has_plain_layout(asked, grouped_too=True) or (TORCH >= _COARSE_DROPOUT and 16 * asked.dropout % 1):
        return False
    heads = {tensor.shape[-1] for tensor in (asked.query, asked.key, asked.value)}
    head = max(heads)
    return len(heads) == 1 and head % _ALIGNMENT == 0 and (head <= _CUDNN_HEAD or head == _LARGEST_FLASH_HEAD)


def _can_use_flash(card: Card, asked: _AttentionCall) -> bool:
    """Return whether flash attention can run. Source: `use_flash_attention`."""
    if not sdp_enabled("flash") or asked.mask is not None or card.compute_capability < (8, 0):
        return False
    if asked.query.dtype not in HALF_TYPES or not _has_plain_layout(asked, grouped_too=True):
        return False
    heads = {tensor.shape[-1] for tensor in (asked.query, asked.key, asked.value)}
    if len(heads) > 1 or max(heads) > _LARGEST_FLASH_HEAD:
        return False
    if asked.causal and asked.query.shape[-2] != asked.key.shape[-2]:
        return False
    return not (_has_little_shared_memory(card) and asked.needs_grad and _is_too_wide(max(heads), asked.dropout))


def _has_little_shared_memory(card: Card) -> bool:
    """Return whether the card has little shared memory for a block."""
    return (8, 6) <= card.compute_capability <= (8, 9) or card.compute_capability[0] == 12  # noqa: PLR2004 - Blackwell


def _is_too_wide(head: int, dropout: float) -> bool:
    """Source: `check_requires_grad_and_head_dim_gt192_constraints_on_sm86_89_or_120`."""
    return 192 < head <= 224 or (head > 224 and dropout > 0)  # noqa: PLR2004 - the numbers are the rule


def _can_use_efficient(card: Card, asked: _AttentionCall) -> bool:
    """Return whether efficient attention can run. Source: `use_mem_efficient_attention`."""
    types = (torch.float32, *HALF_TYPES) if card.compute_capability >= (8, 0) else (torch.float32, torch.float16)
    if not sdp_enabled("mem_efficient") or asked.query.dtype not in types:
        return False
    if not _has_plain_layout(asked, grouped_too=TORCH >= _FUSES_MORE) or asked.query.shape[-1] != asked.key.shape[-1]:
        return False
    if asked.mask is not None and (asked.mask.stride(-1) != 1 or asked.causal):
        return False
    major, is_half = card.compute_capability[0], asked.query.dtype in HALF_TYPES
    uses_tensor_cores = major >= 8 or (major == 7 and is_half)  # noqa: PLR2004 - Ampere and Volta
    least = 4 if major >= 8 else 1  # noqa: PLR2004
    multiple = max(least, 128 // (16 if is_half else 32)) if uses_tensor_cores else least
    return all(size and size % multiple == 0 for size in (asked.query.shape[-1], asked.value.shape[-1]))


def _has_plain_layout(asked: _AttentionCall, *, grouped_too: bool) -> bool:
    """Return whether the tensors have four dimensions, matching heads, elements, and contiguous rows."""
    tensors = (asked.query, asked.key, asked.value)
    if any(tensor.dim() != 4 or tensor.numel() == 0 for tensor in tensors):  # noqa: PLR2004
        return False
    if any(tensor.stride(-1) != 1 and tensor.shape[-1] != 1 for tensor in tensors):
        return False
    batches, heads = ({tensor.shape[place] for tensor in tensors} for place in (0, 1))
    if len(batches) > 1 or asked.key.shape[1] != asked.value.shape[1]:
        return False
    return len(heads) == 1 or (grouped_too and asked.grouped) or (_FUSES_MORE <= TORCH and asked.key.shape[1] == 1)


_ROWS: Final = 128
_LOCK_FLOATS: Final = 4
_STATE_BYTES: Final = 16
_NEARLY_FULL: Final = 0.8
_GOOD_ENOUGH: Final = 0.85
_SHARED_MEMORY_OF_WIDE: Final = 128 << 10
_SEED_ON_DEVICE: Final = (2, 7)
_WIDE_HEADS_BY_64: Final = (2, 8)
"""As flash attention 2.7.4 has it; seen on null GPUs in 2.15, and not in 2.6."""


def _round_up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple


def _contiguous_copies(*tensors: torch.Tensor) -> tuple[int, ...]:
    """Return the bytes of copies of tensors in which the heads of a token are not contiguous."""
    return tuple(t.numel() * t.element_size() for t in tensors if not t.transpose(1, 2).is_contiguous())


def _cudnn_temporaries(call: OperatorCall) -> Temporaries:
    """Put the dropout's state on the device, and take the kernel's workspace."""
    own = _CUDNN_WORKSPACE.get(call.card.compute_capability, 0)
    return Temporaries(after=(own,) if own and call.args[0].shape[2] > 1 else (), order=[6, 7, 0, 1])


def _cudnn_backward_temporaries(call: OperatorCall) -> Temporaries:
    """Take one workspace: an fp32 gradient of the query, an fp32 row for the softmax, grouped keys' for every head."""
    query, key = call.args[1:3]
    batch, heads, length, size = query.shape
    values = batch * heads * length * (size + 1) * 4
    if key.shape[1] != heads:
        values += 2 * batch * key.shape[2] * heads * size * query.element_size()
    return Temporaries(after=(values + _CUDNN_WORKSPACE.get(call.card.compute_capability, 0),))


def _flash_backward_temporaries(call: OperatorCall) -> Temporaries:
    """Take an fp32 row for the softmax, an fp32 gradient of the query, and grouped keys' gradients for every head."""
    gradient, query, key = call.args[:3]
    batch, heads, length, size = query.shape
    rows = _round_up(length, _ROWS)
    after = [batch * heads * rows * 4, batch * rows * heads * _rounded_head(size) * 4]
    if key.shape[1] != heads:
        after += [batch * key.shape[2] * heads * size * query.element_size()] * 2
    return Temporaries(_contiguous_copies(gradient, call.args[4]), tuple(after))


def _efficient_temporaries(call: OperatorCall) -> Temporaries:
    """Put seed and offset of the dropout on the host, but since torch 2.7 on the device where there is no dropout."""
    dropout = call.argument(5, "dropout_p", 0.0)
    if TORCH < _SEED_ON_DEVICE or dropout:
        return Temporaries(on_host=(2, 3))
    return Temporaries(order=[2, 3, 0, 1])


def _flash_temporaries(call: OperatorCall) -> Temporaries:
    """Take partial outputs where few blocks run, and the dropout's state, which before torch 2.7 is on the host."""
    on_host = (6, 7) if TORCH < _SEED_ON_DEVICE else ()
    query, key = call.args[:2]
    dropout = call.args[3] if len(call.args) > 3 else 0.0  # noqa: PLR2004 - its place
    if dropout:  # and its first state is thrown away
        return Temporaries(after=() if on_host else (_STATE_BYTES,), on_host=on_host)
    splits = _splits(call.card, query, key)
    if splits == 1:
        return Temporaries(on_host=on_host)
    rows = splits * query.shape[0] * query.shape[1] * query.shape[2] * 4
    return Temporaries(after=(rows, rows * _rounded_head(query.shape[3])), on_host=on_host)


def _splits(card: Card, query: torch.Tensor, key: torch.Tensor) -> int:
    """Return the fewest parts of the keys that fill the card almost as well as any. Source: `num_splits_heuristic`."""
    batch, heads, length, size = query.shape
    columns = 256 if size <= 64 else 128 if size <= 128 else 64  # noqa: PLR2004 - set_params_splitkv
    blocks, most_blocks = batch * heads * -(-length // 64), 2 * card.sm_count
    key_blocks = -(-key.shape[2] // columns)
    if blocks >= _NEARLY_FULL * most_blocks:
        return 1
    eligible = [
        number
        for number in range(1, min(128, most_blocks, key_blocks) + 1)
        if number == 1 or -(-key_blocks // number) != -(-key_blocks // (number - 1))
    ]
    waves = [blocks * number / most_blocks for number in eligible]
    efficiencies = [wave / -(-wave // 1) for wave in waves]
    return next(n for n, found in zip(eligible, efficiencies, strict=True) if found >= _GOOD_ENOUGH * max(efficiencies))


def _rounded_head(size: int) -> int:
    return _round_up(size, 32 if size <= _ROWS or TORCH < _WIDE_HEADS_BY_64 else 64)


def _efficient_backward_temporaries(call: OperatorCall) -> Temporaries:
    gradient, query, key, value = call.args[:4]
    batch, heads, length, size = query.shape
    rows = batch * heads * length * 4
    workspace = batch * heads * _accumulator_floats(call, size) * 4
    copies = _contiguous_copies(gradient)
    shared = tuple(heads * t.numel() // t.shape[1] * t.element_size() for t in (key, value) if t.shape[1] != heads)
    if query.dtype in HALF_TYPES:
        return Temporaries(copies, (*shared, rows, workspace))
    product, first = gradient.numel() * 4, len(copies) + len(shared)
    return Temporaries(copies, (*shared, product, rows, rows, -2 - first, -1 - first, workspace))


def _accumulator_floats(call: OperatorCall, size: int) -> int:
    """Return the fp32 accumulators of a head: the query's gradient by blocks with a lock each, wide keys and values.

    The shapes of the blocks were seen on null GPUs; PyTorch takes the first kernel that fits head and shared memory.
    """
    query, key, value = call.args[1:4]
    block, columns, keeps_keys = _backward_block(call, size)
    floats: int = -(-query.shape[2] // block) * -(-size // columns) * (block * columns + _LOCK_FLOATS)
    if keeps_keys:
        keys = _round_up(key.shape[2], block)
        floats += keys * (_round_up(size, block) + _round_up(value.shape[3], block))
    return floats


def _backward_block(call: OperatorCall, size: int) -> tuple[int, int, bool]:
    """Return a block's rows and columns, and whether gradients of keys and values are kept outside the registers."""
    if call.args[1].dtype not in HALF_TYPES or size <= 64:  # noqa: PLR2004 - head sizes of kernels
        return 64, 64, False
    if size > 128:  # noqa: PLR2004
        return 128, 64, True
    if call.card.compute_capability < (8, 0):
        return 128, 64, False
    if call.card.shared_memory_per_block_bytes >= _SHARED_MEMORY_OF_WIDE:
        return 128, 128, False
    return (128, 64, False) if size <= 96 else (64, 64, True)  # noqa: PLR2004


TEMPORARIES: Final[TemporariesByName] = {
    "_scaled_dot_product_cudnn_attention": _cudnn_temporaries,
    "_scaled_dot_product_cudnn_attention_backward": _cudnn_backward_temporaries,
    "_scaled_dot_product_flash_attention_backward": _flash_backward_temporaries,
    "_scaled_dot_product_flash_attention": _flash_temporaries,
    "_scaled_dot_product_efficient_attention": _efficient_temporaries,
    "_scaled_dot_product_efficient_attention_backward": _efficient_backward_temporaries,
}
