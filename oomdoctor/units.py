"""Sizes and shares, read and written.

`G` and `GiB` are both 1024**3, since whoever types `24G` means what nvidia-smi and PyTorch print; `GB` is 10**9, as
vendors print it on the box. Arithmetic is exact until the last step, so that a size never depends on a float.
"""

from __future__ import annotations

import operator
import re
from fractions import Fraction
from typing import Final

from oomdoctor.errors import UsageError

KIB: Final = 1024
MIB: Final = 1024**2
GIB: Final = 1024**3
TIB: Final = 1024**4

LARGEST_NUMBER: Final = 10**12 - 1
"""Largest number of samples, tokens or elements that can be asked about; no dimension of a tensor is near it."""
LARGEST_MICRO_BATCH: Final = 1 << 20
"""Largest micro-batch that is tried where no target batch bounds it; a batch of that size would hardly fit the host."""
LARGEST_SIZE: Final = 1024**5  # 1 PiB; no device that a process can address is near it

_UNITS: Final = {
    "b": 1,
    "byte": 1,
    "bytes": 1,
    **{f"{prefix}{suffix}": 1024**power for power, prefix in enumerate("kmgt", start=1) for suffix in ("", "ib")},
    **{f"{prefix}b": 1000**power for power, prefix in enumerate("kmgt", start=1)},
}

# Bounded, so that no text on a command line can ask for a number that takes long to compute.
_NUMBER: Final = r"(?:[0-9]{1,30}(?:\.[0-9]{0,30})?|\.[0-9]{1,30})(?:e[+-]?[0-9]{1,3})?"
_SIZE: Final = re.compile(rf"(?P<sign>[+-]?)(?P<number>{_NUMBER})\s*(?P<unit>[^\W\d_]*)", re.IGNORECASE)
_FRACTION: Final = re.compile(rf"(?P<sign>[+-]?)(?P<number>{_NUMBER})\s*(?P<percent>%?)", re.IGNORECASE)

_SIZE_HINT: Final = "write a number and a unit, such as `24GiB`, `512MiB` or `25.2GB` (`G` is `GiB`, 1024-based)"
_FRACTION_HINT: Final = "write a percentage such as `5%`, or a fraction such as `0.05`"


def whole_number(name: str, value: object) -> int:
    """Read a number that a program gave: an integer, NumPy's included; `256.0` and `"256"` are mistakes elsewhere.

    Args:
        name: What it was given as, to be named in an error.
        value: What was given.

    Raises:
        UsageError: It is no integer, or a truth value.
    """
    try:
        if not isinstance(value, bool):
            return operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        pass
    raise UsageError(f"`{name}` is `{value!r}`, which is no whole number", hint="give an integer")


def positive_number(name: str, value: object, most: int = LARGEST_NUMBER) -> int:
    """Read a number of samples, tokens or elements that a program gave.

    Args:
        name: What it was given as, to be named in an error.
        value: What was given.
        most: The largest number that is tried.

    Raises:
        UsageError: It is no integer, below 1, or above the largest.
    """
    number = whole_number(name, value)
    if number < 1:
        raise UsageError(f"`{name}` is {number}", hint="give a number of 1 or more")
    if number > most:
        raise UsageError(f"`{name}` is {number}, and nothing above {most:,} is tried", hint="give a smaller number")
    return number


def parse_size(text: str, *, option: str | None = None) -> int:
    """Read a size such as `24GiB`, `24 GB`, `1.5g`, `512MiB` or `80e9B`.

    Args:
        text: A number and a unit, in any case: `B`, `KB`, `MB`, `GB`, `TB` (powers of 1000) or `K`, `KiB`, `M`, `MiB`,
            `G`, `GiB`, `T`, `TiB` (powers of 1024).
        option: The option that the text was given to, such as `--memory`, to be named in an error.

    Returns:
        Bytes, at least 1, rounded down to a whole byte.

    Raises:
        UsageError: There is no number, no unit or an unknown one, or the size is negative, zero or beyond 1 PiB.
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise _refusal(text, option, "is not a size", _SIZE_HINT)
    if match["sign"] == "-":
        raise _refusal(text, option, "is negative", _SIZE_HINT)
    if Fraction(match["number"]) == 0:
        raise _refusal(text, option, "is less than one byte", _SIZE_HINT)
    if not match["unit"]:
        raise _refusal(
            text, option, "has no unit", f"did you mean {_quote(_with_likely_unit(match['number']), option)}?"
        )
    if match["unit"].lower() not in _UNITS:
        raise _refusal(text, option, f"has the unknown unit `{match['unit']}`", _SIZE_HINT)
    size = int(Fraction(match["number"]) * _UNITS[match["unit"].lower()])
    if size == 0:
        raise _refusal(text, option, "is less than one byte", _SIZE_HINT)
    if size > LARGEST_SIZE:
        raise _refusal(text, option, "is larger than the memory of any device", _SIZE_HINT)
    return size


def parse_fraction(text: str, *, option: str | None = None) -> float:
    """Read a part of a whole such as `5%` or `0.05`.

    Args:
        text: A percentage with its sign, or a number in [0, 1).
        option: The option that the text was given to, such as `--headroom`, to be named in an error.

    Returns:
        A number in [0, 1).

    Raises:
        UsageError: It is not a number, is negative, or is the whole or more.
    """
    match = _FRACTION.fullmatch(text.strip())
    if match is None:
        raise _refusal(text, option, "is not a fraction", _FRACTION_HINT)
    number = Fraction(match["number"])
    if match["sign"] == "-" and number:
        raise _refusal(text, option, "is negative", _FRACTION_HINT)
    value = _nearest_float(number / 100 if match["percent"] else number)
    if value < 1:
        return value
    if not match["percent"] and number < 100:  # noqa: PLR2004 - below 100 it can be meant as a percentage
        raise _refusal(text, option, "is not below 1", f"did you mean {_quote(match['number'] + '%', option)}?")
    raise _refusal(text, option, "is the whole or more", "write a percentage below `100%`")


def format_size(size_bytes: int) -> str:
    """Print bytes as PyTorch does: `23.64 GiB`, `512.00 MiB`, `1.50 KiB`, `512 bytes`.

    GiB is the largest unit, as in PyTorch's messages, so that two figures can be compared at a glance. Unlike there,
    exactly 1 GiB is `1.00 GiB` and not `1024.00 MiB`.
    """
    sign, magnitude = ("-", -size_bytes) if size_bytes < 0 else ("", size_bytes)
    if magnitude < KIB:
        return f"{sign}{magnitude} {'byte' if magnitude == 1 else 'bytes'}"
    for unit_bytes, unit in ((KIB, "KiB"), (MIB, "MiB")):
        if (hundredths := _hundredths(magnitude, unit_bytes)) < 100 * KIB:
            return f"{sign}{hundredths // 100}.{hundredths % 100:02} {unit}"
    hundredths = _hundredths(magnitude, GIB)
    return f"{sign}{hundredths // 100}.{hundredths % 100:02} GiB"


def exact_size(size_bytes: int) -> str:
    """Write a size as an option takes it, without rounding, such as `300MiB` or `8589934593B`."""
    for unit, unit_bytes in (("GiB", GIB), ("MiB", MIB), ("KiB", KIB)):
        if size_bytes and size_bytes % unit_bytes == 0:
            return f"{size_bytes // unit_bytes}{unit}"
    return f"{size_bytes}B"


def format_signed_size(size_bytes: int) -> str:
    """Print a difference in bytes with its sign, such as `+1.20 GiB`; no difference is `0 bytes`."""
    return f"+{format_size(size_bytes)}" if size_bytes > 0 else format_size(size_bytes)


def _hundredths(size_bytes: int, unit_bytes: int) -> int:
    """Return hundredths of a unit, rounded to the nearest, without a float in between."""
    return (200 * size_bytes + unit_bytes) // (2 * unit_bytes)


def _with_likely_unit(number: str) -> str:
    """Add the unit that a bare number most likely lacks: `24` is GiB, `24564` is nvidia-smi's MiB, more is bytes."""
    value = Fraction(number)
    unit = "GiB" if value < KIB else "MiB" if value < MIB else "B"
    return f"{number}{unit}"


def _nearest_float(value: Fraction) -> float:
    """Convert where a float can hold it; what is beyond all floats is infinite."""
    try:
        return float(value)
    except OverflowError:
        return float("inf")


def _quote(text: str, option: str | None) -> str:
    return f"`{text}`" if option is None else f"`{option} {text}`"


def _refusal(text: str, option: str | None, problem: str, hint: str) -> UsageError:
    shown = "".join(character if character.isprintable() else " " for character in text.strip())
    shown = shown if len(shown) <= 40 else f"{shown[:37]}..."  # noqa: PLR2004 - one line of a terminal
    return UsageError(f"{_quote(shown, option)} {problem}", hint=hint)
