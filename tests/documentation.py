"""The README and the pages of the site, and what their commands print; each command runs once for the suite."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path

import outputs
import pytest
from running import run_here
from sharing import directory_of, shared

PAGES = outputs.pages()
"""Text of each page by its path in the repository."""

TEXT = "\n".join(PAGES.values())
PROSE = " ".join(TEXT.split())
FILES = {name: text for page in PAGES.values() for name, text in outputs.files(page).items()}
"""Text of the files that the pages show, by name."""

BLOCKS = {path: list(outputs.commands(text)) for path, text in PAGES.items()}
COMMANDS = [command for blocks in BLOCKS.values() for block in blocks for command in block]


def page(name: str) -> str:
    """Return the text of a page by its path below `docs`."""
    return PAGES[f"docs/{name}"]


@dataclass(frozen=True, slots=True)
class Answer:
    """What a command of a page printed.

    Attributes:
        exit_code: With which it ended.
        printed: What a reader is shown.
        stderr: All that it wrote there.
    """

    exit_code: int
    printed: str
    stderr: str


def answers(path: str, folder: Path, factory: pytest.TempPathFactory) -> Iterator[tuple[outputs.Command, Answer]]:
    """Yield the commands of a page and what each prints in the reader's folder.

    What another test ran already is not run again, unless it writes what a later command of the page reads, or reads
    what an earlier one wrote.
    """
    commands = [command for block in BLOCKS[path] for command in block]
    written = [{word for before, word in pairwise(command.words) if before == "-o"} for command in commands]
    for number, command in enumerate(commands):
        earlier = set().union(*written[:number])
        later = {word for each in commands[number + 1 :] for word in each.words}
        depends = command.words[0] == "check" or earlier & {*command.words} or written[number] & later
        yield command, _run(command, folder) if depends else _shared(command, folder, factory)


def _shared(command: outputs.Command, folder: Path, factory: pytest.TempPathFactory) -> Answer:
    key = hashlib.sha256(command.line.encode()).hexdigest()[:16]
    text = shared(directory_of(factory) / f"command-{key}.json", lambda: json.dumps(asdict(_run(command, folder))))
    return Answer(**json.loads(text))


def _run(command: outputs.Command, folder: Path) -> Answer:
    """Run a command here, where workers may be forked; what starts a program of the reader's is a process too."""
    if command.words[0] == "run" or "--" in command.words:
        ended = outputs.run(command, folder)
    else:
        ended = run_here(outputs.arguments(command), folder, **outputs.environment())
    return Answer(ended.returncode, outputs.printed(command, ended, folder), ended.stderr)
