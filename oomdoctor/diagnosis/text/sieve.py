"""Which parts of a text can hold an error at all, decided at a nanosecond a byte.

A log is large and nearly all of it is harmless. Every block is first reduced to its skeleton: a few consonants in lower
case, and nothing else but line ends. That is a seventh of the bytes, so that looking for a word costs that much less,
and one spelling covers `out of memory`, `OUT_OF_MEMORY`, `OutOfMemory` and UTF-16. A skeleton that holds none of the
words proves that the block does not either; one that does (`error` is `rrr`, as is `mirror or`) proves nothing, and the
block itself is searched with the exact pattern. Patterns begin with a literal, since `re` is quick only then.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Final

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
class Family:
    """Errors that share a word.

    Attributes:
        pattern: What to look for in the block, in lower case.
        strong: Whether it is about memory or the GPU, and not just any error.
    """

    pattern: re.Pattern[bytes]
    strong: bool = True


@dataclass(frozen=True, slots=True)
class Hit:
    """A place that may tell of an error.

    Attributes:
        offset: Where in the searched bytes.
        strong: As its family's.
    """

    offset: int
    strong: bool


_GAP: Final = rb"[\s_#>/*|-]"  # between words, where a terminal or a comment may have broken the line

# A figure of merit that is called an error, such as `val_error=0.31` or `errors: 0`, is none.
_NO_FIGURE: Final = rb"(?!s?[\"']?[ \t=:|(]{0,4}[-+]?(?:\d*\.\d|\d+(?:[,|\s]|$)(?<!137)(?<!137.)))"

# What stands before the word decides quickly that most errors are none of these.
_STRONG_ERROR: Final = rb"""error(?:(?<=[aelnprs]\ error)|(?<=[adeiprsy_]error))(?:
      (?<=cuda\ error) | (?<=hip\ error) | (?<=nccl\ error) | (?<=driver\ error) | (?<=runtime\ error) | (?<=bus\ error)
    | (?<=cudnn\ error) | (?<=triton\ error) | (?<=runtimeerror) | (?<=memoryerror) | (?<=backenderror)
    | (?<=exhaustederror) | (?<=acceleratorerror) | (?<=failederror) | (?<=result_error) | (?<=pi_error)
    | (?<=cuda_error) | (?<=status_error) | (?<=internal_error) | (?<=valueerror) | (?<=[^a-z_]oserror)
    | (?<=cudaapierror) | (?<=cudaerror) | (?<=cudadrivererror) | (?<=hiperror)
    )"""

_ALLOCATION: Final = rb"""alloc(?:
      at(?:
          e(?:
              (?<=to\ allocate) | (?<=not\ allocate) | (?<=n't\ allocate)
            | d\ memory(?<=of\ the\ allocated\ memory) | d(?<=already\ allocated)
            | [\s_-]{1,3}(?:fail|error|was|on\ device|of\ |\d)
            )
        | ion(?:
              (?<=memory\ allocation) | (?<=errormemoryallocation)
            | [\s_-]{1,3}(?:fail|error|was|on\ device|of\ |\d)
            )
        | or(?<=cpuallocator) | ing\ (?:tensor|\d)
        )
    | [\s_]{1,3}fail | (?<=bad.alloc) | (?<=\bcalloc)
    )"""

_EXIT_CODE: Final = (
    rb"exit(?:ed (?:with )?(?:exit )?(?:code |status )?|[ _]?(?:code|status)[\"']?[ \t]{0,8}[:=]?[ \t]{0,8}"
    rb"|s with return code = )"
    rb"(?:137|-9|-7|135)\b"
)

_CORE: Final = (
    (re.compile(b"fmmr"), (Family(re.compile(rb"out" + _GAP + rb"{0,3}of" + _GAP + rb"{0,12}memory")),)),
    (
        re.compile(b"rrr"),
        (Family(re.compile(_STRONG_ERROR, re.VERBOSE)), Family(re.compile(rb"error" + _NO_FIGURE), strong=False)),
    ),
    (re.compile(b"llc"), (Family(re.compile(_ALLOCATION, re.VERBOSE)),)),
    (
        re.compile(b"kll"),
        (Family(re.compile(rb"kill(?:(?<![a-z]kill)ed\b|(?<=oom.kill)|(?<=oomkill)|(?<=sigkill))")),),
    ),
    (
        re.compile(b"x(?:t|ct)"),
        (
            Family(re.compile(_EXIT_CODE)),
            Family(re.compile(rb"resource[ _]?exhausted")),
            Family(re.compile(rb"exception(?=[:\s(])"), strong=False),
        ),
    ),
    (re.compile(b"bckm"), (Family(re.compile(rb"traceback \(most recent call last"), strong=False),)),
    (
        re.compile(b"t(?:rlrt|frrc|tlcc|tflt)"),
        (Family(re.compile(rb"internal assert|out of resource|total capac|segmentation fault")),),
    ),
)
"""What is left of a word in a skeleton, and the families that have it."""

_ANY_WORD: Final = re.compile(b"|".join(word.pattern for word, _ in _CORE))

_RARE: Final = re.compile(
    rb"memory in use\.|already allocated|bytes free;|_status_[a-z]"
    rb"|valid cudnn algorithm|find an engine|invalid buffer size|int_max|32.?bit index|cache blocks"
    rb"|illegal memory access|device-side assert|invalid configuration argument|misaligned address|unhandled cuda"
    rb"|cuda failure|nvml_success|low on memory|gpu hang|memory access fault|no space left on device"
    rb"|core dumped|got signal|exceed allowed memory|ran out of|cufft_|signal 9|free memory"
    rb"|all available ram"
    # "Killed" in other languages, see `notices`.
    rb"|\xe5\xb7\xb2\xe6\x9d\x80\xe6\xad\xbb|\xe5\xb7\xb2\xe7\xa0\x8d\xe6\x8e\x89"
    rb"|\xe5\xbc\xb7\xe5\x88\xb6\xe7\xb5\x82\xe4\xba\x86|\xec\xa3\xbd\xec\x97\x88\xec\x9d\x8c"
    rb"|get\xc3\xb6tet|\xd0\xa3\xd0\xb1\xd0\xb8\xd1\x82\xd0\xbe"
)
"""What is rarely printed without a word of the core, and is looked for only where a crash ends up: at the ends."""


def may_hold(block: bytes) -> tuple[bytes, tuple[Family, ...]]:
    """Reduce a block to its skeleton and tell what it can hold; the skeleton still has every line end."""
    skeleton = block.translate(_LOWER, _DROPPED)
    words = skeleton
    if len(skeleton) > _MOSTLY_EMPTY * len(block):
        words = skeleton.translate(None, b"\n")
    return skeleton, tuple(family for word, families in _CORE if word.search(words) for family in families)


def lines_that_may_hold(lines: list[bytes]) -> set[bytes]:
    """Tell which of some lines can hold an error, as `may_hold` does of a block."""
    skeletons = b"\n".join(lines).translate(_LOWER, _DROPPED).split(b"\n")
    return {line for line, skeleton in zip(lines, skeletons, strict=True) if _ANY_WORD.search(skeleton)}


def find(
    block: bytes, families: tuple[Family, ...], *, at_an_end: bool, most_hits: Mapping[bool, int | None]
) -> list[Hit]:
    """Find what tells of an error in a block.

    Args:
        block: The bytes to search.
        families: What the block may hold, see `may_hold`.
        at_an_end: Whether this is near the beginning or the end of the text, where rare words are looked for too.
        most_hits: How many of each family to return, the first ones, for strong families and for the others; None for
            all.

    Returns:
        Hits in order, several of which may be in one line.
    """
    lower = block.lower()
    hits = [
        Hit(match.start(), family.strong)
        for family in families
        for match in islice(family.pattern.finditer(lower), most_hits[family.strong])
    ]
    if at_an_end:
        hits.extend(Hit(match.start(), strong=True) for match in islice(_RARE.finditer(lower), most_hits[True]))
    return sorted(hits, key=lambda hit: hit.offset)
