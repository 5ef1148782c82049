"""What an error message in a window says: what kind it is, whose memory ran out, and every number."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from oomdoctor.diagnosis.text.driver_warnings import exact_numbers
from oomdoctor.diagnosis.text.echoes import cause_of
from oomdoctor.diagnosis.text.errors import read_error

if TYPE_CHECKING:
    from oomdoctor.diagnosis.evidence import Message, Window


def read_message(window: Window) -> Message | None:
    """Read the error that a window was opened for.

    The error in the line `window.at` counts, unless it only passes on another one in the window that says that memory
    ran out. Nothing is guessed: a number that is not in the text is None. Never raises, whatever the text is.

    Returns:
        The error; None where the line only mentions memory, or an error that the program has dealt with.
    """
    if not 0 <= window.at < len(window.lines):
        return None
    message = read_error(window.lines, window.at)
    if message is None:
        return None
    message = cause_of(window.lines, message) or message
    return replace(message, facts=exact_numbers(window.lines, message))
