"""Sizes and fractions: what is read, what is refused and with which hint, and that what is printed can be read."""

from __future__ import annotations

import re
from fractions import Fraction
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oomdoctor.errors import UsageError
from oomdoctor.units import (
    GIB,
    KIB,
    LARGEST_SIZE,
    MIB,
    TIB,
    exact_size,
    format_signed_size,
    format_size,
    parse_fraction,
    parse_size,
)

if TYPE_CHECKING:
    from collections.abc import Callable

_near_misses = st.from_regex(r"[+-]?[0-9]{1,4}(\.[0-9]{0,3})?(e-?[0-9]{1,4})? ?(%|[kmgt]?(i?b)?)", fullmatch=True)
_anything_typed = st.text(max_size=80) | _near_misses


def _answer(parse: Callable[[str], float], text: str) -> float | UsageError:
    """What the parser says, be it a value or the one error that it may raise."""
    try:
        return parse(text)
    except UsageError as error:
        return error


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("24GiB", 24 * GIB),
        ("24 GiB", 24 * GIB),
        ("  24gib\n", 24 * GIB),
        ("24G", 24 * GIB),
        ("24g", 24 * GIB),
        ("+24G", 24 * GIB),
        ("24GB", 24 * 10**9),
        ("24 gb", 24 * 10**9),
        ("512MiB", 512 * MIB),
        ("512M", 512 * MIB),
        ("512MB", 512 * 10**6),
        ("3K", 3 * KIB),
        ("3kB", 3000),
        ("1.5T", 3 * TIB // 2),
        ("1TB", 10**12),
        ("23.64GiB", 25383256719),
        (".5GiB", GIB // 2),
        ("80e9B", 80 * 10**9),
        ("8E1GB", 80 * 10**9),
        ("1 byte", 1),
        ("25769803776 bytes", 24 * GIB),
        ("1024TiB", LARGEST_SIZE),
    ],
)
def test_a_size_is_read_to_the_byte(text: str, expected: int) -> None:
    """A number and a unit give exactly the bytes that they name; G is GiB and GB is a power of ten."""
    assert parse_size(text) == expected


@pytest.mark.parametrize(
    ("text", "problem", "hint"),
    [
        ("24", "`24` has no unit", "did you mean `24GiB`?"),
        ("23.5", "`23.5` has no unit", "did you mean `23.5GiB`?"),
        ("24564", "`24564` has no unit", "did you mean `24564MiB`?"),
        ("80e9", "`80e9` has no unit", "did you mean `80e9B`?"),
        ("25769803776", "`25769803776` has no unit", "did you mean `25769803776B`?"),
        ("-24GiB", "`-24GiB` is negative", "write a number and a unit"),
        ("-0GiB", "`-0GiB` is negative", "write a number and a unit"),
        ("0GiB", "`0GiB` is less than one byte", "write a number and a unit"),
        ("0", "`0` is less than one byte", "write a number and a unit"),
        ("0.4B", "`0.4B` is less than one byte", "write a number and a unit"),
        ("1e-999GiB", "`1e-999GiB` is less than one byte", "write a number and a unit"),
        ("24 gigs", "`24 gigs` has the unknown unit `gigs`", "write a number and a unit"),
        ("24PiB", "`24PiB` has the unknown unit `PiB`", "write a number and a unit"),
        ("1025TiB", "`1025TiB` is larger than the memory of any device", "write a number and a unit"),
        ("1e999B", "`1e999B` is larger than the memory of any device", "write a number and a unit"),
        ("nan", "`nan` is not a size", "write a number and a unit"),
        ("infGiB", "`infGiB` is not a size", "write a number and a unit"),
        ("24,5GiB", "`24,5GiB` is not a size", "write a number and a unit"),
        ("GiB", "`GiB` is not a size", "write a number and a unit"),
        ("", "`` is not a size", "write a number and a unit"),
        ("24GiB 3", "`24GiB 3` is not a size", "write a number and a unit"),
        ("٢٤GiB", "`٢٤GiB` is not a size", "write a number and a unit"),
        ("1e9999GiB", "`1e9999GiB` is not a size", "write a number and a unit"),
        ("9" * 99, f"`{'9' * 37}...` is not a size", "write a number and a unit"),
    ],
)
def test_what_is_no_size_is_refused_with_a_hint(text: str, problem: str, hint: str) -> None:
    """Each way to be wrong gets its own message, and a hint that can be typed."""
    with pytest.raises(UsageError, match=f"^{re.escape(problem)}$") as caught:
        parse_size(text)
    assert (caught.value.hint or "").startswith(hint)


def test_an_error_names_the_option_that_the_text_was_given_to() -> None:
    """Where the option is known, message and hint show it as it would be typed."""
    with pytest.raises(UsageError, match=r"^`--memory 24` has no unit$") as caught:
        parse_size("24", option="--memory")
    assert caught.value.hint == "did you mean `--memory 24GiB`?"


@given(_anything_typed)
def test_any_text_gives_a_size_or_a_usage_error(text: str) -> None:
    """Whatever is typed is a size within bounds or a usage error of one line, never another exception."""
    answer = _answer(parse_size, text)
    if isinstance(answer, UsageError):
        assert len(answer.message) < 120
        assert answer.message.isprintable()
        assert answer.hint
    else:
        assert 1 <= answer <= LARGEST_SIZE


@given(st.integers(min_value=1, max_value=LARGEST_SIZE))
def test_a_size_in_bytes_is_read_back_exactly(size: int) -> None:
    """No size between 1 byte and 1 PiB loses a byte."""
    assert parse_size(f"{size}B") == size


@given(st.integers(min_value=0, max_value=2**40), st.sampled_from([1, 2**10, 2**20, 2**30]))
def test_an_exact_size_is_read_back_exactly(count: int, unit: int) -> None:
    """A size as an option takes it loses no byte, and has the largest unit that does not."""
    size = min(count * unit, LARGEST_SIZE) or 1
    assert parse_size(exact_size(size)) == size
    assert exact_size(300 * 2**20) == "300MiB"


@given(st.integers(min_value=1, max_value=LARGEST_SIZE))
def test_a_printed_size_is_read_back_to_its_precision(size: int) -> None:
    """What is printed can be typed again, and is off by at most half of its last decimal."""
    printed = format_size(size)
    unit = {"GiB": GIB, "MiB": MIB, "KiB": KIB}.get(printed.split()[1], 0)
    # Reading rounds down to a whole byte, which adds less than one byte.
    assert abs(parse_size(printed) - size) <= Fraction(unit, 200) + (unit > 0)


@given(st.integers(min_value=1, max_value=LARGEST_SIZE))
def test_a_printed_size_is_as_short_as_pytorch_prints_it(size: int) -> None:
    """Below GiB the number is under 1024, and a unit is used from 1 on."""
    number, unit = format_size(size).split()
    assert float(number) >= 1
    assert unit == "GiB" or float(number) < 1024


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        (0, "0 bytes"),
        (1, "1 byte"),
        (512, "512 bytes"),
        (1023, "1023 bytes"),
        (1024, "1.00 KiB"),
        (1536, "1.50 KiB"),
        (MIB - 1, "1.00 MiB"),
        (MIB, "1.00 MiB"),
        (20 * MIB, "20.00 MiB"),
        (512 * MIB, "512.00 MiB"),
        (GIB - 1, "1.00 GiB"),
        (GIB - 6 * KIB, "1023.99 MiB"),
        (GIB, "1.00 GiB"),
        (25386352640, "23.64 GiB"),
        (24564 * MIB, "23.99 GiB"),
        (2 * TIB, "2048.00 GiB"),
        (-512 * MIB, "-512.00 MiB"),
        (-1, "-1 byte"),
    ],
)
def test_a_size_is_printed_as_people_know_it(size: int, expected: str) -> None:
    """Two decimals of KiB, MiB or GiB, and plain bytes below."""
    assert format_size(size) == expected


@pytest.mark.parametrize(
    ("size", "expected"), [(3 * GIB // 2, "+1.50 GiB"), (-3 * GIB // 2, "-1.50 GiB"), (0, "0 bytes")]
)
def test_a_difference_is_printed_with_its_sign(size: int, expected: str) -> None:
    """A gain carries a plus, a loss a minus, and nothing carries none."""
    assert format_signed_size(size) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("5%", 0.05),
        ("5 %", 0.05),
        (" 0.05 ", 0.05),
        ("0", 0.0),
        ("-0", 0.0),
        ("0%", 0.0),
        ("12.5%", 0.125),
        (".1", 0.1),
    ],
)
def test_a_fraction_is_read(text: str, expected: float) -> None:
    """A percentage and a plain fraction give the same number."""
    assert parse_fraction(text) == expected


@pytest.mark.parametrize(
    ("text", "problem", "hint"),
    [
        ("5", "`5` is not below 1", "did you mean `5%`?"),
        ("1", "`1` is not below 1", "did you mean `1%`?"),
        ("100", "`100` is the whole or more", "write a percentage below `100%`"),
        ("100%", "`100%` is the whole or more", "write a percentage below `100%`"),
        ("1e999", "`1e999` is the whole or more", "write a percentage below `100%`"),
        ("99.9999999999999999999999%", "`99.9999999999999999999999%` is the whole or more", "write a percentage"),
        ("-5%", "`-5%` is negative", "write a percentage such as `5%`"),
        ("nan", "`nan` is not a fraction", "write a percentage such as `5%`"),
        ("5GiB", "`5GiB` is not a fraction", "write a percentage such as `5%`"),
        ("1/20", "`1/20` is not a fraction", "write a percentage such as `5%`"),
    ],
)
def test_what_is_no_fraction_is_refused_with_a_hint(text: str, problem: str, hint: str) -> None:
    """A number that is meant as a percentage is answered with the percentage."""
    with pytest.raises(UsageError, match=f"^{re.escape(problem)}$") as caught:
        parse_fraction(text)
    assert (caught.value.hint or "").startswith(hint)


def test_a_fraction_error_names_its_option() -> None:
    """The hint of a percentage without its sign can be typed as it is."""
    with pytest.raises(UsageError, match=r"^`--headroom 5` is not below 1$") as caught:
        parse_fraction("5", option="--headroom")
    assert caught.value.hint == "did you mean `--headroom 5%`?"


@given(st.floats(min_value=0, max_value=1, exclude_max=True))
def test_every_float_below_one_is_read_back_exactly(value: float) -> None:
    """What Python prints of a fraction is read as the same fraction."""
    assert parse_fraction(repr(value)) == value


@given(_anything_typed)
def test_any_text_gives_a_fraction_or_a_usage_error(text: str) -> None:
    """Whatever is typed is in [0, 1) or a usage error with a hint."""
    answer = _answer(parse_fraction, text)
    if isinstance(answer, UsageError):
        assert answer.hint
    else:
        assert 0 <= answer < 1
