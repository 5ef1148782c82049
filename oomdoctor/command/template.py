"""Template of a command: its words with placeholders where the sizes go."""

from __future__ import annotations

import difflib
import re
import shutil
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Final

from oomdoctor.errors import UsageError
from oomdoctor.request import command_line

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes to fill in; the placeholders are called as the fields.

    Attributes:
        micro_batch: Samples in one forward and backward on one device.
        accumulation_steps: Micro-batches per optimizer step on one device.
        world_size: Devices that share the target batch.
    """

    micro_batch: int
    accumulation_steps: int
    world_size: int


REQUIRED: Final = "{micro_batch}"
ACCUMULATION: Final = "{accumulation_steps}"
PLACEHOLDERS: Final = (REQUIRED, ACCUMULATION, "{world_size}")

_LOOKS_LIKE_ONE: Final = re.compile(r"\{\w+\}")
_NEAR: Final = 0.85
_OTHER_NAMES: Final = ("{batch_size}", "{batch}", "{bs}", "{n}")


def fill_command(command: Sequence[str], sizes: Sizes) -> list[str]:
    """The command with the sizes in it; all that is no placeholder stays as it is, other braces included.

    Args:
        command: Its words; no shell takes them apart.
        sizes: The sizes to fill in.
    """
    values = {f"{{{name}}}": str(value) for name, value in asdict(sizes).items()}
    pattern = re.compile("|".join(map(re.escape, values)))
    return [pattern.sub(lambda match: values[match[0]], word) for word in command]


def accumulates(command: Sequence[str]) -> bool:
    """Return whether the command is told its accumulation steps."""
    return any(ACCUMULATION in word for word in command)


def check_command(command: Sequence[str], directory: Path, environment: Mapping[str, str]) -> None:
    """See that the command can be started and will be told its micro-batch.

    Args:
        command: Its words.
        directory: Its working directory.
        environment: Its environment, whose `PATH` is searched.

    Raises:
        UsageError: It has no `{micro_batch}`, or there is no such program.
    """
    if not any(REQUIRED in word for word in command):
        seen = _words_in_braces(command)
        near = [
            name for name in seen if name in _OTHER_NAMES or difflib.get_close_matches(name, [REQUIRED], cutoff=0.7)
        ]
        hint = f"put `{REQUIRED}` where its batch size goes, as in `-- python train.py --batch-size {REQUIRED}`"
        hint = f"write `{REQUIRED}` instead of `{near[0]}`" if near else hint
        raise UsageError(f"the command `{command_line(command)}` has no `{REQUIRED}`", hint=hint)
    program = command[0]
    path = str(directory / program) if "/" in program else program
    if shutil.which(path, path=environment.get("PATH")) is None:
        hint = f"the command comes after `--`, for example `-- python train.py --batch-size {REQUIRED}`"
        if program.endswith(".py"):
            hint = f"a script is run by its interpreter, for example `-- python {program} --batch-size {REQUIRED}`"
        raise UsageError(f"command not found: `{program}`", hint=hint)


def near_misses(command: Sequence[str]) -> dict[str, str]:
    """Words in braces that are no placeholder and nearly one, each with the one that it is near to."""
    near = {name: difflib.get_close_matches(name, PLACEHOLDERS, 1, cutoff=_NEAR) for name in _words_in_braces(command)}
    return {name: found[0] for name, found in near.items() if found}


def _words_in_braces(command: Sequence[str]) -> list[str]:
    return [name for word in command for name in _LOOKS_LIKE_ONE.findall(word) if name not in PLACEHOLDERS]
