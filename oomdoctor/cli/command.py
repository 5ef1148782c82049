"""A command as the target of `oomdoctor probe`: all words, where there is more than one or a placeholder in it."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

from oomdoctor.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence


def as_command(words: Sequence[str]) -> tuple[str, ...] | None:
    """The command that was given; None where the one word names a file.

    Raises:
        UsageError: A file stands before a command.
    """
    if len(words) == 1 and "{micro_batch}" not in words[0]:
        return None
    if words[0].endswith(".py") and shutil.which(words[0]) is None and shutil.which(words[1]) is not None:
        raise UsageError(
            f"a file, `{words[0]}`, and a command, `{words[1]} ...`, are both given", hint="probe one at a time"
        )
    return tuple(words)


def check_options(
    command: Sequence[str] | None, *, precision: str | None, optimizer: str | None, steps: int | None, fresh: bool
) -> None:
    """See that each option goes with what is probed.

    Raises:
        UsageError: One does not.
    """
    if command is None:
        given = {"--steps": steps is not None, "--fresh": fresh}
        why, hint = "is for commands, and a file is probed", "a trial of a file takes two optimizer steps"
    else:
        given = {"--precision": precision is not None, "--optimizer": optimizer is not None}
        why, hint = "is for files, and a command is probed", "give the command the option of its own that says so"
    for option, is_given in given.items():
        if is_given:
            raise UsageError(f"`{option}` {why}", hint=f"drop it; {hint}")
