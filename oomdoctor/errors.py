"""Exit codes and the errors that people see.

OomdoctorError
    ├── UsageError        exit 2   the command line or a configuration
    │   └── RanksNeededError       a file parallelises its model, and no rank of its world was named
    ├── TargetError       exit 2   the user's file: not found, not importable, not the contract
    │   ├── NotApplicableError     a remedy has nothing to change in it
    │   └── MissingNameError       its code needs a module or a name that is not there
    └── NoAnswerError     exit 3   nothing is wrong with the question, but no answer could be had
        └── MemoryGrowsError       a step keeps memory, so that one trace does not tell the next

Library code raises these and never exits; `oomdoctor.cli.main` alone catches them, prints the message and the hint to
stderr and returns the exit code. Anything else that reaches it is a bug in oomdoctor (exit 70).
"""

from __future__ import annotations

from typing import ClassVar

EXIT_OK = 0
EXIT_GATE = 1
EXIT_USAGE = 2
EXIT_NO_ANSWER = 3
EXIT_BUG = 70
EXIT_INTERRUPTED = 130


class OomdoctorError(Exception):
    """An error whose text is written for the person at the terminal.

    Args:
        message: What was wrong and where, without a trailing period.
        hint: What to do about it; may hold several lines.
        details: Material to show between the two as it is, such as a traceback of the user's code.
    """

    exit_code: ClassVar[int] = EXIT_BUG

    def __init__(self, message: str, *, hint: str | None = None, details: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.details = details


class UsageError(OomdoctorError):
    """The command line or a configuration asks for something that cannot be."""

    exit_code = EXIT_USAGE


class RanksNeededError(UsageError):
    """A file parallelises its model for a world, and no rank of it was named; `oomdoctor probe` names them itself."""


class TargetError(OomdoctorError):
    """The user's file cannot be found, cannot be imported or does not fit the contract."""

    exit_code = EXIT_USAGE


class NotApplicableError(TargetError):
    """A remedy has nothing to change in the target; the message says why."""


class MissingNameError(TargetError):
    """The user's code needs a module or a name that is not there, whatever a GPU computes."""


class NoAnswerError(OomdoctorError):
    """The question was sound, but no answer could be had: no GPU, a lost device, a time limit."""

    exit_code = EXIT_NO_ANSWER

    @classmethod
    def of_text(cls, text: str) -> NoAnswerError:
        """Return the error of a text of one line that says what to do after its first semicolon."""
        message, _, hint = text.partition("; ")
        return cls(message, hint=hint or None)


class MemoryGrowsError(NoAnswerError):
    """A step keeps memory, so that a trace of two does not tell those that follow."""


KINDS = (
    OomdoctorError,
    UsageError,
    RanksNeededError,
    TargetError,
    NotApplicableError,
    NoAnswerError,
    MemoryGrowsError,
)
"""Every class here, as errors travel between processes by their names."""
