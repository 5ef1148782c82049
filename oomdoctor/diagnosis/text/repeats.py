"""Lines that a text repeats but for their numbers: looked at a few times each, and passed over from then on.

A log may have memory, or the same harmless error, in every one of ten million lines. What is new in a block of such a
log is found by comparing its lines, digits taken out, with those that are known, which costs a nanosecond a byte.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

from oomdoctor.diagnosis.text.sieve import OVERLAP_BYTES, Hit, find, lines_that_may_hold, may_hold

LOOKS: Final = 96
"""How often a line that tells of an error is looked at before it is known."""

_MOST_KNOWN: Final = 4096
_LONGEST_KNOWN: Final = 2000  # bytes of a line
_MOST_NEW: Final = 32  # different suspicious lines in a block; one with more does not repeat itself
_MOST_UNKNOWABLE: Final = 32  # lines of a block that are looked at each time
_MOST_RARE: Final = 4  # looks at a line
_BLOCKS_BETWEEN_TRIES: Final = 16  # where a text turned out not to repeat itself

_LOWER: Final = bytes(range(256)).lower()
_DIGITS: Final = b"0123456789"
_NUMBERS_MATTER: Final = (b"exit", b"signal")  # words after which 137 is an error and 0 is none


class Repeats:
    """What the lines of a text have in common, learned as it is read.

    Attributes:
        is_on: Whether the last block repeated itself, so that the next one is best compared first.
    """

    def __init__(self) -> None:
        self.is_on = False
        self._known: set[bytes] = set()
        self._looks: Counter[bytes] = Counter()
        self._blocks_to_wait = 0

    def may_begin(self) -> bool:
        """Tell whether a block that may hold errors is worth comparing with what is known."""
        self._blocks_to_wait = max(0, self._blocks_to_wait - 1)
        return self._blocks_to_wait == 0

    def knows(self, line: bytes) -> bool:
        """Tell whether a line was looked at often enough."""
        form = _form(line)
        return form in self._known or form + b"\r" in self._known

    def is_rare(self, line: bytes) -> bool:
        """Tell whether a line was looked at just now, in a block that repeats itself, and hardly ever before."""
        form = _form(line)
        return self.is_on and 0 < self._looks[form] + self._looks[form + b"\r"] <= _MOST_RARE

    def find_new(self, block: bytes) -> tuple[list[Hit], int] | None:
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

    def _look_at(self, block: bytes, forms: list[bytes], suspicious: set[bytes]) -> list[Hit]:
        found: list[Hit] = []
        at = 0
        for form, line in zip(forms, block.split(b"\n"), strict=True):
            if form in suspicious and form not in self._known:
                hits = _hits_of_line(block, at, len(line))
                self._learn(form, is_error=bool(hits))
                found += hits
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


def _hits_of_line(block: bytes, at: int, length: int) -> list[Hit]:
    around = block[at : at + length + OVERLAP_BYTES]
    families = may_hold(around[:length])[1]
    hits = find(around, families, at_an_end=False, most_hits={True: None, False: None})
    return [Hit(at + hit.offset, hit.strong) for hit in hits if hit.offset < length]


def _form(text: bytes) -> bytes:
    """What is left of lines without their numbers."""
    return text.translate(_LOWER, _DIGITS)


def _can_be_known(form: bytes) -> bool:
    return len(form) <= _LONGEST_KNOWN and not any(word in form for word in _NUMBERS_MATTER)
