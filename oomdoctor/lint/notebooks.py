"""Jupyter notebooks as one program, and any file as a document that can be linted and edited."""

from __future__ import annotations

import ast
import codecs
import json
import re
import warnings
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path, PurePath
from typing import Final

from oomdoctor.lint import notebook_format
from oomdoctor.lint.discovery import File
from oomdoctor.lint.notebook_format import JsonError, Span, python_of
from oomdoctor.lint.source import (
    LINE_END,
    MOST_BYTES,
    Edit,
    Lines,
    Script,
    UnreadableError,
    check_size,
    decode,
    read,
    resolved,
    spans,
    stands_on_torch,
    within,
)

MOST_NOTEBOOK_BYTES: Final = 64 << 20
"""The largest notebook that is read. Pictures in its outputs are most of a large one; they are passed over."""

_CHARACTER: Final = re.compile(
    rb"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|\\u[0-9a-fA-F]{4}|\\.|[\xc0-\xff][\x80-\xbf]*|."
)
"""One character inside a JSON string of UTF-8, or its escape."""

_MODES: Final = ("python", "ipython", "python3", "python2")

_MOST_CELLS: Final = 10_000

_GAP: Final = 1000
"""Bytes of white space that are looked back over."""


class BrokenCellError(UnreadableError):
    """A cell does not parse.

    Args:
        cell: Its number among all cells, from 1.
        error: Python's error.
    """

    def __init__(self, cell: int, error: SyntaxError) -> None:
        super().__init__(error.msg, error.lineno, error.offset)
        self.cell = cell


@dataclass(frozen=True, slots=True)
class Cell:
    """A code cell.

    Attributes:
        number: Among all cells, from 1.
        source: Text as its author wrote it.
        code: The same, with what is not Python put out of the way; as many lines and characters.
        parts: Spans of its strings in the file's bytes, in order; together they are `source`.
    """

    number: int
    source: str
    code: str
    parts: tuple[Span, ...]


@dataclass(frozen=True, slots=True)
class Notebook:
    """A notebook as one program.

    Attributes:
        data: The file's bytes.
        cells: Its code cells that parse.
        text: Their code, each cell beginning on a line of its own.
        starts: The line of `text` on which each cell begins, from 1.
        broken: Cells that do not parse.
    """

    data: bytes
    cells: tuple[Cell, ...]
    text: str
    starts: tuple[int, ...]
    broken: tuple[BrokenCellError, ...]

    def place(self, line: int) -> tuple[int | None, int]:
        """The cell's number, and the line in it, of a line of the whole."""
        index = self._index(line)
        return (self.cells[index].number, line - self.starts[index] + 1) if self.cells else (None, line)

    def shown(self) -> str:
        """Return the cells as their authors wrote them, with the lines and characters of `text`."""
        return _joined(cell.source for cell in self.cells)

    def edited(self, edits: Iterable[Edit]) -> bytes:
        """The file with these edits made in its cells, all else byte for byte as it was.

        Raises:
            ValueError: Two edits overlap, or one reaches over the end of a cell.
        """
        lines = Lines(self.text)
        by_cell: dict[int, list[tuple[int, int, str]]] = {}
        for start, end, new in spans(lines, edits):
            index = self._index(lines.number(start))
            first = lines.start(self.starts[index])
            if end - first > len(self.cells[index].source):
                raise ValueError("an edit reaches over the end of its cell")
            by_cell.setdefault(index, []).append((start - first, end - first, new))
        return self._with(by_cell)

    def _index(self, line: int) -> int:
        return max(bisect_right(self.starts, line) - 1, 0)

    def _with(self, changes: dict[int, list[tuple[int, int, str]]]) -> bytes:
        parts, done = [], 0
        for index in sorted(changes):
            cell = self.cells[index]
            for start, end, new in _rewritten(self.data, cell, changes[index]):
                parts += [self.data[done:start], new]
                done = end
        return b"".join([*parts, self.data[done:]])


def parse_notebook(data: bytes, *, needs_torch: bool = True) -> Notebook | None:
    """A notebook's program; None for one in another language than Python, and where torch is needed one without it.

    Raises:
        UnreadableError: The bytes are not the JSON of a notebook, or its code is too much.
    """
    try:
        root = notebook_format.whole(data, len(codecs.BOM_UTF8) if data.startswith(codecs.BOM_UTF8) else 0)
        top = notebook_format.members(data, root)
        if not _is_python(data, top):
            return None
        found = list(_sources(data, top))
    except JsonError as error:
        raise UnreadableError(f"not a notebook: {error.problem}", *_line_and_column(data, error.offset)) from None
    except UnicodeDecodeError:
        raise UnreadableError("not a notebook: not UTF-8") from None
    text = _joined(source for _, source, _ in found)
    if needs_torch and not stands_on_torch(text):
        return None
    check_size(text)
    return _assembled(data, list(_code_cells(found)))


def _assembled(data: bytes, found: list[Cell]) -> Notebook:
    broken = {cell.number: error for cell in found if (error := _error(cell))}
    cells = tuple(cell for cell in found if cell.number not in broken)
    starts, line = [], 1
    for cell in cells:
        starts.append(line)
        line += len(LINE_END.findall(cell.code)) + 1
    return Notebook(data, cells, _joined(cell.code for cell in cells), tuple(starts), tuple(broken.values()))


def _joined(texts: Iterable[str]) -> str:
    return "".join(f"{text}\n" for text in texts)


def _error(cell: Cell) -> BrokenCellError | None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ast.parse(cell.code)
    except SyntaxError as error:
        return BrokenCellError(cell.number, error)
    except (ValueError, RecursionError, MemoryError) as error:
        return BrokenCellError(cell.number, SyntaxError(str(error) or "nested too deeply", (None, 1, 1, None)))
    return None


def _is_python(data: bytes, top: dict[str, Span]) -> bool:
    """Return whether the kernel's language is Python or not named."""
    metadata = notebook_format.members(data, top["metadata"]) if "metadata" in top else {}
    for holder, key in (("kernelspec", "language"), ("language_info", "name")):
        inner = notebook_format.members(data, metadata[holder]) if holder in metadata else {}
        language = notebook_format.text(data, inner[key]) if key in inner else None
        if language:
            return language.lower() in _MODES
    return True


def _sources(data: bytes, top: dict[str, Span]) -> Iterator[tuple[int, str, tuple[Span, ...]]]:
    """The number, the source and its strings of each code cell."""
    for number, span in enumerate(_cells(data, top), 1):
        if number > _MOST_CELLS:
            raise JsonError(f"more than {_MOST_CELLS:,} cells", span[0])
        cell = notebook_format.members(data, span)
        if "cell_type" in cell and notebook_format.text(data, cell["cell_type"]) == "code":
            source = cell.get("source") or cell.get("input")  # the latter until nbformat 4
            parts = _strings(data, source) if source else ()
            yield number, "".join(notebook_format.text(data, part) or "" for part in parts), parts


def _code_cells(found: list[tuple[int, str, tuple[Span, ...]]]) -> Iterator[Cell]:
    for number, source, parts in found:
        code = python_of(source)
        if code is not None and code.strip():
            yield Cell(number, source, code, parts)


def _cells(data: bytes, top: dict[str, Span]) -> Iterator[Span]:
    if "cells" in top:
        yield from notebook_format.items(data, top["cells"])
    elif "worksheets" in top:
        for sheet in notebook_format.items(data, top["worksheets"]):
            inner = notebook_format.members(data, sheet)
            if "cells" in inner:
                yield from notebook_format.items(data, inner["cells"])
    else:
        raise JsonError("it has no cells", 0)


def _strings(data: bytes, span: Span) -> tuple[Span, ...]:
    """The one string, or the strings of the list, that a cell's source is."""
    parts = (span,) if data[span[0] : span[0] + 1] == b'"' else tuple(notebook_format.items(data, span))
    return tuple(part for part in parts if data[part[0] : part[0] + 1] == b'"')


def _rewritten(data: bytes, cell: Cell, changes: list[tuple[int, int, str]]) -> Iterator[tuple[int, int, bytes]]:
    """The strings of a cell that changes touch, as (first byte, byte after the last, what stands there now).

    What a change spans is taken as one string, and cut after each line end again where the source is a list.
    """
    starts = _offsets(data, cell)
    ascii_ = all(data[start:end].isascii() for start, end in cell.parts)
    for first, last, group in _grouped(starts, changes):
        begin = starts[first]
        raw = b"".join(data[start + 1 : end - 1] for start, end in cell.parts[first : last + 1])
        places = [0, *(token.end() for token in _CHARACTER.finditer(raw))]
        done, new = 0, b""
        for start, end, text in group:
            new += raw[done : places[start - begin]] + json.dumps(text, ensure_ascii=ascii_).encode()[1:-1]
            done = places[end - begin]
        yield cell.parts[first][0], cell.parts[last][1], _literals(data, cell, new + raw[done:])


def _offsets(data: bytes, cell: Cell) -> list[int]:
    """The character of the source with which each of its strings begins."""
    starts = [0]
    for part in cell.parts:
        starts.append(starts[-1] + len(notebook_format.text(data, part) or ""))
    return starts


def _grouped(
    starts: list[int], changes: list[tuple[int, int, str]]
) -> Iterator[tuple[int, int, list[tuple[int, int, str]]]]:
    """Changes with the first and the last string that they touch; those that share a string belong together."""
    groups: list[tuple[int, int, list[tuple[int, int, str]]]] = []
    for change in changes:
        first = min(bisect_right(starts, change[0]) - 1, len(starts) - 2)
        # What is deleted up to the end of a string would leave an empty one: the next one comes along.
        last = max(first, min(bisect_right(starts, change[1]) - 1, len(starts) - 2))
        if groups and groups[-1][1] >= first:
            first, last = groups[-1][0], max(last, groups[-1][1])
            groups[-1] = (first, last, [*groups[-1][2], change])
        else:
            groups.append((first, last, [change]))
    yield from groups


def _literals(data: bytes, cell: Cell, raw: bytes) -> bytes:
    """The inside of a string as strings of JSON: one a line where the source is a list."""
    begin = cell.parts[0][0]
    if not (len(cell.parts) > 1 or _before(data, begin).endswith(b"[")):
        return b'"' + raw + b'"'
    separator = data[cell.parts[0][1] : cell.parts[1][0]] if len(cell.parts) > 1 else b"," + _gap(data, begin)
    lines, line = [], b""
    for token in _CHARACTER.findall(raw):
        line += token
        if token in {rb"\n", rb"\u000a", rb"\u000A"}:
            lines.append(line)
            line = b""
    if line or not lines:
        lines.append(line)
    return separator.join(b'"' + line + b'"' for line in lines)


def _before(data: bytes, begin: int) -> bytes:
    """Return the bytes before a position without white space at their end."""
    return data[max(begin - _GAP, 0) : begin].rstrip()


def _gap(data: bytes, begin: int) -> bytes:
    """The white space before a position."""
    return data[max(begin - _GAP, 0) : begin][len(_before(data, begin)) :]


def _line_and_column(data: bytes, offset: int) -> tuple[int, int]:
    """Line and column, from 1, of a byte."""
    before = data[:offset]
    return before.count(b"\n") + 1, len(before) - (before.rfind(b"\n") + 1) + 1


NOTEBOOK: str = ".ipynb"
"""Ending of a notebook's name; any other file is a script."""

Document = Script | Notebook


def read_document(path: Path) -> Document | None:
    """Read a file as a document; None where it has nothing to do with torch.

    Raises:
        UnreadableError: The file cannot be read or parsed.
    """
    return parse_document(read(path, most_bytes(path.name)), path.name)


def parse_document(data: bytes, name: str, *, needs_torch: bool = True) -> Document | None:
    """Parse bytes as a document; None where they have nothing to do with torch.

    Args:
        data: The file's bytes.
        name: Its name, whose ending tells a notebook.
        needs_torch: Whether a program without torch is None, too; a notebook of another language always is.

    Raises:
        UnreadableError: They are too many or cannot be understood.
    """
    within(data, most_bytes(name))
    if PurePath(name).suffix == NOTEBOOK:
        return parse_notebook(data, needs_torch=needs_torch)
    script = decode(data)
    if needs_torch and not stands_on_torch(script.text):
        return None
    check_size(script.text)
    return script


def most_bytes(name: str) -> int:
    """Return the largest size in bytes that is read of a file of this name."""
    return MOST_NOTEBOOK_BYTES if PurePath(name).suffix == NOTEBOOK else MOST_BYTES


@dataclass(frozen=True, slots=True)
class Inputs:
    """Contents of the files to lint: from the disk, from standard input, or as fixes leave them.

    Attributes:
        overlay: Contents that replace those on the disk, by resolved path.
        stdin: Bytes of standard input; None where it is not read.
        stdin_filename: Name of standard input.
    """

    overlay: Mapping[Path, bytes] = field(default_factory=dict)
    stdin: bytes | None = None
    stdin_filename: str | None = None

    def read(self, file: File) -> bytes:
        """The bytes of a file.

        Raises:
            UnreadableError: The file cannot be read, or is too large.
        """
        if file.path is None:
            return self.stdin or b""
        instead = self.overlay.get(resolved(file.path)) if self.overlay else None
        return read(file.path, most_bytes(file.path.name)) if instead is None else instead

    def place(self, file: File) -> Path:
        """Return the path of a file; for standard input the path that its name would have."""
        return file.path or Path.cwd() / (self.stdin_filename or "stdin.py")


def digest(data: bytes) -> bytes:
    """Return a hash of a file's content."""
    return blake2b(data, digest_size=16).digest()
