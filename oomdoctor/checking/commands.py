"""Whether the program of a command is there, said as it concerns an entry of a configuration."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from oomdoctor.errors import UsageError
from oomdoctor.probing.command.uses import found_program

if TYPE_CHECKING:
    from pathlib import Path

    from oomdoctor.probing.request import ProbeRequest


def check_program(request: ProbeRequest) -> None:
    """See that what a command starts with can be started; a file has nothing to see.

    Raises:
        UsageError: There is no such program.
    """
    if request.command is None or found_program(request.command, request.directory, os.environ) is not None:
        return
    raise UsageError(f"command not found: `{request.command[0]}`", hint=_hint(request.command[0], request.directory))


def _hint(program: str, folder: Path) -> str:
    if program.endswith(".py"):
        return f'a script is run by its interpreter: `command = ["python", "{program}", ...]`'
    if "/" in program:
        return f"the command runs in `{folder}`, the folder of the configuration file"
    return "install it, or activate the environment that has it"
