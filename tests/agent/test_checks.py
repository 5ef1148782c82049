"""Which truth passes a check of a program, read from the bytecode of the function that asks."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from checking_programs import DECISIONS, FALSE_PASSES, OTHER, TRUE_PASSES, Value, compared

from oomdoctor.agent.checks import Checked


@pytest.mark.parametrize("check", TRUE_PASSES)
def test_a_check_passes_if_the_value_is_true(check: Callable[[Value], object]) -> None:
    """Conditions of which only the other side goes on get the answer that passes, however they are written."""
    value = Value()

    check(value)

    assert {each and each.passes for each in value.checks} == {True}


@pytest.mark.parametrize("check", FALSE_PASSES)
def test_a_check_passes_if_the_value_is_false(check: Callable[[Value], object]) -> None:
    """Where the error is for a value that is true, false passes."""
    value = Value()

    check(value)

    assert {each and each.passes for each in value.checks} == {False}


def test_a_value_that_is_compared_is_a_checks_without_an_answer() -> None:
    """What a check makes of a value before it asks is not known, and the value is a check's all the same."""
    value = Value()

    compared(value)

    assert value.checks == [Checked(None)]


@pytest.mark.parametrize("decide", DECISIONS)
def test_a_decision_is_no_check(decide: Callable[[Value], object]) -> None:
    """Where both sides go on, a value decides where the program goes, and gets no answer that nobody knows."""
    value = Value()

    assert decide(value) is OTHER
    assert set(value.checks) == {None}
