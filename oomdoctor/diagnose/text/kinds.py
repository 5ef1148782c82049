"""The kind of an error: its row in the table of errors, its device, or a system's kill notice.

A trial knows how much memory was free, so that it can decide about an ambiguous message. Here only the text is left,
and the table says which ambiguous messages are taken for an OOM nevertheless.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Final

from oomdoctor.agent.oom_errors import lowered, table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from oomdoctor.agent.oom_errors import Row
    from oomdoctor.results import MemoryDevice

OTHER_ERROR: Final = "other-error"
"""The kind of an error that no row knows."""

_DEVICE_WORDS: Final = re.compile(r"\b(?:CUDA|GPU|VRAM|cudnn|device memory)", re.IGNORECASE)
_HOST_WORDS: Final = re.compile(r"\b(?:host|CPU|RAM|system|heap|swap|node)\b", re.IGNORECASE)
_ON_HOST: Final = re.compile(r"device:CPU:\d+\b.{0,20} by allocator", re.IGNORECASE)
_SHORT: Final = re.compile(r"(?:[:\]|>)]\s|\s-\s)(CUDA out of memory)\b", re.IGNORECASE)  # behind a log's prefix
_TENSORFLOW: Final = re.compile(r"OOM when allocating tensor|_bfc\) ran out of memory trying to allocate")
_ROCM: Final = re.compile(r"\bhip(?:blas|sparse|solver|fft)|\broc(?:blas|sparse|solver)", re.IGNORECASE)
_TPU: Final = re.compile(r"\bTPU|\bHBM\b|\bvmem\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class ErrorKind:
    """Kind of an error's text.

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


def kind_of(text: str, type_name: str = "") -> ErrorKind | None:
    """Find what a text is.

    Args:
        text: A message in one line.
        type_name: Its exception's type as printed; empty where none is.

    Returns:
        None where neither the words nor the type are known.
    """
    lower_case = lowered(text)
    certain = [row for row in table().rows if not row.needs_pressure]
    found = _first_match(certain, lower_case)
    if found is not None:
        return _kind(*found, text)
    short = _SHORT.search(text)
    if short is not None:
        return ErrorKind("cuda-allocator-short", is_oom=True, device="cuda", start=short.start(1), end=short.end(1))
    by_type = table().named(_row_of_type(type_name, text) or "")
    if by_type is not None:
        return _kind(by_type, None, text)
    found = _first_match([row for row in table().rows if row.needs_pressure], lower_case)
    return None if found is None else _ambiguous(*found, text, type_name)


def _first_match(rows: Sequence[Row], text: str) -> tuple[Row, re.Match[str]] | None:
    """Return the first row whose patterns are all in a text in lower case, and the match of its first pattern."""
    return next(((row, match) for row in rows if (match := row.match(text)) is not None), None)


def _row_of_type(type_name: str, text: str) -> str | None:
    """Return the id of the row that a printed type stands for, whatever its text; None where it stands for none."""
    module, _, name = type_name.rpartition(".")
    if _TENSORFLOW.search(text) is not None:
        return "tensorflow-allocator"
    if "allocated so far: " in text or (module.startswith("cupy") and name == "OutOfMemoryError"):
        return "cupy-allocation"
    if name == "OutOfMemoryError":
        return "host-ray" if module.startswith("ray") else None if module.startswith("java") else "torch-type"
    return "host-python" if name.endswith("MemoryError") else None


def _kind(row: Row, match: re.Match[str] | None, text: str) -> ErrorKind:
    start, end = (None, None) if match is None else match.span()
    if row.means == "host_oom":
        return ErrorKind(row.id, is_oom=True, device="cpu", start=start, end=end)
    if row.means == "oom":
        return ErrorKind(row.id, is_oom=True, device=_device(row, text), start=start, end=end)
    return ErrorKind(row.id, is_oom=False, device="none", start=start, end=end)


def _ambiguous(row: Row, match: re.Match[str], text: str, type_name: str) -> ErrorKind | None:
    start, end = match.span()
    if not row.says_oom(lowered(text)):
        return ErrorKind(row.id, is_oom=False, device="none", start=start, end=end)
    if row.device != "any":
        return ErrorKind(row.id, is_oom=True, device=_device(row, text), start=start, end=end)
    if not type_name:
        return None  # a sentence that mentions memory
    host = _HOST_WORDS.search(text) is not None and _DEVICE_WORDS.search(text) is None
    return ErrorKind(row.id, is_oom=True, device="cpu" if host else "cuda", start=start, end=end)


def _device(row: Row, text: str) -> MemoryDevice:
    """Return the device that a row is about; XLA runs on GPUs unless the text names a part that only a TPU has."""
    if row.device == "xla":
        return "cpu" if _ON_HOST.search(text) is not None else "xla" if _TPU.search(text) is not None else "cuda"
    if row.device == "cuda" and _ROCM.search(text) is not None:
        return "hip"
    return "cuda" if row.device == "any" else row.device


_HANDLED: Final = re.compile(r"caller indicates that this is not a failure|recovered from an allocation failure")


def read_notice(line: str) -> tuple[str, int] | None:
    """Name the notice in a line, and where in the line it begins; None where there is none."""
    found = ((notice.id, _ignoring_case(notice.pattern).search(line)) for notice in table().notices)
    return next(((kind, match.start()) for kind, match in found if match is not None), None)


@cache
def _ignoring_case(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, re.IGNORECASE)


def is_handled(line: str) -> bool:
    """Return whether a line says itself that nothing failed."""
    return _HANDLED.search(line) is not None
