"""Which row of the table of errors a text is, and whose memory that is about.

The prober knows how much memory was free and can leave the rest open. Here only the text is left, so two of the rows
that leave it open are taken for what they nearly always are, and the others for no lack of memory.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from oomdoctor.oom.matching import lowered, search
from oomdoctor.oom.table import EXHAUSTED, TORCH_TYPE
from oomdoctor.oom.table_other import AMBIGUOUS, LIMITS, NOT_DEVICE_MEMORY
from oomdoctor.results import Outcome

if TYPE_CHECKING:
    from oomdoctor.oom.row import Row
    from oomdoctor.results import MemoryDevice

OTHER_ERROR: Final = "other-error"
"""The kind of an error that no row knows."""

_CERTAIN: Final = (*EXHAUSTED, *LIMITS, *NOT_DEVICE_MEMORY)
_HOST: Final = frozenset({"killed", "host-ray"}) | {row.id for row in NOT_DEVICE_MEMORY if row.id.startswith("host-")}
_BY_ID: Final = {row.id: row for row in _CERTAIN}

# Whether a convolution found no algorithm for lack of workspace or for another reason cannot be told from the text;
# reports of it that were resolved were a full card.
_TAKEN_FOR_OOM: Final = frozenset({"cudnn-no-engine"})

_MEMORY_WORDS: Final = re.compile(r"\b(?:memory|HBM|reserve|allocate|allocating)\b", re.IGNORECASE)
_DEVICE_WORDS: Final = re.compile(r"\b(?:CUDA|GPU|VRAM|cudnn|device memory)", re.IGNORECASE)
_HOST_WORDS: Final = re.compile(r"\b(?:host|CPU|RAM|system|heap|swap|node)\b", re.IGNORECASE)
_ON_HOST: Final = re.compile(r"device:CPU:\d+\b.{0,20} by allocator", re.IGNORECASE)
_SHORT: Final = re.compile(r"(?:[:\]|>)]\s|\s-\s)(CUDA out of memory)\b", re.IGNORECASE)  # behind a log's prefix
_TENSORFLOW: Final = re.compile(r"OOM when allocating tensor|_bfc\) ran out of memory trying to allocate")
_ROCM: Final = re.compile(r"\bhip(?:blas|sparse|solver|fft)|\broc(?:blas|sparse|solver)", re.IGNORECASE)
_TPU: Final = re.compile(r"\bTPU|\bHBM\b|\bvmem\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Kind:
    """What a text is.

    Attributes:
        name: Id of the row, or `other-error`.
        is_oom: Whether memory ran out.
        device: Whose.
        start: Where in the text the words begin that tell it; None where the type told it.
        end: Where they end.
    """

    name: str
    is_oom: bool
    device: MemoryDevice
    start: int | None = None
    end: int | None = None


def kind_of(text: str, type_name: str = "") -> Kind | None:
    """Find what a text is.

    Args:
        text: A message in one line.
        type_name: Its exception's type as printed; empty where none is.

    Returns:
        None where neither the words nor the type are known.
    """
    lower_case = lowered(text)
    for row in _CERTAIN:
        match = _matches(row, lower_case)
        if match is not None:
            return _kind(row, text, match)
    short = _SHORT.search(text)
    if short is not None:
        return Kind("cuda-allocator-short", is_oom=True, device="cuda", start=short.start(1), end=short.end(1))
    by_type = _row_of_type(type_name, text)
    if by_type is not None:
        return _kind(by_type, text, None)
    for row in AMBIGUOUS:
        match = _matches(row, lower_case)
        if match is not None:
            return _ambiguous(row, text, match, type_name)
    return None


def _matches(row: Row, text: str) -> re.Match[str] | None:
    """Match of the row's first pattern where all of them match; the text is in lower case."""
    if not row.patterns or any(search(pattern, text) is None for pattern in row.patterns[1:]):
        return None
    return search(row.patterns[0], text)


def _row_of_type(type_name: str, text: str) -> Row | None:
    module, _, name = type_name.rpartition(".")
    if _TENSORFLOW.search(text) is not None:
        return _BY_ID["tensorflow-allocator"]
    if "allocated so far: " in text or (module.startswith("cupy") and name == "OutOfMemoryError"):
        return _BY_ID["cupy-allocation"]
    if name == "OutOfMemoryError":
        return _BY_ID["host-ray"] if module.startswith("ray") else None if module.startswith("java") else TORCH_TYPE
    return _BY_ID["host-python"] if name.endswith("MemoryError") else None


def _kind(row: Row, text: str, match: re.Match[str] | None) -> Kind:
    start, end = (None, None) if match is None else match.span()
    if row.id in _HOST:
        return Kind(row.id, is_oom=True, device="cpu", start=start, end=end)
    if row.outcome is Outcome.OOM:
        return Kind(row.id, is_oom=True, device=_device(row, text), start=start, end=end)
    return Kind(row.id, is_oom=False, device="none", start=start, end=end)


def _ambiguous(row: Row, text: str, match: re.Match[str], type_name: str) -> Kind | None:
    start, end = match.span()
    if row.id in _TAKEN_FOR_OOM or (row.id == "xla-unspecific" and _MEMORY_WORDS.search(text) is not None):
        return Kind(row.id, is_oom=True, device=_device(row, text), start=start, end=end)
    if row.id != "out-of-memory-words":
        return Kind(row.id, is_oom=False, device="none", start=start, end=end)
    if not type_name:
        return None
    host = _HOST_WORDS.search(text) is not None and _DEVICE_WORDS.search(text) is None
    return Kind(row.id, is_oom=True, device="cpu" if host else "cuda", start=start, end=end)


def _device(row: Row, text: str) -> MemoryDevice:
    """Whose memory a row is about; XLA runs on GPUs unless the text names what only a TPU has."""
    if row.device == "xla":
        return "cpu" if _ON_HOST.search(text) is not None else "xla" if _TPU.search(text) is not None else "cuda"
    if row.device == "cuda" and _ROCM.search(text) is not None:
        return "hip"
    return "cuda" if row.device == "any" else row.device
