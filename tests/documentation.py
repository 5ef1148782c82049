"""The README and the pages of the site, and what their commands print; each command runs once for the suite."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path

import outputs
import pytest
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


def answer(command: outputs.Command, folder: Path, factory: pytest.TempPathFactory) -> Answer:
    """Run a command in the reader's folder, or take the answer of another test that ran the same one.

    A command that writes a file runs each time, as those after it may read the file.
    """
    if {"-o", "--update"} & {*command.words} or command.words[0] in ("check", "report"):
        return _run(command, folder)
    key = hashlib.sha256(command.line.encode()).hexdigest()[:16]
    text = shared(directory_of(factory) / f"command-{key}.json", lambda: json.dumps(asdict(_run(command, folder))))
    return Answer(**json.loads(text))


def _run(command: outputs.Command, folder: Path) -> Answer:
    ended = outputs.run(command, folder)
    return Answer(ended.returncode, outputs.printed(command, ended, folder), ended.stderr)
