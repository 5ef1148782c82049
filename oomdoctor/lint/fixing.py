"""`--fix`: choose edits that do not overlap, apply them pass after pass, write the files, show the difference."""

from __future__ import annotations

import difflib
from bisect import bisect_left, insort
from collections import Counter
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias

from oomdoctor.lint.module import parse
from oomdoctor.lint.notebooks import Document, Notebook, parse_document
from oomdoctor.lint.source import UnreadableError, decode, resolved
from oomdoctor.output import replace_atomically

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from oomdoctor.lint.engine import FixableFile, LintRun
    from oomdoctor.lint.source import Edit, Script


Position: TypeAlias = tuple[int, int]
Span: TypeAlias = tuple[Position, Position]


def compatible_fixes(fixes: Sequence[tuple[Edit, ...]]) -> list[tuple[Edit, ...]]:
    """Fixes that leave each other alone, the first by position first.

    A fix is made whole or not at all. One that overlaps an earlier one, or only touches it, is left for the next pass:
    what it was to do may look different by then. One whose own edits overlap is never made.

    Args:
        fixes: The edits of each finding.
    """
    taken: list[Span] = []
    chosen = []
    for fix in sorted(filter(None, fixes), key=_first):
        spans = sorted({(edit.start, edit.end) for edit in fix})
        if len(spans) == len(set(fix)) and _are_apart(spans) and all(_is_free(span, taken) for span in spans):
            chosen.append(fix)
            for span in spans:
                insort(taken, span)
    return chosen


def _first(fix: tuple[Edit, ...]) -> Position:
    return min(edit.start for edit in fix)


def _are_apart(spans: Sequence[Span]) -> bool:
    is_ordered = all(start <= end for start, end in spans)
    return is_ordered and all(before[1] <= after[0] for before, after in pairwise(spans))


def _is_free(span: Span, taken: Sequence[Span]) -> bool:
    """Return whether a span keeps clear of all taken spans, which are in order and free of overlaps."""
    index = bisect_left(taken, span)
    is_free_before = index == 0 or taken[index - 1][1] < span[0]
    return is_free_before and (index == len(taken) or span[1] < taken[index][0])


class ChangedError(Exception):
    """The file is no longer what was read."""


def overwrite(path: Path, old: bytes, new: bytes) -> None:
    """Put `new` where `old` was; the mode stays as it is.

    Args:
        path: The file, without symbolic links, which would otherwise be replaced by it.
        old: Expected content.
        new: New content.

    Raises:
        ChangedError: Somebody else has written to the file since it was read.
        OSError: The file cannot be written.
    """
    if path.read_bytes() != old:
        raise ChangedError
    # Where the file itself may not be written, renaming another over it would be a way around that.
    with path.open("r+b"):
        pass
    replace_atomically(path, new)


if TYPE_CHECKING:
    Overlay: TypeAlias = Mapping[Path | None, bytes]
    Lint: TypeAlias = Callable[[Overlay], LintRun]

MOST_PASSES: Final = 10
_MOST_TRIED_ALONE: Final = 20


@dataclass(frozen=True, slots=True)
class FileChange:
    """The bytes of one file before and after its fixes.

    Attributes:
        shown: Name in reports.
        name: Its name, whose ending tells a notebook.
        old: Content before the fixes.
        new: Content after the fixes.
    """

    shown: str
    name: str
    old: bytes
    new: bytes


@dataclass(slots=True)
class FixRun:
    """Fixes that were made in memory.

    Attributes:
        linted: Result of linting the fixed contents.
        changes: Changes by file: its path without links, or None for standard input.
        counts: Number of fixed findings in each file.
        notes: Why fixes were not made, one sentence each.
    """

    linted: LintRun
    changes: dict[Path | None, FileChange] = field(default_factory=dict)
    counts: Counter[Path | None] = field(default_factory=Counter)
    notes: list[str] = field(default_factory=list)

    @property
    def fixed(self) -> int:
        """Number of findings that were fixed."""
        return self.counts.total()

    def overlay(self) -> dict[Path | None, bytes]:
        """The files' new contents."""
        return {path: change.new for path, change in self.changes.items()}


def fix(lint: Lint) -> FixRun:
    """Make all fixes that can be made, without writing anything.

    Args:
        lint: Lints with the contents of some files, or of standard input, replaced.
    """
    fixing = FixRun(lint({}))
    refused: dict[str, str] = {}
    for _ in range(MOST_PASSES):
        before = fixing.overlay()
        for fixable in fixing.linted.fixable:
            if fixable.file.shown not in refused and (reason := _fix(fixable, fixing)):
                refused[fixable.file.shown] = f"`{fixable.file.shown}` has a fix that was not applied: {reason}"
        if fixing.overlay() == before:
            break
        fixing.linted = lint(fixing.overlay())
    else:
        left = {each.file.shown for each in fixing.linted.fixable} - refused.keys()
        fixing.notes += [f"`{name}` has fixes left after {MOST_PASSES} passes" for name in sorted(left)]
    fixing.notes += refused.values()
    return fixing


def write(fixing: FixRun, lint: Lint) -> None:
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


def _write(path: Path, change: FileChange) -> str | None:
    """Why the file could not be written, or None."""
    try:
        overwrite(path, change.old, change.new)
    except ChangedError:
        return "it was changed while it was linted"
    except OSError as error:
        return f"it cannot be written: {error.strerror or error}"
    return None


def _fix(fixable: FixableFile, fixing: FixRun) -> str | None:
    """Make the fixes of one file that leave each other alone; why that cannot be, or None."""
    file = fixable.file
    try:
        data, document = fixing.linted.read(fixable)
    except UnreadableError as error:
        return error.problem
    if document.edited(()) != data:
        return "its encoding does not give the same bytes again"
    name = fixing.linted.inputs.place(file).name
    for fixes in _attempts(compatible_fixes(fixable.edits)):
        new = _edited(document, [edit for fix in fixes for edit in fix], name)
        if new is not None:
            path = None if file.path is None else resolved(file.path)
            old = fixing.changes[path].old if path in fixing.changes else data
            fixing.changes[path] = FileChange(file.shown, name, old, new)
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
    """Return the document of a file, whether or not it has to do with torch.

    Raises:
        UnreadableError: The file cannot be parsed as a document.
    """
    return parse_document(data, name) or decode(data)


def _broken(document: Document) -> Sequence[object]:
    return document.broken if isinstance(document, Notebook) else ()


_NO_LINE_END = "\n\\ No newline at end of file\n"


def unified(path: str, old: Script | Notebook, new: Script | Notebook) -> str:
    """The difference between two states of a file; a notebook's is shown by cell, as its authors see them.

    Args:
        path: The file as it is to be named.
        old: Document before the change.
        new: Document after the change.
    """
    if isinstance(old, Notebook) and isinstance(new, Notebook):
        after = {cell.number: cell.source for cell in new.cells}
        pairs = [(f"{path}:cell {cell.number}", cell.source, after.get(cell.number, "")) for cell in old.cells]
        return "".join(_difference(name, before, later) for name, before, later in pairs)
    return _difference(path, old.shown(), new.shown())


def _difference(name: str, old: str, new: str) -> str:
    lines = difflib.unified_diff(_lines(old), _lines(new), name, name)
    return "".join(line if line.endswith("\n") else line + _NO_LINE_END for line in lines)


def _lines(text: str) -> list[str]:
    """Lines with their ends; other than `str.splitlines` does, only a line feed ends one, as for `patch`."""
    return list(_split(text))


def _split(text: str) -> Iterator[str]:
    start = 0
    while start < len(text):
        end = text.find("\n", start) + 1 or len(text)
        yield text[start:end]
        start = end
