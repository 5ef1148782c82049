"""Functions that ask for the truth of a value, to check it or to decide by it; pytest rewrites no assertion here."""

# ruff: noqa: D103, PT018, SIM114 - what each does is its name; these forms are tested

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable

from oomdoctor.agent.checks import Checked, check_of

OTHER = object()
"""What a decision returns where the value is false."""


class Value:
    """Notes the check that asks for its truth, and passes it, as a boolean on a null GPU does."""

    def __init__(self) -> None:
        self.checks: list[Checked | None] = []

    def __bool__(self) -> bool:
        self.checks.append(check_of(sys._getframe(1)))
        check = self.checks[-1]
        return bool(check and check.passes)


def asserted(value: Value) -> None:
    assert value


def asserted_with_a_message(value: Value) -> None:
    assert value, f"no {value!r}"


def both_asserted(value: Value) -> None:
    assert value
    assert value


def asserted_together(value: Value) -> None:
    assert value and value, "both"


def all_asserted(value: Value) -> None:
    assert all(each for each in [value, value])


def called(value: Value) -> None:
    if not bool(value):
        raise ValueError


def kept_in_a_variable(value: Value) -> None:
    holds = bool(value)
    if not holds:
        message = "it does not hold"
        raise ValueError(message)


def returns(value: Value) -> bool:
    return bool(value)


def returned(value: Value) -> None:
    if not returns(value):
        raise ValueError


def in_a_loop(value: Value) -> None:
    for number in range(2):
        if number and not value:
            raise ValueError(number)


def ends_the_program(value: Value) -> None:
    if not value:
        for name in ("loss", "step"):
            print(name)
        sys.exit(1)


def in_a_loop_without_end(value: Value) -> None:
    number = 0
    while True:
        if not value:
            raise ValueError
        number += 1
        if number == 3:
            break


def in_a_loop_that_an_error_ends(value: Value) -> None:
    numbers = iter(range(3))
    with contextlib.suppress(StopIteration):
        while True:
            if not value:
                raise ValueError
            next(numbers)


def last_of_several(value: Value) -> None:
    if len(value.checks) > 9:
        pass
    elif value:
        pass
    else:
        raise ValueError


def refused(value: Value) -> None:
    if value:
        raise ValueError


def denied(value: Value) -> None:
    assert not value


def either_refused(value: Value) -> None:
    if value or bool(value):
        raise ValueError


def opposite(value: Value) -> bool:
    return not value


def opposite_returned(value: Value) -> None:
    assert opposite(value)


def compared(value: Value) -> None:
    if int(bool(value)) + 1 > 5:
        raise ValueError


def skips(value: Value) -> object:
    return None if value else OTHER


def chooses(value: Value) -> object:
    if value:
        return OTHER
    raise StopIteration


def waits(value: Value) -> object:
    while not value and len(value.checks) < 3:
        pass
    return OTHER


def keeps(value: Value) -> object:
    kept = [each for each in (value,) if each]
    return kept or OTHER


def goes_on_elsewhere(value: Value) -> object:
    for _ in range(1):
        if value:
            continue
        return OTHER
    return None


def catches(value: Value) -> object:
    return next((each for each in [value] if each), OTHER)


TRUE_PASSES: tuple[Callable[[Value], object], ...] = (
    asserted, asserted_with_a_message, both_asserted, asserted_together, all_asserted, called, kept_in_a_variable,
    returned, in_a_loop, ends_the_program, in_a_loop_without_end, in_a_loop_that_an_error_ends, last_of_several,
    chooses,
)  # fmt: skip
FALSE_PASSES: tuple[Callable[[Value], object], ...] = (refused, denied, either_refused, opposite_returned)
DECISIONS: tuple[Callable[[Value], object], ...] = (skips, waits, keeps, goes_on_elsewhere, catches)
