"""Search blocks of a log for lines that may tell of an error, without those that repeat.

A log is large and nearly all of it is harmless. Every block is first reduced to its skeleton: a few consonants in lower
case, and nothing else but line ends. That is a seventh of the bytes, so that looking for a word costs that much less,
and one spelling covers `out of memory`, `OUT_OF_MEMORY`, `OutOfMemory` and UTF-16. A skeleton that holds none of the
words proves that the block does not either; one that does (`error` is `rrr`, as is `mirror or`) proves nothing, and the
block itself is searched with the exact pattern. Patterns begin with a literal, since `re` is quick only then. One
regular expression of all the words over the text itself takes seven times as long on a training log.

A log may have memory, or the same harmless error, in every one of ten million lines. What is new in a block of such a
log is found by comparing its lines, digits taken out, with those that are known, which costs a nanosecond a byte.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Final

from oomdoctor.diagnose.tables import Patterns

if TYPE_CHECKING:
    from collections.abc import Mapping


BLOCK_BYTES: Final = 1 << 16
"""Fits the processor's second-level cache, and is little to search again where a skeleton was mistaken."""

OVERLAP_BYTES: Final = 256
"""Longer than anything that a pattern matches."""

_MOSTLY_EMPTY: Final = 0.75
"""Share of a block that only line ends can leave in its skeleton; they would slow the search down."""

_KEPT: Final = b"bcfklmrtx"
_LOWER: Final = bytes(range(256)).lower()
_DROPPED: Final = bytes(set(range(256)) - set(_KEPT) - set(_KEPT.upper()) - {ord("\n")})


@dataclass(frozen=True, slots=True)
class ErrorPattern:
    """Errors that share a word.

    Attributes:
        pattern: What to look for in the block, in lower case.
        strong: Whether it is about memory or the GPU, and not just any error.
    """

    pattern: re.Pattern[bytes]
    strong: bool = True


@dataclass(frozen=True, slots=True)
class PossibleError:
    """Offset of words that may tell of an error.

    Attributes:
        offset: Where in the searched bytes.
        strong: Whether its pattern is about memory or the GPU.
    """

    offset: int
    strong: bool


_PATTERNS: Final = Patterns(__name__)


def _compile(pattern: str | list[str]) -> re.Pattern[bytes]:
    return re.compile(_PATTERNS.filled(pattern).encode(), re.VERBOSE)


_CORE: Final = tuple(
    (
        re.compile(word["skeleton"].encode()),
        tuple(
            ErrorPattern(_compile(pattern), strong=key == "patterns")
            for key in ("patterns", "weak")
            for pattern in word.get(key, ())
        ),
    )
    for word in _PATTERNS.table["core"]
)
"""What is left of a word in a skeleton, and the patterns that have it."""

_ANY_WORD: Final = re.compile(b"|".join(word.pattern for word, _ in _CORE))
_RARE: Final = _compile(_PATTERNS.table["rare"])


def may_hold(block: bytes) -> tuple[bytes, tuple[ErrorPattern, ...]]:
    """Reduce a block to its skeleton and tell what it can hold; the skeleton still has every line end."""
    skeleton = block.translate(_LOWER, _DROPPED)
    words = skeleton
    if len(skeleton) > _MOSTLY_EMPTY * len(block):
        words = skeleton.translate(None, b"\n")
    return skeleton, tuple(pattern for word, patterns in _CORE if word.search(words) for pattern in patterns)


def lines_that_may_hold(lines: list[bytes]) -> set[bytes]:
    """Return those lines that can hold an error, as `may_hold` does for a block."""
    skeletons = b"\n".join(lines).translate(_LOWER, _DROPPED).split(b"\n")
    return {line for line, skeleton in zip(lines, skeletons, strict=True) if _ANY_WORD.search(skeleton)}


def find(
    block: bytes, patterns: tuple[ErrorPattern, ...], *, at_an_end: bool, most_hits: Mapping[bool, int | None]
) -> list[PossibleError]:
    """Find what tells of an error in a block.

    Args:
        block: The bytes to search.
        patterns: What the block may hold, see `may_hold`.
        at_an_end: Whether this is near the beginning or the end of the text, where rare words are looked for too.
        most_hits: How many of each pattern to return, the first ones, for strong patterns and for the others; None for
            all.

    Returns:
        Hits in order, several of which may be in one line.
    """
    lower = block.lower()
    hits = [
        PossibleError(match.start(), pattern.strong)
        for pattern in patterns
        for match in islice(pattern.pattern.finditer(lower), most_hits[pattern.strong])
    ]
    if at_an_end:
        hits.extend(
            PossibleError(match.start(), strong=True) for match in islice(_RARE.finditer(lower), most_hits[True])
        )
    return sorted(hits, key=lambda hit: hit.offset)


LOOKS: Final = 96
"""How often a line that tells of an error is looked at before it is known."""

_MOST_KNOWN: Final = 4096
_LONGEST_KNOWN: Final = 2000  # bytes of a line
_MOST_NEW: Final = 32  # different suspicious lines in a block; one with more does not repeat itself
_MOST_UNKNOWABLE: Final = 32  # lines of a block that are looked at each time
_MOST_RARE: Final = 4  # looks at a line
_BLOCKS_BETWEEN_TRIES: Final = 16  # where a text turned out not to repeat itself

_LOWER_TEXT: Final = bytes(range(256)).lower()
_DIGITS: Final = b"0123456789"
_NUMBERS_MATTER: Final = (b"exit", b"signal")  # words after which 137 is an error and 0 is none


class Repeats:
    """Lines that a text repeats but for their numbers, learned as it is read.

    Attributes:
        is_on: Whether the last block repeated itself, so that the next one is best compared first.
    """

    def __init__(self) -> None:
        self.is_on = False
        self._known: set[bytes] = set()
        self._looks: Counter[bytes] = Counter()
        self._blocks_to_wait = 0

    def may_begin(self) -> bool:
        """Return whether a block that may hold errors is worth comparing with the known lines."""
        self._blocks_to_wait = max(0, self._blocks_to_wait - 1)
        return self._blocks_to_wait == 0

    def knows(self, line: bytes) -> bool:
        """Return whether a line was looked at often enough."""
        form = _form(line)
        return form in self._known or form + b"\r" in self._known

    def is_rare(self, line: bytes) -> bool:
        """Return whether a line was looked at just now, in a block that repeats itself, and hardly ever before."""
        form = _form(line)
        return self.is_on and 0 < self._looks[form] + self._looks[form + b"\r"] <= _MOST_RARE

    def find_new(self, block: bytes) -> tuple[list[PossibleError], int] | None:
        """Find what tells of an error in those lines of a block that are not known.

        Args:
            block: Whole lines.

        Returns:
            Hits in order, and how many line ends the block has; None where the block does not repeat itself and has
            to be searched as a whole.
        """
        forms = _form(block).split(b"\n")
        different = set(forms)
        new = different - self._known
        suspicious = lines_that_may_hold(list(new))
        unknowable = sum(forms.count(form) for form in suspicious if not _can_be_known(form))
        if len(suspicious) > _MOST_NEW or unknowable > _MOST_UNKNOWABLE:
            self.is_on = False
            self._blocks_to_wait = _BLOCKS_BETWEEN_TRIES
            return None
        self.is_on = bool(suspicious) or len(new) < len(different)
        hits = self._look_at(block, forms, suspicious) if suspicious else []
        return hits, len(forms) - 1

    def _look_at(self, block: bytes, forms: list[bytes], suspicious: set[bytes]) -> list[PossibleError]:
        found: list[PossibleError] = []
        at = 0
        for form, line in zip(forms, block.split(b"\n"), strict=True):
            if form in suspicious and form not in self._known:
                around = block[at : at + len(line) + OVERLAP_BYTES]
                patterns = may_hold(line)[1]
                hits = find(around, patterns, at_an_end=False, most_hits={True: None, False: None})
                own = [PossibleError(at + hit.offset, hit.strong) for hit in hits if hit.offset < len(line)]
                self._learn(form, is_error=bool(own))
                found += own
            at += len(line) + 1
        return found

    def _learn(self, form: bytes, *, is_error: bool) -> None:
        if not _can_be_known(form):
            return
        if len(self._known) + len(self._looks) >= _MOST_KNOWN:
            self._known.clear()
            self._looks.clear()
        self._looks[form] += 1
        if not is_error or self._looks[form] >= LOOKS:
            del self._looks[form]
            self._known.add(form)


def _form(text: bytes) -> bytes:
    """Return lines in lower case without their digits."""
    return text.translate(_LOWER_TEXT, _DIGITS)


def _can_be_known(form: bytes) -> bool:
    return len(form) <= _LONGEST_KNOWN and not any(word in form for word in _NUMBERS_MATTER)
