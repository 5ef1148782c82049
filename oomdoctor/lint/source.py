"""Source text of scripts: reading, decoding, limits on size, and positions in lines, columns and offsets."""

from __future__ import annotations

import codecs
import os
import re
import stat
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Final

LINE_END: Final = re.compile(r"\r\n|\n|\r")
"""Line end, as Python counts it; `str.splitlines` knows more, such as a form feed, and would count lines wrongly."""


_LONE_RETURN: Final = re.compile(r"\r(?!\n)")


def with_line_feeds(text: str) -> str:
    """The text with a line feed for each carriage return that ends a line alone; no character moves."""
    return _LONE_RETURN.sub("\n", text) if "\r" in text else text


class Lines:
    """A text by lines.

    Args:
        text: Text as it is parsed.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self._starts = [0]
        self._ends = []
        for end in LINE_END.finditer(text):
            self._ends.append(end.start())
            self._starts.append(end.end())
        self._ends.append(len(text))

    def __len__(self) -> int:
        """Return the number of lines; text after the last line end is one only if it is not empty."""
        return len(self._starts) - (self._starts[-1] == len(self.text))

    def line(self, number: int) -> str:
        """The text of a line, from 1, without its end; empty where there is no such line."""
        if not 1 <= number <= len(self._starts):
            return ""
        return self.text[self._starts[number - 1] : self._ends[number - 1]]

    def start(self, number: int) -> int:
        """Offset of a line's first character; the text's length where there is no such line."""
        return self._starts[number - 1] if number <= len(self._starts) else len(self.text)

    def column(self, number: int, utf8: int) -> int:
        """Column in characters, from 0, of a column in UTF-8 bytes."""
        line = self.line(number)
        return utf8 if line.isascii() else len(line.encode("utf-8", "surrogatepass")[:utf8].decode("utf-8", "ignore"))

    def offset(self, position: tuple[int, int]) -> int:
        """Offset of a line from 1 and a column in UTF-8 bytes, both as `ast` counts."""
        line, utf8 = position
        return min(self.start(line) + self.column(line, utf8), len(self.text))

    def number(self, offset: int) -> int:
        """The line that an offset lies in."""
        return bisect_right(self._starts, offset)


@dataclass(frozen=True, slots=True)
class Edit:
    """One replacement in a text.

    Attributes:
        start: First position of the replaced text: a line from 1 and a column in UTF-8 bytes from 0, as `ast` counts.
        end: Position after the replaced text; equal to `start` for an insertion.
        text: The new text.
    """

    start: tuple[int, int]
    end: tuple[int, int]
    text: str


def spans(lines: Lines, edits: Iterable[Edit]) -> list[tuple[int, int, str]]:
    """Edits as (start, end, text) with offsets into the text, in order; line ends are those that the text has.

    Raises:
        ValueError: Two of them overlap.
    """
    newline = line_end(lines.text)
    found = sorted(
        (lines.offset(edit.start), lines.offset(edit.end), LINE_END.sub(newline, edit.text)) for edit in set(edits)
    )
    if any(before[1] > after[0] for before, after in pairwise(found)):
        raise ValueError("edits overlap")
    return found


def replaced(text: str, changes: Iterable[tuple[int, int, str]]) -> str:
    """The text with what lies between each two offsets replaced; changes are in order and do not overlap."""
    parts, done = [], 0
    for start, end, new in changes:
        parts += [text[done:start], new]
        done = end
    return "".join([*parts, text[done:]])


def line_end(text: str) -> str:
    """Return the line end of the first line."""
    found = LINE_END.search(text)
    return found[0] if found else "\n"


MOST_BYTES: Final = 4 << 20
"""The largest script that is read. The largest in PyTorch itself has 1.3 MB; a text costs up to 12 times its bytes."""

MOST_TOKENS: Final = 100_000
"""Names, numbers and signs that a script may have. Parsing costs up to 1000 bytes of memory for each (`a;a;a;`),
and 300 to 500 in code that people write, where 100,000 are 10,000 lines and more."""

MOST_FIELDS: Final = MOST_TOKENS // 4
"""Number of `{` that a script may have: Python 3.11 takes time quadratic in the fields of one f-string: a second."""

FOUNDATIONS: Final = frozenset({
    "accelerate", "apex", "avalanche", "bitsandbytes", "catalyst", "colossalai", "composer", "datasets", "deepspeed",
    "detectron2", "dgl", "diffusers", "e3nn", "einops", "fairscale", "fairseq", "fastai", "flair", "functorch",
    "gpytorch", "ignite", "keras_core", "kornia", "lightning", "lightning_fabric", "megatron", "mmcv", "mmdet",
    "mmengine", "mmseg", "monai", "open_clip", "peft", "pytorch3d", "pytorch_lightning", "pytorch_metric_learning",
    "pytorch_transformers", "segmentation_models_pytorch", "sentence_transformers", "skorch", "speechbrain",
    "stable_baselines3", "tianshou", "timm", "torch", "torch_geometric", "torch_xla", "torchaudio", "torchdata",
    "torchmetrics", "torchrl", "torchtext", "torchtitan", "torchtune", "torchvision", "transformers", "trl",
    "ultralytics", "unsloth", "xformers", "yolov5",
})  # fmt: skip
"""Torch, and what stands on it: a file that imports one of these may hold a training loop."""

_IMPORTS: Final = re.compile(
    r"(?:^|[\r:;])[ \t\f]*(?:import|from)\b[^\n\r#;:(]*?\b(?:" + "|".join(sorted(FOUNDATIONS)) + r")\b", re.MULTILINE
)
_CLEARS_GRADIENTS: Final = ".zero_grad("
"""A loop whose model comes from a module of its own needs no import of torch."""

_TOKEN: Final = re.compile(r"\w+|[^\w\s]|\n")
_COOKIE: Final = re.compile(rb"^[ \t\f]*#.*?coding[:=][ \t]*([-\w.]+)")
_BLANK: Final = re.compile(rb"^[ \t\f]*(?:#.*)?$")
_WIDE: Final = {
    codecs.BOM_UTF32_LE: "UTF-32",
    codecs.BOM_UTF32_BE: "UTF-32",
    codecs.BOM_UTF16_LE: "UTF-16",
    codecs.BOM_UTF16_BE: "UTF-16",
}
_NO_SOURCE: Final = frozenset({
    "idna", "punycode", "raw_unicode_escape", "undefined", "unicode_escape",
    "utf-16", "utf-16-be", "utf-16-le", "utf-32", "utf-32-be", "utf-32-le", "utf-7",
})  # fmt: skip
"""Codecs by which no script is written: not ASCII in their first line, or slow beyond measure."""


class UnreadableError(Exception):
    """A file cannot be linted.

    Args:
        problem: Why, lower case.
        line: Line from 1, if the problem has a position.
        column: From 1.
    """

    def __init__(self, problem: str, line: int | None = None, column: int | None = None) -> None:
        super().__init__(problem)
        self.problem = problem
        self.line = line
        self.column = column


@dataclass(frozen=True, slots=True)
class Script:
    """A Python file's text.

    Attributes:
        text: Without the byte order mark; line ends as they are.
        encoding: Name of the encoding.
        mark: The byte order mark that it begins with, or nothing.
    """

    text: str
    encoding: str = "utf-8"
    mark: bytes = b""

    def place(self, line: int) -> tuple[int | None, int]:
        """Cell and line as people name them: there are no cells."""
        return None, line

    def shown(self) -> str:
        """The text as people see it, with the lines and characters of `text`."""
        return self.text

    def edited(self, edits: Iterable[Edit]) -> bytes:
        """The file with these edits made, all else byte for byte as it was.

        Raises:
            ValueError: Two edits overlap, or the encoding lacks a character.
        """
        return self.mark + replaced(self.text, spans(Lines(self.text), edits)).encode(self.encoding)


def read(path: Path, most: int) -> bytes:
    """The bytes of a file.

    Raises:
        UnreadableError: The file cannot be read, is no regular file or has more than `most` bytes.
    """
    try:
        # Opening a pipe without O_NONBLOCK would wait until somebody writes to it.
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as stream:
            if not stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
                raise UnreadableError("not a regular file")
            data = stream.read(most + 1)
    except (OSError, ValueError) as error:
        raise UnreadableError(f"cannot be read: {getattr(error, 'strerror', None) or error}") from error
    return within(data, most)


def resolved(path: Path) -> Path:
    """Return a path without symbolic links; the path itself where they lead in a circle."""
    try:
        return path.resolve()
    except (OSError, RuntimeError):
        return path


def within(data: bytes, most: int) -> bytes:
    """Return the same bytes, once their number is checked.

    Raises:
        UnreadableError: They are more than `most`.
    """
    if len(data) > most:
        raise UnreadableError(f"too large: more than {most >> 20} MiB")
    return data


def decode(data: bytes) -> Script:
    """The text of a script, by its byte order mark and its coding line, else UTF-8.

    Raises:
        UnreadableError: The bytes are not valid in that encoding.
    """
    for mark, name in _WIDE.items():
        if data.startswith(mark):
            raise UnreadableError(f"written in {name}, which Python does not read", 1, 1)
    mark = codecs.BOM_UTF8 if data.startswith(codecs.BOM_UTF8) else b""
    body = data[len(mark) :]
    encoding = _encoding(body, marked=bool(mark))
    text = _decoded(body, encoding)
    if (null := text.find("\0")) >= 0:
        raise UnreadableError("holds a NUL byte", *_position(text[:null]))
    return Script(text, encoding, mark)


def stands_on_torch(text: str) -> bool:
    """Return whether a script imports torch or a library on top of it, or clears gradients."""
    return _CLEARS_GRADIENTS in text or _IMPORTS.search(text) is not None


def check_size(text: str) -> None:
    """See that parsing and judging a text stays within the memory that lint may take.

    Raises:
        UnreadableError: The text has too many tokens.
    """
    # A text cannot have more tokens than characters, and counting them takes time.
    many = len(text) > MOST_TOKENS and tokens(text) > MOST_TOKENS
    if many or text.count("{") > MOST_FIELDS:
        raise UnreadableError(f"too large: more than {MOST_TOKENS:,} tokens")


def tokens(text: str) -> int:
    """Return the number of names, numbers and signs in a text, which decides the memory that parsing takes."""
    return _TOKEN.subn("", text)[1]


def _encoding(body: bytes, *, marked: bool) -> str:
    cookie = _cookie(body)
    if cookie is None:
        return "utf-8"
    try:
        codec = codecs.lookup(cookie)
    except (LookupError, ValueError):
        raise UnreadableError(f"unknown encoding `{cookie}`", 1, 1) from None
    # `_is_text_encoding` is how `bytes.decode` itself tells text from what only transforms bytes, such as zlib.
    if codec.name in _NO_SOURCE or not codec._is_text_encoding:  # noqa: SLF001 - see above
        raise UnreadableError(f"`{cookie}` is not an encoding for scripts", 1, 1)
    if marked and codec.name != "utf-8":
        raise UnreadableError(f"begins with the UTF-8 byte order mark but declares `{cookie}`", 1, 1)
    return codec.name


def _cookie(body: bytes) -> str | None:
    """Return the encoding of the coding line: the first line, or the second after a blank one or a comment."""
    for line in re.split(rb"\r\n|\n|\r", body[:_HEAD], maxsplit=2)[:2]:
        if found := _COOKIE.match(line):
            return found[1].decode("ascii")
        if not _BLANK.match(line):
            break
    return None


_HEAD: Final = 1024


def _decoded(body: bytes, encoding: str) -> str:
    try:
        text = body.decode(encoding)
    except UnicodeDecodeError as error:
        before = body[: error.start].decode(encoding, "replace")
        byte = body[error.start : error.start + 1].hex()
        raise UnreadableError(f"byte 0x{byte} is not {encoding}: {error.reason}", *_position(before)) from None
    except (UnicodeError, LookupError, OverflowError) as error:
        raise UnreadableError(f"not {encoding}: {error}", 1, 1) from None
    return text


def _position(before: str) -> tuple[int, int]:
    """Line and column, both from 1, of what comes after a text."""
    lines = Lines(before)
    number = lines.number(len(before))
    return number, len(before) - lines.start(number) + 1
