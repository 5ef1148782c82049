"""A stream of any length and encoding, in regions of a MiB or two with enough around them to see an error whole.

One pass, nothing is sought back, so that pipes will do. gzip is unpacked on the way. UTF-16 and UTF-32 become UTF-8;
every other encoding is left as it is, since all of them write ASCII as ASCII. NUL bytes are dropped.
"""

from __future__ import annotations

import codecs
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, BinaryIO, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

CHUNK_BYTES: Final = 1 << 20
"""Small enough to stay in the processor's cache from the reading to the searching."""
BEFORE_BYTES: Final = 128 << 10
"""Kept before a region: 200 lines, also where eight processes print by turns."""
AFTER_BYTES: Final = 32 << 10
"""Read beyond a region, for the lines that follow an error."""

_GZIP_MAGIC: Final = b"\x1f\x8b"
_GZIP_WINDOW: Final = 31  # zlib's number for the largest window with a gzip header
_LOOKED_AT_BYTES: Final = 4096  # of the beginning, to tell the encoding
_BYTE_ORDER_MARKS: Final = (
    (codecs.BOM_UTF32_LE, "utf-32-le"),  # begins like UTF-16's and comes first
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)


@dataclass(frozen=True, slots=True)
class Region:
    """A part of the text to search, and what is around it.

    Attributes:
        data: The region with up to `BEFORE_BYTES` before and about `AFTER_BYTES` after it.
        begin: Where in `data` the region begins.
        end: Where it ends: after a line wherever lines are short enough.
        is_last: Whether the text ends with it.
    """

    data: bytes
    begin: int
    end: int
    is_last: bool


def read_regions(stream: BinaryIO) -> Iterator[Region]:
    """Read a stream to its end; every byte of the text is in exactly one region, in order.

    Raises:
        OSError: The stream cannot be read.
    """
    chunks = _without_nul(_as_utf8(_unpacked(_raw_chunks(stream))))
    chunk, data, begin = next(chunks, b""), b"", 0
    while True:
        following = next(chunks, None)
        data = data[max(0, begin - BEFORE_BYTES) :] + chunk
        begin = min(begin, BEFORE_BYTES)
        end = len(data) if following is None else _cut(data, begin, len(data) - AFTER_BYTES)
        yield Region(data, begin, end, following is None)
        if following is None:
            return
        begin, chunk = end, following


def _cut(data: bytes, begin: int, latest: int) -> int:
    """Choose where a region ends: after a line, or where there is none after a progress bar's state, or anywhere."""
    if latest <= begin:
        return begin
    after_line = max(data.rfind(b"\n", begin, latest), data.rfind(b"\r", latest - AFTER_BYTES, latest)) + 1
    return after_line if after_line > begin else latest


def _raw_chunks(stream: BinaryIO) -> Iterator[bytes]:
    """Read whole chunks, also from a pipe that hands over less at a time; the last one is the longest."""
    pending = b""
    while chunk := _read_fully(stream):
        if len(chunk) < CHUNK_BYTES:
            pending += chunk
            break
        if pending:
            yield pending
        pending = chunk
    if pending:
        yield pending


def _read_fully(stream: BinaryIO) -> bytes:
    parts, missing = [], CHUNK_BYTES
    while missing > 0 and (part := stream.read(missing)):
        parts.append(part)
        missing -= len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _unpacked(chunks: Iterator[bytes]) -> Iterator[bytes]:
    first = next(chunks, b"")
    if not first.startswith(_GZIP_MAGIC):
        yield first
        yield from chunks
        return
    unpacker = zlib.decompressobj(_GZIP_WINDOW)
    packed = first
    while packed:
        try:
            text = unpacker.decompress(packed, CHUNK_BYTES)
        except zlib.error:
            return  # damaged or cut off: what came before counts
        if text:
            yield text
        packed = unpacker.unconsumed_tail
        if unpacker.eof:  # a log that was packed day by day is several archives in a row
            packed, unpacker = unpacker.unused_data, zlib.decompressobj(_GZIP_WINDOW)
        packed = packed or next(chunks, b"")


def _as_utf8(chunks: Iterator[bytes]) -> Iterator[bytes]:
    first = next(chunks, b"")
    encoding = _wide_encoding(first[:_LOOKED_AT_BYTES])
    if encoding is None:
        yield first
        yield from chunks
        return
    decoder = codecs.getincrementaldecoder(encoding)(errors="replace")
    yield decoder.decode(first).lstrip("\ufeff").encode(errors="replace")
    for chunk in chunks:
        yield decoder.decode(chunk).encode(errors="replace")


def _wide_encoding(beginning: bytes) -> str | None:
    """Tell UTF-16 and UTF-32 by their mark, or by where the NUL bytes are."""
    for mark, encoding in _BYTE_ORDER_MARKS:
        if beginning.startswith(mark):
            return encoding
    quarter = len(beginning) // 4
    if quarter == 0 or b"\0" not in beginning:
        return None
    nul = [beginning[place::4].count(0) > quarter // 2 for place in range(4)]
    patterns = {
        (False, True, True, True): "utf-32-le",
        (True, True, True, False): "utf-32-be",
        (False, True, False, True): "utf-16-le",
        (True, False, True, False): "utf-16-be",
    }
    return patterns.get((nul[0], nul[1], nul[2], nul[3]))


def _without_nul(chunks: Iterator[bytes]) -> Iterator[bytes]:
    for chunk in chunks:
        yield chunk.translate(None, b"\0") if b"\0" in chunk else chunk
