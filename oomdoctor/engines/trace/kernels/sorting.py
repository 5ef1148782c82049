"""Sorting, top-k and scans: CUB's radix sort, selection by blocks, running sums, and the operators made of them.

Source: CUB's dispatch_radix_sort.cuh (`invoke_onesweep`, `invoke_passes`, `invoke_single_tile`),
dispatch_segmented_radix_sort.cuh, tuning_radix_sort.cuh, and `scale_reg_bound` in util_arch.cuh, as of CUDA 13, with
offsets of 64 bits; dispatch_scan_by_key.cuh and tuning_scan_by_key.cuh for keys and sums of 32 bits; `mbtopk::launch`
and `should_use_multiblock`, TensorTopK.cu; `topk_out_cuda`, TensorTopK.cpp; `sort_cuda_kernel`, Sort.cpp;
`launch_stable_sort_kernel`, SortStable.cu; the layouts of temporary storage in CUB's dispatch_scan.cuh,
dispatch_unique_by_key.cuh and `ScanTileState` in single_pass_scan_operators.cuh; `scan_dim`, ScanUtils.cuh;
`_logcumsumexp_cuda`, ScanKernels.cpp; torch 2.6 to 2.15. The items of a block are the policy of a kernel compiled for a
GPU; they were found from the sizes on null GPUs, torch 2.6 and 2.15, the same on cards from Turing to Blackwell.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

import torch

from oomdoctor.engines.trace.layouts import HALF_TYPES, is_dense
from oomdoctor.engines.trace.op_trace import Temporaries
from oomdoctor.engines.trace.torch_internals import TORCH

if TYPE_CHECKING:
    from collections.abc import Iterator

    from oomdoctor.engines.catalogue import Card
    from oomdoctor.engines.trace.device import EmulatedDevice
    from oomdoctor.engines.trace.op_trace import KernelsByName, OperatorCall, TemporariesByName

IS_NEW: Final = TORCH >= (2, 7)
"""Whether CUB is that of torch 2.15; between 2.6 and 2.15 nothing is known."""
LOOKBACK_PADDING: Final = 32
"""States that a scan's storage has besides one for each block."""

_SCAN: Final = "cub_inclusive_scan"
_ALIGNMENT: Final = 256
_SUM_TILES: Final = {4: 1920, 8: 896}
_SUM_STATES: Final = {4: 8, 8: 16}
_SUM_BY_KEY_TILE: Final = 1664
_UNIQUE_TILES: Final = {
    (0, 0): {4: 704, 8: 320},
    (8, 0): {4: 2816, 8: 1344},
    (8, 6): {4: 704, 8: 320},
    (9, 0): {4: 7168, 8: 4928},
}
"""Keys of a block by the bytes of a key, and from which compute capability on there are others."""
_UNIQUE_TILE_IN_2_6: Final = 1792
_BLOCK_BYTES: Final = 7680
_WIDE_BLOCK_BYTES: Final = 7168
_WIDE: Final = 8
_SCAN_STATE: Final = 4


def cub_storage_bytes(*parts: int, alignments: int = 1) -> int:
    """Return the bytes of CUB's temporary storage: its parts, each aligned, and room to align the first.

    Args:
        parts: Bytes of each part.
        alignments: Times that the storage itself is aligned.
    """
    return sum(-(-part // _ALIGNMENT) * _ALIGNMENT for part in parts) + alignments * _ALIGNMENT - 1


def _lookback_bytes(blocks: int, state_bytes: int) -> int:
    return cub_storage_bytes((blocks + LOOKBACK_PADDING) * state_bytes, alignments=2 if IS_NEW else 1)


def exclusive_sum_bytes(count: int, item_bytes: int) -> int:
    """Return the bytes of storage of `exclusive_sum`."""
    return _lookback_bytes(-(-count // _SUM_TILES[item_bytes]), _SUM_STATES[item_bytes])


def scan_by_key_bytes(count: int) -> int:
    """Return the bytes of storage of `inclusive_sum_by_key` of 64-bit integers."""
    return cub_storage_bytes((-(-count // _SUM_BY_KEY_TILE) + LOOKBACK_PADDING) * 16, alignments=2)


def unique_by_key_bytes(card: Card, count: int, item_bytes: int) -> int:
    """Return the bytes of storage of `unique_by_key`."""
    since = max((capability for capability in _UNIQUE_TILES if capability <= card.compute_capability), default=(0, 0))
    # between 2.6, of which one card is known, and 2.15 nothing is known
    tile = _UNIQUE_TILES[since if IS_NEW else (8, 0)][item_bytes]
    if not IS_NEW and item_bytes == _WIDE:
        tile = _UNIQUE_TILE_IN_2_6
    return _lookback_bytes(-(-count // tile), 16 if IS_NEW else 8)


def inclusive_scan_bytes(count: int, dtype: torch.dtype) -> int:
    """Return the bytes of storage of `DeviceScan::InclusiveScan` over `count` numbers."""
    size, is_half = dtype.itemsize, dtype in HALF_TYPES
    states = -(-count * size // (_WIDE_BLOCK_BYTES if size >= _WIDE else _BLOCK_BYTES)) + LOOKBACK_PADDING
    # a state and its number are one word, but PyTorch's own types have them apart, and the number twice
    parts = (_SCAN_STATE, size, size) if is_half else (2 * max(size, _SCAN_STATE),)
    return cub_storage_bytes(*(states * part for part in parts), alignments=2 if IS_NEW or is_half else 1)


def _running_sum(call: OperatorCall) -> Temporaries:
    """Return a contiguous copy in the result's type, and the storage where the tensor is one run."""
    x, dim = call.args[:2]
    dtype = call.kwargs.get("dtype") or (x.dtype if x.dtype.is_floating_point or x.dtype.is_complex else torch.int64)
    is_copied = dtype is not x.dtype or not x.is_contiguous()
    copy = (x.numel() * dtype.itemsize,) if is_copied else ()
    is_one_run = x.dim() > 0 and x.numel() == x.shape[dim]
    return Temporaries(after=(*copy, *((inclusive_scan_bytes(x.numel(), dtype),) if is_one_run else ())))


def _logcumsumexp(device: EmulatedDevice, x: torch.Tensor, dim: int) -> torch.Tensor:
    """Allocate the result; `meta` has no kernel of this operator."""
    result = torch.empty_like(x, memory_format=torch.contiguous_format)
    x = x.contiguous()
    if x.dim() and x.numel() == x.shape[dim]:
        device.call_library(_SCAN, x.numel(), x.dtype)
    return result


SORT_PAIRS: Final = "cub_radix_sort"
_SELECT: Final = "topk_by_blocks"

_WORD: Final = 4
_DIGIT_BITS: Final = 8
_DIGITS: Final = 1 << _DIGIT_BITS
_BIN: Final = 8
_COUNTER: Final = 4
_SINGLE_TILE: Final = (256, 19)
_MOST_IN_A_PORTION: Final = (1 << 28) - 1
_HOPPER: Final = 9
_AMPERE: Final = 8
_NARROW_ONESWEEP: Final = {1: (384, 18), 2: (512, 23)}
"""Since Hopper, by the bytes of a key, with values of eight bytes; older cards sort narrow keys in several passes."""
_NARROW_PASSES: Final = {1: (5, 128), 2: (7, 256)}
"""Bits of a pass, and threads of the smaller of its blocks, by the bytes of a key."""
_GRIDS_A_CARD: Final = 5
_SPINE_TILE: Final = 512 * 11


def radix_sort_bytes(card: Card, count: int, key_bytes: int, value_bytes: int, bits: int) -> int:
    """Return the bytes of temporary storage of `DeviceRadixSort`.

    The storage has room for keys and values between the passes, and for the counts that blocks exchange.

    Args:
        card: The card on which it runs.
        count: Number of keys.
        key_bytes: Bytes of a key.
        value_bytes: Bytes of a key's value; 0 without values.
        bits: Bits of the keys that are compared.
    """
    widest = max(key_bytes, value_bytes)
    if count <= _tile_keys(*_SINGLE_TILE, widest):
        return 1
    if key_bytes < _WORD and card.compute_capability[0] < _HOPPER:
        return cub_storage_bytes(_spine_bytes(card, key_bytes), count * key_bytes, count * value_bytes)
    tile = _tile_keys(*_onesweep(card, key_bytes, value_bytes), widest)
    portion = _MOST_IN_A_PORTION // tile * tile
    passes, portions = -(-bits // _DIGIT_BITS), -(-count // portion)
    return cub_storage_bytes(
        portions * passes * _DIGITS * _BIN,
        -(-min(count, portion) // tile) * _DIGITS * _COUNTER,
        *((count * key_bytes, count * value_bytes) if passes > 1 else ()),
        portions * passes * _COUNTER,
    )


def segmented_sort_bytes(count: int, key_bytes: int, value_bytes: int) -> int:
    """Return the bytes of temporary storage of `DeviceSegmentedRadixSort`: a second array of keys and values."""
    return cub_storage_bytes(count * key_bytes, count * value_bytes)


def _spine_bytes(card: Card, key_bytes: int) -> int:
    """Return the bytes of the digits' counts by block; threads alone limit a processor's blocks, as on the null GPU."""
    bits, threads = _NARROW_PASSES[key_bytes]
    blocks = card.sm_count * (card.max_threads_per_sm // threads) * _GRIDS_A_CARD
    return ((blocks << bits) + _SPINE_TILE) * _BIN


def _tile_keys(threads: int, items: int, widest: int) -> int:
    """Return the keys of one block: fewer where they or their values are wider than a word."""
    return threads * max(1, items * _WORD // max(_WORD, widest))


def _onesweep(card: Card, key_bytes: int, value_bytes: int) -> tuple[int, int]:
    """Return the threads of a block and the words of each thread, as tuned for offsets of 64 bits."""
    major = card.compute_capability[0]
    is_word = key_bytes == _WORD
    if major >= _HOPPER:
        if key_bytes < _WORD:
            return _NARROW_ONESWEEP[key_bytes]
        if is_word:
            return 384, 29 if value_bytes > _WORD else 17
        return 384, 24 if value_bytes > _WORD else 30
    if major >= _AMPERE:
        return 384, 17 if is_word and value_bytes else 21
    return 256, 46 if is_word and value_bytes == _WORD else 23


def _sort_temporaries(call: OperatorCall) -> Temporaries:
    return Temporaries(after=(radix_sort_bytes(call.card, *call.args),))


_ENOUGH: Final = (
    (20, 20_000), (40, 10_000), (80, 8_000), (199, 5_000), (799, 3_000), (4_000, 800), (None, 400),
)  # fmt: skip
"""Most slices, and the fewest numbers of each, for which a slice has several blocks."""
_THREADS: Final = 256
_REGISTERS_A_BLOCK: Final = 40 * _THREADS
_REGISTERS_A_PROCESSOR: Final = 65536
_FEWEST, _MOST = 4, 64
_KEEPS_SUMS: Final = TORCH >= (2, 7)
"""2.15 has two words more for each slice, and the sums of its digits; 2.6 has three words for each slice."""
_STATE: Final = 16


def _has_several_blocks(slices: int, length: int) -> bool:
    """Return whether each slice is divided among several blocks: slices are few or long."""
    return next(length >= enough for most, enough in _ENOUGH if most is None or slices <= most)


def _selection_temporaries(call: OperatorCall) -> Temporaries:
    slices, length, item_bytes = call.args
    count = slices * length
    threads = call.card.sm_count * (_REGISTERS_A_PROCESSOR // _REGISTERS_A_BLOCK) * _THREADS
    blocks = slices * -(-length // (_THREADS * max(_FEWEST, min(-(-count // threads), _MOST))))
    counts, word = blocks * _DIGITS * 2, slices * _WORD
    first = (
        (slices * item_bytes, 2 * word, 2 * word, counts, slices * _DIGITS * _WORD)
        if _KEEPS_SUMS
        else (slices * item_bytes, word, word, word, counts)
    )
    scan = _scan_by_key_bytes(call.card, blocks)
    before = (*first, blocks * _WORD, blocks * _WORD)
    return Temporaries(after=(*before, scan, -1 - len(before), scan))


def _scan_by_key_bytes(card: Card, count: int) -> int:
    blocks = -(-count // _scan_tile(card))
    return cub_storage_bytes((blocks + LOOKBACK_PADDING) * _STATE, (blocks + 1) * _WORD)


def _scan_tile(card: Card) -> int:
    """Return the threads of a block times the items of each, as tuned for some generations."""
    capability = card.compute_capability
    if capability[0] >= 10:  # noqa: PLR2004 - Blackwell
        return 224 * 20
    if capability[0] == 9:  # noqa: PLR2004 - Hopper
        return 288 * 14
    return 256 * 15 if capability == (8, 0) else 256 * 9


TEMPORARIES: Final[TemporariesByName] = {
    SORT_PAIRS: _sort_temporaries,
    _SELECT: _selection_temporaries,
    **dict.fromkeys(("cumsum", "cumprod", "cumsum_", "cumprod_"), _running_sum),
    _SCAN: (lambda call: Temporaries(after=(inclusive_scan_bytes(*call.args),))),
}
_SORTED_IN_PLACE: Final = 4096
_LONG: Final = 1_000_000
_MANY_SEGMENTS: Final = 128
_INDEX_BYTES: Final = 8
_LARGEST_INT: Final = 2**31 - 1


def kernels(device: EmulatedDevice) -> KernelsByName:
    """Return the kernels of this family."""
    return {
        "_logcumsumexp": partial(_logcumsumexp, device),
        "sort.stable": partial(_sort_kernel, device),
        "topk": partial(_topk_kernel, device),
    }


def _sort_kernel(
    device: EmulatedDevice,
    x: torch.Tensor,
    *,
    stable: bool | None = None,  # noqa: ARG001 - PyTorch's signature
    dim: int = -1,
    descending: bool = False,  # noqa: ARG001
) -> tuple[torch.Tensor, torch.Tensor]:
    values = torch.empty_like(x)
    indices = torch.empty_like(values, dtype=torch.int64)
    if not x.dim() or not x.numel():
        return values, indices
    dim %= x.dim()
    if x.shape[dim] <= _SORTED_IN_PLACE:
        torch.empty(x.shape[dim], dtype=torch.int64, device=x.device)  # the initial indices
    else:
        _sort_long(device, x, dim, values)
    return values, indices


def _sort_long(device: EmulatedDevice, x: torch.Tensor, dim: int, values: torch.Tensor) -> None:
    """Sort by CUB, for which the elements of a segment must be contiguous."""
    held = []
    if not (is_dense(x) and x.stride(dim) == 1):
        order = sorted((other for other in range(x.dim()) if other != dim), key=x.stride, reverse=True)
        strides, step = [0] * x.dim(), 1
        for other in (dim, *reversed(order)):
            strides[other] = step
            step *= x.shape[other]
        stride = tuple(strides)
        held.append(torch.empty_strided(x.shape, stride, dtype=x.dtype, device=x.device))
        if values.stride() != stride:
            held += [torch.empty_like(held[0]), torch.empty_like(held[0], dtype=torch.int64)]
    length = x.shape[dim]
    for count in _launches(x.numel(), length):
        _launch(device, count // length, length, x.element_size())
    del held


def _launches(count: int, length: int) -> Iterator[int]:
    """Yield the elements of each launch: whole segments, as many as 32 bits can count."""
    most = min(count, _LARGEST_INT) // length * length
    while count > 0:
        yield min(count, most)
        count -= most


def _launch(device: EmulatedDevice, segments: int, length: int, key_bytes: int) -> None:
    count = segments * length
    if segments == 1 or length >= _LONG:
        places = device.block(length * _INDEX_BYTES)
        for _ in range(segments):
            device.call_library(SORT_PAIRS, length, key_bytes, _INDEX_BYTES, 8 * key_bytes)
    elif segments < _MANY_SEGMENTS:
        _sort_twice(device, segments, count, key_bytes)
    else:
        places = device.block(count * _INDEX_BYTES)
        device.block(segmented_sort_bytes(count, key_bytes, _INDEX_BYTES))
        del places


def _sort_twice(device: EmulatedDevice, segments: int, count: int, key_bytes: int) -> None:
    """Sort all elements by value, and then stably by segment."""
    pairs = [device.block(count * _INDEX_BYTES) for _ in range(2)]
    keys = device.block(count * key_bytes)
    device.call_library(SORT_PAIRS, count, key_bytes, _INDEX_BYTES, 8 * key_bytes)
    del keys
    device.call_library(SORT_PAIRS, count, _INDEX_BYTES, 0, max(1, (segments - 1).bit_length()))
    del pairs


def _topk_kernel(  # noqa: PLR0913, PLR0917 - PyTorch's signature
    device: EmulatedDevice,
    x: torch.Tensor,
    k: int,
    dim: int = -1,
    largest: bool = True,  # noqa: ARG001, FBT001, FBT002
    is_sorted: bool = True,  # noqa: FBT001, FBT002
) -> Any:  # noqa: ANN401 - or NotImplemented
    if not x.dim() or not x.numel() or not k:
        return NotImplemented
    dim %= x.dim()
    values = torch.empty((*x.shape[:dim], k, *x.shape[dim + 1 :]), dtype=x.dtype, device=x.device)
    indices = torch.empty_like(values, dtype=torch.int64)
    select_largest(device, x, values, indices, dim, is_sorted=is_sorted)
    return values, indices


def select_largest(  # noqa: PLR0913 - what the operator is given
    device: EmulatedDevice, x: torch.Tensor, values: torch.Tensor, indices: torch.Tensor, dim: int, *, is_sorted: bool
) -> None:
    """Select the largest of `x` along a dimension into results that are allocated."""
    length = x.shape[dim]
    contiguous = x.contiguous()
    if _has_several_blocks(x.numel() // length, length):
        device.call_library(_SELECT, x.numel() // length, length, x.element_size())
    del contiguous
    if is_sorted and values.shape[dim] > _SORTED_IN_PLACE:
        _sort_selected(device, values, indices, dim % x.dim())


def _sort_selected(device: EmulatedDevice, values: torch.Tensor, indices: torch.Tensor, dim: int) -> None:
    places, others = torch.empty_like(indices), torch.empty_like(values)
    _sort_long(device, values, dim, others)
    indices.gather(dim, places)
