"""Read a stream of any length and encoding in regions, and clean its lines of prefixes and colours.

It is one pass without seeking, so that pipes can be read. gzip is unpacked on the way. UTF-16 and UTF-32 become UTF-8;
every other encoding is left as it is, since all of them write ASCII as ASCII. NUL bytes are dropped.
"""

from __future__ import annotations

import codecs
import json
import re
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, BinaryIO, Final

from oomdoctor.diagnose.tables import Patterns

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
    unpacked = _as_utf8(_unpacked(_raw_chunks(stream)))
    chunks = (chunk.translate(None, b"\0") if b"\0" in chunk else chunk for chunk in unpacked)
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
    """Return the encoding where it is UTF-16 or UTF-32, by its mark, or by the positions of NUL bytes."""
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


_CONTROL_BYTES: Final = bytes([*range(8), *range(14, 27), *range(28, 32), 127])
"""Those that neither text nor the colours, bells and overwritten lines of a terminal have."""
_MOST_CONTROL: Final = 0.03


def looks_binary(beginning: bytes) -> bool:
    """Return whether a beginning is that of no text; packed text, and that of wide characters, is text."""
    if beginning.startswith(_GZIP_MAGIC) or _wide_encoding(beginning[:_LOOKED_AT_BYTES]) is not None:
        return False
    control = len(beginning) - len(beginning.translate(None, _CONTROL_BYTES))
    return control > _MOST_CONTROL * len(beginning)


LONGEST_LINE: Final = 8192
"""Characters of a line that are kept."""

_PATTERNS: Final = Patterns(__name__)
_ESCAPES: Final = _PATTERNS("escapes")
_DOCKER: Final = re.compile(r'\{\s?"log"\s?:\s?"((?:[^"\\]|\\.){0,40000})"')
_CONTROL: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b\u200e\u200f\ufeff]")

_RANK: Final = re.compile(f"[ ]{{0,2}}(?:{_PATTERNS.filled(_PATTERNS.table['ranks'])})")
_PREFIXES: Final = tuple(re.compile(_PATTERNS.filled(prefix)) for prefix in _PATTERNS.table["prefixes"])
_MOST_PREFIXES: Final = 8

_BOX_LEFT: Final = re.compile(r"^[ ]{0,8}[│┃║╭╰┌└├╞]{1,2}[─━═]{0,400}[ ]?")
_BOX_RIGHT: Final = re.compile(r"[ ]{0,400}[─━═]{0,400}[│┃║╮╯┐┘┤╡]{1,2}[ ]{0,8}$")
_BOX: Final = frozenset("│┃║╭╮╰╯┌┐└┘├┤")

# A progress bar stays on its line when the program dies, and the error is printed right after it.
_GLUED: Final = re.compile(r"(?:it|s|B|ex|step|batch)(?:/(?:s|it))[^\]\n]{0,400}\](?=[A-Z(])")


@dataclass(frozen=True, slots=True)
class CleanLine:
    """A line of a program's output.

    Attributes:
        text: The line without prefixes, colours and boxes, its indentation kept.
        rank: The process that printed it, where a prefix says so.
    """

    text: str
    rank: int | None


def clean(raw: bytes) -> CleanLine:
    """Clean one line, without its end; never raises."""
    text = raw[: 4 * LONGEST_LINE].decode(errors="replace")
    if text.startswith("{"):
        text = _docker_line(text)
    if "\x1b" in text or "[" in text or "#x1" in text:
        text = _ESCAPES.sub("", text)
    text = _CONTROL.sub("", text)
    text, rank = _without_prefixes(text)
    if not _BOX.isdisjoint(text):
        text = _BOX_LEFT.sub("", _BOX_RIGHT.sub("", text, count=1), count=1)
    text = text.rstrip()
    if text.count("`") % 2 == 1:  # the other one stood before the text
        text = text.removesuffix("`")
    return CleanLine(text[:LONGEST_LINE], rank)


def _docker_line(text: str) -> str:
    """Take a program's line out of the JSON object that Docker's `json-file` driver makes of each."""
    found = _DOCKER.match(text)
    if found is None:
        return text
    try:
        line = str(json.loads(f'"{found[1]}"'))
    except ValueError:
        return text
    return line.rstrip("\r\n").rpartition("\r")[2]  # of a progress bar's states the last


def unglue(text: str) -> tuple[str, ...]:
    """Part an error from the progress bar in front of it."""
    match = _GLUED.search(text)
    return (text,) if match is None else (text[: match.end()], text[match.end() :])


def segments(line: bytes) -> list[bytes]:
    """Part what carriage returns wrote over each other; of a progress bar's states only the last is kept."""
    if b"\r" not in line:
        return [line]
    parts = [part for part in line.split(b"\r") if part.strip()]
    last = len(parts) - 1
    return [part for at, part in enumerate(parts) if at == last or b"%|" not in part or b"%|" not in parts[at + 1]]


def _without_prefixes(text: str) -> tuple[str, int | None]:
    rank: int | None = None
    at = 0
    for _ in range(_MOST_PREFIXES):
        match = _RANK.match(text, at)
        if match is not None:
            number = next(group for group in match.groups() if group is not None)
            rank = int(number) if rank is None else rank
        else:
            match = next((found for prefix in _PREFIXES if (found := prefix.match(text, at))), None)
        if match is None or match.end() == at:
            break
        at = match.end()
    return text[at:], rank
