"""Run the commands that the documentation shows, and compare or write what they print.

A block ```console holds commands, each after `$ `. A command whose exit code is not 0 says so: `# exit code 1`. Lines
below a command are its output, to the end of the block or the next command; a last line `...` says that more follows.

Usage: python docs/outputs.py [PAGE...]    run the pages' commands again, and write the new outputs into them
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROOT = Path(__file__).parents[1]
MORE = "..."
"""The line below an output of which only the beginning is shown."""

_BLOCK = re.compile(r"(?<=^```console\n)(.*?)(?=^```$)", re.DOTALL | re.MULTILINE)
_FILE = re.compile(r"^```(?:python|text|toml|yaml)\n# ([\w./-]+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_EXIT_CODE = re.compile(r"\s+# exit code (\d+)$")
VARYING = re.compile(r"\d+\.\d+ s\b|\b\d+\.\d\d\s*$|oomdoctor \d.*")
"""Parts of an output that differ from run to run and from machine to machine: times and versions."""


@dataclass(frozen=True, slots=True)
class Command:
    """One command of a block, and the output that the page shows for it.

    Attributes:
        line: As it stands after `$ `.
        exit_code: With which it ends.
        shown: Lines of its output; None where the page shows none.
    """

    line: str
    exit_code: int
    shown: tuple[str, ...] | None

    @property
    def words(self) -> list[str]:
        """The command's arguments, without `oomdoctor` before them."""
        return shlex.split(_EXIT_CODE.sub("", self.line))[1:]

    def differences(self, printed: str) -> list[str]:
        """Return shown lines that were not printed in their place, and printed ones that are not shown."""
        if self.shown is None:
            return []
        lines, shown = _lines(printed), list(self.shown)
        goes_on = shown[-1] == MORE
        if goes_on:
            shown.pop()
        if self.words[0] == "run":  # paths of this machine, which are as long as they are, move the ends of its lines
            expected, got = (" ".join(" ".join(each).split()) for each in (shown, lines))
            same = got.startswith(expected) if goes_on else got == expected
        else:
            expected, got = ([_steady(line) for line in each] for each in (shown, lines))
            same = got[: len(expected)] == expected if goes_on else got == expected
        return [] if same else ["shown:", *shown, "printed:", *lines]

    def rewritten(self, printed: str) -> str:
        """Return the command with what it prints now, as much of it as was shown; unchanged where that is the same."""
        if self.shown is None:
            return f"$ {self.line}\n"
        if not self.differences(printed):
            return "\n".join([f"$ {self.line}", *self.shown]) + "\n"
        lines = _lines(printed)
        if self.shown[-1] == MORE:
            lines = [*lines[: len(self.shown) - 1], MORE]
        return "\n".join([f"$ {self.line}", *lines]) + "\n"


def commands(page: str) -> Iterator[list[Command]]:
    """Yield the commands of each block of a page."""
    for block in _BLOCK.findall(page):
        yield list(_commands(block))


def files(page: str) -> dict[str, str]:
    """Return the files that a page shows, by the name in their first line."""
    return {name: f"# {name}\n{text}" if name.endswith(".py") else text for name, text in _FILE.findall(page)}


def pages() -> dict[str, str]:
    """Return the text of the README and of each page of the site, by its path in the repository."""
    paths = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return {str(path.relative_to(ROOT)): path.read_text(encoding="utf-8") for path in paths}


def lay_out(folder: Path, page: str) -> None:
    """Write into a folder the files of all pages; where two have the same name, the given page's own counts."""
    for text in [*pages().values(), page]:
        for name, content in files(text).items():
            if "/" not in name:
                (folder / name).write_text(content, encoding="utf-8")


def arguments(command: Command) -> list[str]:
    """Return the words of a command, with `--quiet` where it would show progress."""
    silent = ["--quiet"] if command.words[0] in ("probe", "check", "gpus") and "--known" not in command.words else []
    return [command.words[0], *silent, *command.words[1:]]


def environment() -> dict[str, str]:
    """Return the variables of a plain terminal of 88 columns in which this Python's programs are found."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    return {"PATH": path, "COLUMNS": "88", "TERM": "dumb", "NO_COLOR": "1"}


def run(command: Command, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run one command as a reader would; its output has what stderr adds."""
    return subprocess.run(
        [sys.executable, "-m", "oomdoctor", *arguments(command)],
        cwd=folder,
        env={**os.environ, **environment()},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


def printed(command: Command, ended: subprocess.CompletedProcess[str], folder: Path) -> str:
    """Return what a reader is shown of a command: its stdout, and for `run`, which has none of its own, its stderr.

    Paths and process ids of this machine are replaced by others.
    """
    if command.words[0] != "run":
        return ended.stdout
    text = ended.stderr.replace(f"{folder}/", "").replace(sys.prefix, "/venv")
    text = re.sub(r"(?m)^ +[~^]+\n", "", text)  # marks in tracebacks, which differ between Pythons
    return re.sub(r"(rank0)-\d+", r"\1-4711", re.sub(r"(/python3)\.\d+", r"\1.11", text))


def refreshed(page: str, answer: Callable[[Command], str]) -> str:
    """Return a page with new outputs in its blocks."""
    return _BLOCK.sub(
        lambda block: "".join(command.rewritten(answer(command)) for command in _commands(block[1])), page
    )


def _commands(block: str) -> Iterator[Command]:
    for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
        line, _, shown = part.partition("\n")
        code = _EXIT_CODE.search(line)
        yield Command(line, int(code[1]) if code else 0, tuple(_lines(shown)) if shown.strip() else None)


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.strip("\n").splitlines()]


def _steady(line: str) -> str:
    """Return a line without what varies; where something does, the width of its columns varies as well."""
    steady, count = VARYING.subn("", line)
    return re.sub(r"\s+", " ", steady).strip() if count else line


def _refresh(path: Path) -> None:
    page = path.read_text(encoding="utf-8")
    with tempfile.TemporaryDirectory(prefix="reader") as name:
        folder = Path(name)
        lay_out(folder, page)

        def answer(command: Command) -> str:
            ended = run(command, folder)
            if ended.returncode != command.exit_code:
                raise SystemExit(f"{path}: `{command.line}` ended with {ended.returncode}:\n{ended.stderr}")
            return printed(command, ended, folder)

        path.write_text(refreshed(page, answer), encoding="utf-8")


if __name__ == "__main__":
    for each in sys.argv[1:] or pages():
        _refresh(ROOT / each)
        print(f"Refreshed {each}")
