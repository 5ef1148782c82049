"""Numbers in error messages: sizes in bytes, figures of each framework, and facts derived from them.

All is read in lower case and without white space.
"""

from __future__ import annotations

import re
from fractions import Fraction
from functools import cache
from math import prod
from typing import TYPE_CHECKING, Final

from oomdoctor.agent.oom_errors import table
from oomdoctor.results import Facts, ProcessMemory

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


NUMBER: Final = r"\d{1,24}(?:\.\d{0,24})?"
"""A decimal, also as numpy prints `168. GiB`; bounded, so that no text asks for a number that takes long to compute."""

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


_COUNT: Final = r"(?<!\d)\d{1,24}"
_COMMAS: Final = r"(?<!\d)\d{1,3}(?:,?\d{3}){0,8}"
_SHORT: Final = rf"(?<!\d){NUMBER}(?:bytes?|b|[kmgt]i?b?)"  # XLA also prints `9.60G`

_FORMS: Final = {"{SIZE}": SIZE, "{SHORT}": _SHORT, "{COUNT}": _COUNT, "{COMMAS}": _COMMAS, "{NUMBER}": NUMBER}
"""Expressions that the table's rows name."""

_FORM: Final = re.compile(r"\{[A-Z]+\}")

_TENSOR: Final = re.compile(
    r"oomwhenallocatingtensorwithshape(?:shape)?\[(?P<shape>\d{1,12}(?:,\d{1,12}){0,15})\]"
    r"(?:andtype(?P<type>(?:complex|bfloat|float|q?u?int)\d{0,3}|half|double|bool)(?=on|$))?"
)
_ARRAY: Final = re.compile(
    r"arraywith(?:shape|form)\((?P<shape>\d{1,12}(?:,\d{1,12}){0,15}),?\)anddatatype"
    r"(?P<type>(?:complex|float|u?int)\d{1,3}|bool)"
)
_ON_GPU: Final = re.compile(r"device:(?:gpu|xla_gpu):(\d{1,4})")
_TYPES: Final = {"float": 4, "half": 2, "double": 8, "bool": 1, "int": 4}
_BITS: Final = re.compile(r"(complex|bfloat|float|q?u?int)(\d{1,3})")


def read_numbers(kind: str, text: str) -> dict[str, int | None]:
    """Read the numbers of one message.

    Args:
        kind: The message's kind.
        text: The message in lower case without white space.

    Returns:
        Numbers by the name of their field in `Facts`.
    """
    numbers = _read_tensor(text)
    for pattern in _patterns(kind):
        match = pattern.search(text)
        if match is None:
            continue
        for name, value in match.groupdict().items():
            if name == "free_total":
                free, _, total = value.removesuffix("gib").partition("/")
                numbers |= {"free_bytes": in_bytes(free, "gib"), "total_bytes": in_bytes(total, "gib")}
            else:
                numbers.setdefault(name, _number(name, value))
    array = _ARRAY.search(text)
    if array is not None and "tried_bytes" not in numbers:  # numpy before 1.18 printed no size
        numbers["tried_bytes"] = _shape_bytes(array["shape"], array["type"])
    return numbers


@cache
def _patterns(kind: str) -> tuple[re.Pattern[str], ...]:
    row = table().named(kind)
    filled = () if row is None else (_FORM.sub(lambda name: _FORMS[name[0]], pattern) for pattern in row.numbers)
    return tuple(map(re.compile, filled))


def _number(name: str, text: str) -> int | None:
    if name == "gpu_index":
        return int(text)
    digits = text.replace(",", "")
    if digits.isdigit():
        return in_bytes(digits)
    return read_size(digits if digits.endswith(("b", "byte", "bytes")) else f"{digits}b")


def _read_tensor(text: str) -> dict[str, int | None]:
    """TensorFlow prints the tensor's shape and type, and where it was to be."""
    match = _TENSOR.search(text)
    if match is None:
        return {}
    numbers = {"tried_bytes": _shape_bytes(match["shape"], match["type"] or "")}
    place = _ON_GPU.search(text, match.end())
    if place is not None:
        numbers["gpu_index"] = int(place[1])
    return numbers


def _shape_bytes(shape: str, name: str) -> int | None:
    """Return the bytes of a tensor; None for a type that is not known, or a size that none can have."""
    bits = _BITS.fullmatch(name)
    size = _TYPES.get(name) or (None if bits is None or int(bits[2]) % 8 else int(bits[2]) // 8)
    if size is None:
        return None
    total = prod(int(side) for side in shape.split(",")) * size
    return in_bytes(str(total)) if total < 10**24 else None


def facts_from(
    printed: Mapping[str, int | None], processes: Sequence[ProcessMemory] = (), *, has_own_process: bool = False
) -> Facts:
    """Build facts.

    Args:
        printed: Numbers by the name of their field; what is missing or None is not known.
        processes: Processes that the message lists by number.
        has_own_process: Whether the message has the sentence about its own process.
    """
    allocated = printed.get("allocated_bytes")
    reserved, unallocated = _reserved(printed)
    process = printed.get("process_bytes")
    return Facts(
        gpu_index=printed.get("gpu_index"),
        tried_bytes=printed.get("tried_bytes"),
        total_bytes=printed.get("total_bytes"),
        free_bytes=printed.get("free_bytes"),
        allocated_bytes=allocated,
        reserved_bytes=reserved,
        reserved_unallocated_bytes=unallocated,
        process_bytes=process,
        non_pytorch_bytes=None if process is None or reserved is None else max(0, process - reserved),
        allowed_bytes=printed.get("allowed_bytes"),
        private_pool_bytes=printed.get("private_pool_bytes"),
        mps_other_bytes=printed.get("mps_other_bytes"),
        mps_max_bytes=printed.get("mps_max_bytes"),
        other_processes=tuple(processes),
        own_pid=None if has_own_process else _own_pid(processes, allocated, unallocated),
    )


def _reserved(printed: Mapping[str, int | None]) -> tuple[int | None, int | None]:
    """Reserved, and reserved but unallocated; versions of PyTorch print the one or the other."""
    allocated = printed.get("allocated_bytes")
    reserved = printed.get("reserved_bytes")
    unallocated = printed.get("reserved_unallocated_bytes")
    if reserved is None and allocated is not None and unallocated is not None:
        reserved = allocated + unallocated
    elif unallocated is None and allocated is not None and reserved is not None:
        unallocated = max(0, reserved - allocated)
    return reserved, unallocated


def _own_pid(processes: Sequence[ProcessMemory], allocated: int | None, unallocated: int | None) -> int | None:
    """Return the id of the process that prints.

    In a container the driver's numbers are the host's, so that PyTorch does not find itself in the list. Only the
    process that allocated can hold that much, as long as there is one such process.
    """
    if allocated is None or unallocated is None:
        return None
    large = [
        process.pid
        for process in processes
        if process.used_bytes is not None and process.used_bytes >= allocated + unallocated
    ]
    return large[0] if len(large) == 1 else None
