"""Template of a command: its words with placeholders where the sizes go."""

from __future__ import annotations

import ast
import difflib
import re
import shutil
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from oomdoctor.errors import OomdoctorError, UsageError
from oomdoctor.request import ACCUMULATION, MICRO_BATCH, command_line
from oomdoctor.target.literals import batch_size_literals, batch_size_variables, set_options

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from oomdoctor.target.literals import FoundLiteral


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes to fill in; the placeholders are called as the fields, and that of a searched size as it is called.

    Attributes:
        micro_batch: Samples in one forward and backward on one device.
        accumulation_steps: Micro-batches per optimizer step on one device.
        world_size: Devices that share the target batch.
        searched: Name and value of the size that is searched; None where that is the micro-batch.
    """

    micro_batch: int
    accumulation_steps: int
    world_size: int
    searched: tuple[str, int] | None = None

    @property
    def by_placeholder(self) -> dict[str, str]:
        """Texts of the sizes by placeholder."""
        numbers = {"micro_batch": self.micro_batch, "accumulation_steps": self.accumulation_steps}
        searched = () if self.searched is None else (self.searched,)
        named = {**numbers, "world_size": self.world_size, **dict(searched)}
        return {f"{{{name}}}": str(size) for name, size in named.items()}


REQUIRED: Final = MICRO_BATCH
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
    values = sizes.by_placeholder
    pattern = re.compile("|".join(map(re.escape, values)))
    return [pattern.sub(lambda match: values[match[0]], word) for word in command]


def fill_value(value: str, sizes: Sizes) -> str:
    """Return a literal with the sizes in it, as Python writes it.

    Args:
        value: As `oomdoctor.request` takes it.
        sizes: The sizes to fill in.
    """
    return repr(ast.literal_eval(fill_command([value], sizes)[0]))


def edits_of(literals: Iterable[FoundLiteral], sizes: Sizes) -> dict[str, list[tuple[int, int, int, int, str, str]]]:
    """Return the edits of a trial, by file, as `oomdoctor.agent.literals` takes them.

    Args:
        literals: Literals to set.
        sizes: The sizes to fill in.
    """
    edits: dict[str, list[tuple[int, int, int, int, str, str]]] = {}
    for each in literals:
        place, new = each.place, fill_value(each.override.value, sizes)
        edit = (place.line, place.column, place.end_line, place.end_column, place.text, new)
        edits.setdefault(str(each.path), []).append(edit)
    return edits


def accumulates(templates: Sequence[str]) -> bool:
    """Return whether a command is told its accumulation steps, by its words or by what is set in its files."""
    return any(ACCUMULATION in text for text in templates)


def check_command(
    command: Sequence[str],
    directory: Path,
    environment: Mapping[str, str],
    values: Sequence[str] = (),
    *,
    takes_literals: bool = True,
) -> None:
    """See that the command can be started and will be told its micro-batch.

    Args:
        command: Its words.
        directory: Its working directory.
        environment: Its environment, whose `PATH` is searched.
        values: Values that are set in its files.
        takes_literals: Whether there is a `--set` to hint at.

    Raises:
        UsageError: It has no `{micro_batch}`, or there is no such program.
    """
    if not any(REQUIRED in text for text in (*command, *values)):
        if not takes_literals:
            hint = (
                f"put `{REQUIRED}` where its batch size goes, as in `-- python train.py --batch-size {REQUIRED}`; "
                "where a file has it as a literal, let the script read it from its arguments first"
            )
            raise UsageError(f"the command `{command_line(command)}` has no `{REQUIRED}`", hint=hint)
        where = "" if not values else ", nor has what is set in its files"
        raise UsageError(
            f"the command `{command_line(command)}` has no `{REQUIRED}`{where}", hint=_missing_hint(command, directory)
        )
    program = command[0]
    path = str(directory / program) if "/" in program else program
    if shutil.which(path, path=environment.get("PATH")) is None:
        hint = f"the command comes after `--`, for example `-- python train.py --batch-size {REQUIRED}`"
        if program.endswith(".py"):
            option = "" if values else f" --batch-size {REQUIRED}"
            hint = f"a script is run by its interpreter, for example `-- python {program}{option}`"
        raise UsageError(f"command not found: `{program}`", hint=hint)


def _missing_hint(command: Sequence[str], directory: Path) -> str:
    """Return both ways to tell a command its size, with the literals of its own script that look like one."""
    near = [
        name
        for name in _words_in_braces(command)
        if name in _OTHER_NAMES or difflib.get_close_matches(name, [REQUIRED], cutoff=0.7)
    ]
    if near:
        return f"write `{REQUIRED}` instead of `{near[0]}`"
    hint = f"put `{REQUIRED}` where its batch size goes, as in `-- python train.py --batch-size {REQUIRED}`"
    script = script_of(command)
    places = [] if script is None else batch_size_literals(directory / script)
    variables = [] if script is None else batch_size_variables(directory / script)
    if variables:
        return f"`{script}` reads `{variables[0]}`: `-- env {variables[0]}={REQUIRED} {command_line(command)}`"
    if script is None or not places:
        return f"{hint}; where a file has it as a literal, add `--set 'train.py:BATCH={REQUIRED}'`"
    listed = ", ".join(f"`{place.name} = {place.text}` in line {place.line}" for place in places)
    options = "\n".join(f"    {option}" for option in set_options(script, places))
    return f"{hint}; or set a literal of `{script}`, which has {listed}:\n\n{options}"


def script_of(command: Sequence[str]) -> str | None:
    """Return the Python file that a command runs, relative to where it runs: `train.py`, or that of `-m train`."""
    modules = [f"{word.replace('.', '/')}.py" for before, word in pairwise(command) if before == "-m"]
    return next((word for word in (*command, *modules) if word.endswith(".py")), None)


def near_misses(command: Sequence[str]) -> dict[str, str]:
    """Words in braces that are no placeholder and nearly one, each with the one that it is near to."""
    near = {name: difflib.get_close_matches(name, PLACEHOLDERS, 1, cutoff=_NEAR) for name in _words_in_braces(command)}
    return {name: found[0] for name, found in near.items() if found}


def explained(problem: OomdoctorError, command: Sequence[str]) -> OomdoctorError:
    """Return what a command's first trial failed with, with a hint at words in braces that nothing fills in."""
    words = [word for word in _words_in_braces(command) if word in f"{problem.message}{problem.details}"]
    if words and problem.hint is None:
        problem.hint = f"nothing fills `{words[0]}`: add `--at {words[0][1:-1]}=SIZE`, or write the value itself"
    return problem


def _words_in_braces(command: Sequence[str]) -> list[str]:
    return [name for word in command for name in _LOOKS_LIKE_ONE.findall(word) if name not in PLACEHOLDERS]
