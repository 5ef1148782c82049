"""Guard: a failure of the agent is noted and never reaches the program."""

# ruff: noqa: ANN401 - torch and what programs hand over have no type here

from __future__ import annotations

import functools

TYPE_CHECKING = False  # type checkers know the name; `typing` takes longer to import than all of this

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


FAILURES: list[str] = []
"""Failures of the agent, to be told in the report; the first few, since one may fail at every step."""

_MOST_FAILURES = 20
_LONGEST = 500


def guarded(function: Callable[..., Any]) -> Callable[..., Any]:
    """Make a function that returns None where `function` fails.

    An interrupt passes: Ctrl-C is the program's, wherever it is noticed.
    """

    @functools.wraps(function)
    def call(*arguments: Any, **named: Any) -> Any:
        try:
            return function(*arguments, **named)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is ours and not the program's
            note_failure(function.__name__, error)
            return None

    return call


def note_failure(where: str, error: BaseException) -> None:
    """Keep what failed, in one line."""
    if len(FAILURES) >= _MOST_FAILURES:
        return
    try:
        FAILURES.append(f"{where}: {type(error).__name__}: {error}"[:_LONGEST])
    except Exception:  # noqa: BLE001 - an error may fail to print
        FAILURES.append(f"{where}: an error that cannot be printed")
