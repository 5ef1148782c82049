"""`--fix`: fixes made pass after pass, in memory, until there is nothing left that can be made."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias

from oomdoctor.lint.choosing import together
from oomdoctor.lint.code.parsing import parse
from oomdoctor.lint.documents import Document, parse_document
from oomdoctor.lint.inputs import resolved
from oomdoctor.lint.notebooks import Notebook
from oomdoctor.lint.overwriting import ChangedError, overwrite
from oomdoctor.lint.source import UnreadableError, decode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from oomdoctor.lint.engine import Fixable, Linted
    from oomdoctor.lint.rule import Edit

    Overlay: TypeAlias = Mapping[Path | None, bytes]
    Lint: TypeAlias = Callable[[Overlay], Linted]

MOST_PASSES: Final = 10
_MOST_TRIED_ALONE: Final = 20


@dataclass(frozen=True, slots=True)
class Change:
    """What fixes make of one file.

    Attributes:
        shown: What reports call the file.
        name: Its name, whose ending tells a notebook.
        old: What it holds.
        new: What it is to hold.
    """

    shown: str
    name: str
    old: bytes
    new: bytes


@dataclass(slots=True)
class Fixing:
    """Fixes that were made in memory.

    Attributes:
        linted: What is found in the files as they are to be.
        changes: By file: its path without links, or None for standard input.
        counts: How many findings were put right in each file.
        notes: Why fixes were not made, one sentence each.
    """

    linted: Linted
    changes: dict[Path | None, Change] = field(default_factory=dict)
    counts: Counter[Path | None] = field(default_factory=Counter)
    notes: list[str] = field(default_factory=list)

    @property
    def fixed(self) -> int:
        """How many findings were put right."""
        return self.counts.total()

    def overlay(self) -> dict[Path | None, bytes]:
        """The files' new contents."""
        return {path: change.new for path, change in self.changes.items()}


def fix(lint: Lint) -> Fixing:
    """Make all fixes that can be made, without writing anything.

    Args:
        lint: Lints with the contents of some files, or of standard input, replaced.
    """
    fixing = Fixing(lint({}))
    refused: dict[str, str] = {}
    for _ in range(MOST_PASSES):
        before = fixing.overlay()
        for fixable in fixing.linted.fixable:
            if fixable.file.shown not in refused and (reason := _fix(fixable, fixing)):
                refused[fixable.file.shown] = f"`{fixable.file.shown}` has a fix that is not made: {reason}"
        if fixing.overlay() == before:
            break
        fixing.linted = lint(fixing.overlay())
    else:
        left = {each.file.shown for each in fixing.linted.fixable} - refused.keys()
        fixing.notes += [f"`{name}` has fixes left after {MOST_PASSES} passes" for name in sorted(left)]
    fixing.notes += refused.values()
    return fixing


def write(fixing: Fixing, lint: Lint) -> None:
    """Write the changed files; one that cannot be written stays as it was, and its findings are found again."""
    failed = False
    for path, change in list(fixing.changes.items()):
        reason = None if path is None else _write(path, change)
        if reason is not None:
            failed = True
            fixing.notes.append(f"`{change.shown}` is left as it was: {reason}")
            del fixing.changes[path], fixing.counts[path]
    if failed:
        fixing.linted = lint(fixing.overlay())


def _write(path: Path, change: Change) -> str | None:
    """Why the file could not be written, or None."""
    try:
        overwrite(path, change.old, change.new)
    except ChangedError:
        return "it was changed while it was linted"
    except OSError as error:
        return f"it cannot be written: {error.strerror or error}"
    return None


def _fix(fixable: Fixable, fixing: Fixing) -> str | None:
    """Make the fixes of one file that leave each other alone; why that cannot be, or None."""
    file = fixable.file
    try:
        data, document = fixing.linted.read(fixable)
    except UnreadableError as error:
        return error.problem
    if document.edited(()) != data:
        return "its encoding does not lead back to the same bytes"
    name = fixing.linted.inputs.place(file).name
    for fixes in _attempts(together(fixable.edits)):
        new = _edited(document, [edit for fix in fixes for edit in fix], name)
        if new is not None:
            path = None if file.path is None else resolved(file.path)
            old = fixing.changes[path].old if path in fixing.changes else data
            fixing.changes[path] = Change(file.shown, name, old, new)
            fixing.counts[path] += len(fixes)
            return None
    return "it would leave code that does not parse"


def _attempts(fixes: Sequence[tuple[Edit, ...]]) -> Iterator[Sequence[tuple[Edit, ...]]]:
    """All together, and where that does not go well each alone."""
    if fixes:
        yield fixes
    if len(fixes) > 1:
        yield from ([fix] for fix in fixes[:_MOST_TRIED_ALONE])


def _edited(document: Document, edits: Sequence[Edit], name: str) -> bytes | None:
    """The file with these edits made; None where it would not be a program any more."""
    try:
        data = document.edited(edits)
        after = program(data, name)
        parse(after.text, Path(name))
    except (ValueError, SyntaxError, UnreadableError):
        return None
    is_worse = isinstance(after, Notebook) and len(after.broken) > len(_broken(document))
    return None if is_worse else data


def program(data: bytes, name: str) -> Document:
    """What a file holds, whether or not it has to do with torch.

    Raises:
        UnreadableError: It cannot be understood.
    """
    return parse_document(data, name) or decode(data)


def _broken(document: Document) -> Sequence[object]:
    return document.broken if isinstance(document, Notebook) else ()
