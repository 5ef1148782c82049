"""Scan a text of any length once, for windows around errors and for memory over training steps.

A candidate refers to the region that it was found in while that region is being searched, and to a copy of the lines
around it after that. Lines are cleaned at the very end, for those candidates that are still kept.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import islice
from typing import TYPE_CHECKING, BinaryIO, Final

from oomdoctor.diagnose.evidence import Window
from oomdoctor.diagnose.tables import Patterns
from oomdoctor.diagnose.text.printed_tables import LONGEST_TABLE, MARKS
from oomdoctor.diagnose.text.reading import (
    AFTER_BYTES,
    BEFORE_BYTES,
    LONGEST_LINE,
    Region,
    clean,
    read_regions,
    segments,
    unglue,
)
from oomdoctor.diagnose.text.search import BLOCK_BYTES, OVERLAP_BYTES, PossibleError, Repeats, find, may_hold
from oomdoctor.diagnose.text.trend import TrendReader, read_step

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from oomdoctor.results import MemoryTrend


_PATTERNS: Final = Patterns(__name__)
LINES_BEFORE: Final = 200
LINES_AFTER: Final = 40
_MOST_CHARACTERS: Final = 1 << 16  # of a window, its own line not counted
_MOST_LINES_LOOKED_AT: Final = 4000

# Places near each other have most of their lines in common.
_clean: Final = lru_cache(maxsize=512)(clean)
_read_step: Final = lru_cache(maxsize=512)(read_step)


@dataclass(slots=True)
class Candidate:
    """A line that may tell of an error.

    Attributes:
        data: The region, or what is left of it around the line.
        begin: Where in `data` the line begins.
        end: Where it ends, its line end not included.
        line_number: From 1.
        step: The latest training step known when it was read.
        count: How often it was found.
    """

    data: bytes
    begin: int
    end: int
    line_number: int
    step: int | None
    count: int = 1

    def release(self) -> None:
        """Keep what is around the line and not the whole region."""
        first = max(0, self.begin - BEFORE_BYTES)
        self.data = self.data[first : self.end + AFTER_BYTES]
        self.begin, self.end = self.begin - first, self.end - first


class Selection:
    """The first and the last of many candidates, each different from the others."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._first: dict[object, Candidate] = {}
        self._last: OrderedDict[object, Candidate] = OrderedDict()

    def add(self, key: object, candidate: Candidate) -> None:
        """Keep a candidate, or count it where one of the same key is kept."""
        known = self._first.get(key) or self._last.get(key)
        if known is not None:
            known.count += 1
        elif len(self._first) < self._most:
            self._first[key] = candidate
        else:
            self._last[key] = candidate
            if len(self._last) > self._most:
                self._last.popitem(last=False)

    def candidates(self) -> tuple[Candidate, ...]:
        """Return all that is kept, in the order in which it was found."""
        return (*self._first.values(), *self._last.values())

    def release(self, region: bytes) -> None:
        """Hold on to a region no longer."""
        held = [candidate for candidate in self.candidates() if candidate.data is region]
        if len(held) * (BEFORE_BYTES + AFTER_BYTES) < len(region):  # else copies would take more than the region
            for candidate in held:
                candidate.release()


def build_window(candidate: Candidate, source: str) -> Window:
    """Clean the lines around a candidate; those of other processes are left out where prefixes tell them apart."""
    hit = clean(candidate.data[candidate.begin : candidate.end])
    *glued, text = unglue(hit.text)
    before = [*_before(candidate, hit.rank), *glued][-LINES_BEFORE:]
    after = _after(candidate, hit.rank)
    step = next((number for line in reversed(before) if (number := _read_step(line)) is not None), candidate.step)
    return Window(
        source=source,
        line_number=candidate.line_number,
        rank=hit.rank,
        lines=(*before, text[:LONGEST_LINE], *after),
        at=len(before),
        count=candidate.count,
        step=step,
    )


def _before(candidate: Candidate, rank: int | None) -> list[str]:
    earlier = candidate.data[max(0, candidate.begin - BEFORE_BYTES) : candidate.begin]
    if not earlier:
        return []
    if not earlier.endswith(b"\r"):  # else the same line showed something before the error was printed over it
        earlier = earlier.removesuffix(b"\n")
    lines = reversed(earlier.split(b"\n")[-_MOST_LINES_LOOKED_AT:])
    return _cleaned((part for line in lines for part in reversed(segments(line.strip(b"\r")))), rank, LINES_BEFORE)[
        ::-1
    ]


def _after(candidate: Candidate, rank: int | None) -> list[str]:
    later = candidate.data[candidate.end : candidate.end + AFTER_BYTES].removeprefix(b"\r\n").removeprefix(b"\n")
    if not later:
        return []
    lines = later.removesuffix(b"\n").split(b"\n")[:_MOST_LINES_LOOKED_AT]
    return _cleaned((part for line in lines for part in segments(line.strip(b"\r"))), rank, LINES_AFTER)


def _cleaned(parts: Iterable[bytes], rank: int | None, most: int) -> list[str]:
    """Clean the first lines of one process, up to a number of lines and of characters."""
    kept: list[str] = []
    budget = _MOST_CHARACTERS
    for part in parts:
        line = _clean(part)
        budget -= len(line.text) if line.rank == rank else 0
        if len(kept) == most or budget < 0:
            break
        if line.rank == rank:
            kept.append(line.text)
    return kept


MOST_STRONG: Final = 96
MOST_WEAK: Final = 32
MOST_RARE: Final = 32
"""Places kept from the beginning, and as many from the end: about memory or the GPU, and of any other error; and rare
ones about memory or the GPU among lines that repeat themselves."""

_PATIENCE_HITS: Final = 5_000  # looked at one by one; beyond that a text repeats itself
_HITS_OF_A_BLOCK: Final = 8  # and only the first ones of each block are

_LINES_READ_FOR_STEPS: Final = 4_000  # at the beginning; beyond that some of every so many blocks
_BLOCKS_SEEN_FOR_STEPS: Final = 100  # the beginning ends here too, where few of its lines tell of memory
_LINES_SEEN_FOR_STEPS: Final = 100_000
_BLOCKS_BETWEEN_STEPS: Final = 32
_LINES_OF_A_BLOCK: Final = 4
_LINES_OF_A_TAIL: Final = 64  # of which most may be empty
_MENTIONS_MEMORY: Final = re.compile(rb"(?i:mem|alloc|vram|reserved)|\d[GM]\b")

_LAST_BYTES: Final = 1 << 18  # of the end, where every line is looked at, known or not
_EDGE_BYTES: Final = 1 << 20  # of the beginning, where rare words are looked for as at the end

_HALF_LINE: Final = LONGEST_LINE // 2
_KEY_BYTES: Final = 2000
_NEAR_BYTES: Final = 2000
_LONGEST_CODE: Final = 2000  # bytes of a line; a longer one is no code

# Later sentences of a message whose beginning was found: they are no message of their own.
_CONTINUATION: Final = re.compile(
    rb"total capac|memory in use|of the allocated memory|already allocated|bytes free;|mib free;|gib free;|if reserved"
    rb"|reserved by pytorch|is free\.",
)
_BEGINS_MESSAGE: Final = re.compile(rb"error:|out of memory|memoryerror")
_NOISE: Final = _PATTERNS("noise")
_NAMED_ERROR: Final = re.compile(r"\b\w*(?:Error|Exception)\b: |\b(?:CUDA|HIP) error: ")
_FRAME: Final = re.compile(r"^\s*File \"[^\"]{1,1000}\", line \d+, in \S{1,200}$|^\s*File \"[^\"]{1,1000}\", line \d+$")
_TRACEBACK: Final = b"traceback (most"
_IN_TRACEBACK: Final = re.compile(r"[\s|+^~❱>.…]|File \"|$|-{3}|Traceback \(most")
_EXCEPTION: Final = re.compile(r"[A-Za-z_][\w.]{2,200}\s{0,2}(?:[:(]|$)")
_MOST_TRACEBACK_LINES: Final = 600
_CLOCK: Final = re.compile(rb"\d\d:\d\d:\d\d[.,\d]*")
_RANK: Final = re.compile(rb"[^\n]{0,80}?(?:rank|default|trainer\d+\||\[\d+,|^)(\d{1,6})[\]:]")


@dataclass(frozen=True, slots=True)
class Scan:
    """Result of a scan.

    Attributes:
        windows: Lines around each different candidate that may tell of an error, in the order of the text.
        trend: Memory over training steps, where the text tells.
        lines: How many lines the text has, a last one without a line end included.
        size_bytes: Bytes of the text, unpacked and as UTF-8.
        tables: Lines from the title on of the last table of each of `MARKS`, by its mark.
    """

    windows: tuple[Window, ...]
    trend: MemoryTrend | None
    lines: int
    size_bytes: int
    tables: dict[bytes, tuple[str, ...]] = field(default_factory=dict)


def scan(stream: BinaryIO, source: str) -> Scan:
    """Read a text to its end; no content makes this fail, and memory stays bounded.

    Args:
        stream: Of bytes; a pipe will do.
        source: What to call it, see `Window.source`.

    Raises:
        OSError: The stream cannot be read.
    """
    scanner = _Scanner()
    for region in read_regions(stream):
        scanner.read(region)
    return scanner.finish(source)


class _Scanner:
    def __init__(self) -> None:
        self._trend = TrendReader()
        self._repeats = Repeats()
        self._kept = {True: Selection(MOST_STRONG), False: Selection(MOST_WEAK)}
        self._rare = Selection(MOST_RARE)
        self._hit_counts = {True: 0, False: 0}
        self._lines = 0  # line ends so far
        self._bytes = 0
        self._blocks = 0
        self._lines_for_steps = 0
        self._ends_open = False
        self._tables: dict[bytes, bytes] = {}

    def read(self, region: Region) -> None:
        for mark in MARKS:
            if (title := region.data.rfind(mark, region.begin, region.end)) >= 0:
                first = region.data.rfind(b"\n", 0, title) + 1
                self._tables[mark] = region.data[first : first + LONGEST_TABLE]
        at = region.begin
        seen: set[int] = set()  # lines of this region that are settled, by where they begin
        while at < region.end:
            stop = min(at + BLOCK_BYTES, region.end)
            if stop < region.end:
                stop = max(region.data.rfind(b"\n", at, stop) + 1, region.data.rfind(b"\r", at, stop) + 1) or stop
            self._read_block(region, at, stop, seen)
            at = stop
        if region.end > region.begin:
            self._ends_open = region.data[region.end - 1] != ord("\n")
        for kept in (*self._kept.values(), self._rare):
            kept.release(region.data)

    def finish(self, source: str) -> Scan:
        candidates = [candidate for kept in (*self._kept.values(), self._rare) for candidate in kept.candidates()]
        windows = [build_window(candidate, source) for candidate in candidates]
        windows.sort(key=lambda window: window.line_number)
        tables = {mark: tuple(clean(line).text for line in raw.split(b"\n")) for mark, raw in self._tables.items()}
        return Scan(tuple(windows), self._trend.trend(), self._lines + self._ends_open, self._bytes, tables)

    def _read_block(self, region: Region, begin: int, end: int, seen: set[int]) -> None:
        data = region.data
        at_an_end = region.is_last or self._bytes < _EDGE_BYTES
        lines = self._search_new_lines(data, begin, end, seen) if self._repeats.is_on and not at_an_end else None
        if lines is None:
            lines = self._search_block(region, begin, end, seen, at_an_end=at_an_end)
        self._read_training_steps(data, begin, end)
        self._lines += lines
        self._bytes += end - begin

    def _search_block(self, region: Region, begin: int, end: int, seen: set[int], *, at_an_end: bool) -> int:
        """Search a block whatever the ones before it were; returns how many line ends it has."""
        data = region.data
        # A line that is longer than a block may have a word across the cut.
        first = begin if begin == 0 or data[begin - 1] in b"\r\n" else max(0, begin - OVERLAP_BYTES)
        skeleton, patterns = may_hold(data[first:end])
        if patterns and not at_an_end and self._repeats.may_begin():
            lines = self._search_new_lines(data, begin, end, seen)
            if lines is not None:
                return lines
        if patterns or at_an_end:
            is_crowded = {
                strong: hits > _PATIENCE_HITS and not region.is_last for strong, hits in self._hit_counts.items()
            }
            most = {strong: _HITS_OF_A_BLOCK if crowded else None for strong, crowded in is_crowded.items()}
            hits = find(data[first:end], patterns, at_an_end=at_an_end, most_hits=most)
            is_last = region.is_last and end > region.end - _LAST_BYTES
            self._keep_lines(
                data, begin, [PossibleError(first + hit.offset, hit.strong) for hit in hits], seen, is_last=is_last
            )
        return skeleton.count(b"\n") - data.count(b"\n", first, begin)

    def _search_new_lines(self, data: bytes, begin: int, end: int, seen: set[int]) -> int | None:
        """Search a block for what is not known; returns how many line ends it has, or None where that will not do."""
        if (begin > 0 and data[begin - 1] != ord("\n")) or data[end - 1] != ord("\n"):
            return None
        found = self._repeats.find_new(data[begin:end])
        if found is None:
            return None
        hits, lines = found
        if hits:
            self._keep_lines(
                data, begin, [PossibleError(begin + hit.offset, hit.strong) for hit in hits], seen, is_last=True
            )
        return lines

    def _keep_lines(self, data: bytes, begin: int, hits: list[PossibleError], seen: set[int], *, is_last: bool) -> None:
        """Keep the lines that were hit; known ones only where a text ends with them."""
        line_number, counted_to = self._lines + 1, begin
        last_strong = -_NEAR_BYTES
        for first, last, same_line in _by_line(data, hits):
            if first in seen:
                continue
            seen.add(first)
            line_number += data.count(b"\n", counted_to, first) if first > counted_to else 0
            counted_to = max(counted_to, first)
            strong = next((hit for hit in same_line if hit.strong), None)
            self._hit_counts[strong is not None] += 1
            if not is_last and self._repeats.knows(data[first:last]):
                continue
            line = data[first:last]
            lower = line.lower()
            is_near = first - last_strong < _NEAR_BYTES
            if is_near and not _BEGINS_MESSAGE.search(lower) and _CONTINUATION.search(lower):
                continue
            candidate = Candidate(data, first, last, line_number, self._trend.step)
            if strong is None and _TRACEBACK in lower:
                self._keep_exception(candidate, seen)
            elif len(line) > _LONGEST_CODE or _may_be_error(clean(line).text):
                last_strong = first if strong is not None else last_strong
                self._keep(candidate, strong or same_line[0], is_strong=strong is not None)

    def _keep(self, candidate: Candidate, hit: PossibleError, *, is_strong: bool) -> None:
        # What is printed before the words that were found is a time or a logger's name, and differs without a reason.
        text = candidate.data[max(candidate.begin, hit.offset) : candidate.end][:_KEY_BYTES].strip()
        rank = _RANK.match(candidate.data[candidate.begin : candidate.begin + 80])
        key = (rank and rank[1], text if is_strong else _CLOCK.sub(b"", text))
        is_rare = is_strong and self._repeats.is_rare(candidate.data[candidate.begin : candidate.end])
        (self._rare if is_rare else self._kept[is_strong]).add(key, candidate)

    def _keep_exception(self, header: Candidate, seen: set[int]) -> None:
        """Keep the last line of a traceback, whatever its error is called."""
        rank = clean(header.data[header.begin : header.end]).rank
        for newlines, (first, last) in enumerate(islice(_lines_after(header), _MOST_TRACEBACK_LINES), start=1):
            raw = header.data[first:last]
            line = clean(raw)
            if line.rank != rank or _IN_TRACEBACK.match(line.text):
                continue
            if first not in seen and _EXCEPTION.match(line.text) and b"rror" not in raw and b"xception" not in raw:
                seen.add(first)
                candidate = Candidate(header.data, first, last, header.line_number + newlines, header.step)
                self._keep(candidate, PossibleError(first, strong=False), is_strong=False)
            return

    def _read_training_steps(self, data: bytes, begin: int, end: int) -> None:
        """Read all lines that tell of memory at first, then some lines of every so many blocks."""
        self._blocks += 1
        at_first = self._blocks <= _BLOCKS_SEEN_FOR_STEPS and self._lines < _LINES_SEEN_FOR_STEPS
        if at_first and self._lines_for_steps < _LINES_READ_FOR_STEPS:
            parts = [part for line in data[begin:end].split(b"\n") for part in segments(line)]
            last = len(parts) - _LINES_OF_A_BLOCK
            lines = [part for at, part in enumerate(parts) if at >= last or _MENTIONS_MEMORY.search(part)]
            self._lines_for_steps += len(lines)
        elif self._blocks % _BLOCKS_BETWEEN_STEPS == 0:
            lines = _last_lines(data, begin, end)
        else:
            return
        for raw in lines:
            if len(raw) <= LONGEST_LINE and b"rror" not in raw and b"out of memory" not in raw:
                line = clean(raw)
                self._trend.add(line.text, line.rank)


def _by_line(data: bytes, hits: list[PossibleError]) -> Iterator[tuple[int, int, list[PossibleError]]]:
    """Yield the begin, the end and the hits of each line that was hit; the parts of a long line count as lines."""
    first, last = 0, 0
    same_line: list[PossibleError] = []
    for hit in hits:
        if same_line and hit.offset < last and last - first < _HALF_LINE:
            same_line.append(hit)
            continue
        if same_line:
            yield first, last, same_line
        first, last = _line_around(data, hit.offset)
        same_line = [hit]
    if same_line:
        yield first, last, same_line


def _line_around(data: bytes, at: int) -> tuple[int, int]:
    """Return the begin and the end of a line; of a long one only the part around `at`."""
    lowest, highest = max(0, at - _HALF_LINE), min(len(data), at + _HALF_LINE)
    first = max(data.rfind(b"\n", lowest, at), data.rfind(b"\r", lowest, at), lowest - 1) + 1
    ends = [end for end in (data.find(b"\n", at, highest), data.find(b"\r", at, highest)) if end >= 0]
    return first, min(ends, default=highest)


def _lines_after(candidate: Candidate) -> Iterator[tuple[int, int]]:
    end = candidate.end
    while (newline := candidate.data.find(b"\n", end)) >= 0:
        first = newline + 1
        end = candidate.data.find(b"\n", first)
        end = len(candidate.data) if end < 0 else end
        if first < len(candidate.data):
            yield first, min(end, first + LONGEST_LINE)


def _last_lines(data: bytes, begin: int, end: int) -> list[bytes]:
    """The last lines of a block, and the last ones that speak of memory."""
    tail = data[max(begin, end - LONGEST_LINE) : end].replace(b"\r", b"\n").rsplit(b"\n", _LINES_OF_A_TAIL)[1:]
    lines = [line for line in tail if line.strip()][-_LINES_OF_A_BLOCK:]
    if not any(b"mem" in line for line in lines) and (at := data.rfind(b"mem", begin, end)) >= 0:
        first, last = _line_around(data, at)
        lines.insert(0, data[first:last])
    return lines


def _may_be_error(text: str) -> bool:
    """Return whether a line can be an error's and is not code, a frame, or a sentence that accompanies every error."""
    return not (_NOISE.search(text) and not _NAMED_ERROR.search(text)) and not _FRAME.match(text)
