"""Sizes as error messages print them: a decimal and a unit in, whole bytes out."""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Final

NUMBER: Final = r"\d{1,24}(?:\.\d{1,24})?"
"""A decimal; bounded, so that no text can ask for a number that takes long to compute."""

UNIT: Final = r"(?:bytes?|b|[kmgt]i?b)"
"""A unit, in lower case."""

SIZE: Final = rf"(?<!\d){NUMBER}{UNIT}"
"""A size in a text without spaces and in lower case; it never begins inside a longer number."""

UNKNOWN: Final = 1 << 63
"""From here on a number stands for "not known": drivers print 2**64 - 1, which is 17179869184.00 GiB."""

_SIZE: Final = re.compile(rf"({NUMBER})({UNIT})")
_POWERS: Final = {"b": 0, "k": 1, "m": 2, "g": 3, "t": 4}


def read_size(text: str) -> int | None:
    """Read the first size in a text without spaces, such as `23.64gib` or `0bytes`.

    Every unit is a power of 1024: PyTorch's builds that print `GB` for Apple GPUs, and Paddle, divide by 1024 as well.

    Returns:
        Bytes, rounded to the nearest; None where there is no size, or one that stands for "not known".
    """
    match = _SIZE.search(text)
    if match is None:
        return None
    return in_bytes(match[1], match[2])


def in_bytes(number: str, unit: str = "bytes") -> int | None:
    """Convert a printed number, exactly; None where it stands for "not known"."""
    value = round(Fraction(number) * 1024 ** _POWERS[unit[0]])
    return value if value < UNKNOWN else None
