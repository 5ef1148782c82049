"""The format of Jupyter notebooks: positions of JSON values in the file's bytes, and IPython's magics."""

from __future__ import annotations

import ast
import json
import re
import warnings
from collections.abc import Iterator
from itertools import islice
from typing import Final

from oomdoctor.lint.source import LINE_END

Span = tuple[int, int]
"""First byte of a value, and the byte after its last."""

DEEPEST: Final = 200
"""Levels of brackets that are followed; a notebook has about ten."""

MOST_TOKENS: Final = 4_000_000
"""Strings, numbers and signs that are read at most: a few seconds' worth."""

MOST_MEMBERS: Final = 100_000
"""Values of one object or array that are looked at one by one."""

# Possessive, so that a string of many megabytes takes no memory for ways back.
_TOKEN: Final = re.compile(
    rb'[ \t\r\n]*+(?:(?P<string>"(?:[^"\\\x00-\x1f]++|\\["\\/bfnrt]|\\u[0-9a-fA-F]{4})*+")'
    rb"|(?P<scalar>-?(?:0|[1-9][0-9]*+)(?:\.[0-9]++)?(?:[eE][-+]?[0-9]++)?|true|false|null|NaN|-?Infinity)"
    rb"|(?P<sign>[][{}:,]))"
)
_SPACE: Final = re.compile(rb"[ \t\r\n]*+")


class JsonError(ValueError):
    """Bytes that are not JSON.

    Args:
        problem: Problem, in lower case.
        offset: At which byte.
    """

    def __init__(self, problem: str, offset: int) -> None:
        super().__init__(problem)
        self.problem = problem
        self.offset = offset


def whole(data: bytes, start: int = 0) -> Span:
    """Return the span of the document's one value.

    Raises:
        JsonError: There is no value, it is broken, or something follows it.
    """
    begin = _skip_space(data, start)
    end = _skip(data, begin)
    if _skip_space(data, end) != len(data):
        raise JsonError("there is more after the end of the document", _skip_space(data, end))
    return begin, end


def members(data: bytes, span: Span) -> dict[str, Span]:
    """Return the spans of an object's values by key, the last of two with one key; empty for another value."""
    if data[span[0] : span[0] + 1] != b"{":
        return {}
    return dict(islice(_members(data, span), MOST_MEMBERS))


def items(data: bytes, span: Span) -> Iterator[Span]:
    """Yield the spans of an array's values; nothing for another value."""
    if data[span[0] : span[0] + 1] != b"[":
        return
    at = _skip_space(data, span[0] + 1)
    for _ in range(MOST_MEMBERS):
        if data[at : at + 1] == b"]":
            return
        end = _skip(data, at)
        yield at, end
        at = _after_comma(data, end)
    raise JsonError(f"more than {MOST_MEMBERS:,} values in one array", span[0])


def text(data: bytes, span: Span) -> str | None:
    """The text that a string stands for; None for another value."""
    if data[span[0] : span[0] + 1] != b'"':
        return None
    found = json.loads(data[span[0] : span[1]])
    return found if isinstance(found, str) else None


def _members(data: bytes, span: Span) -> Iterator[tuple[str, Span]]:
    at = _skip_space(data, span[0] + 1)
    while data[at : at + 1] != b"}":
        key_end = _skip(data, at)
        key = text(data, (at, key_end)) or ""
        start = _skip_space(data, _skip_space(data, key_end) + 1)
        end = _skip(data, start)
        yield key, (start, end)
        at = _after_comma(data, end)


def _after_comma(data: bytes, end: int) -> int:
    """Return the position of the next value, or of the closing bracket."""
    at = _skip_space(data, end)
    return _skip_space(data, at + 1) if data[at : at + 1] == b"," else at


def _skip_space(data: bytes, at: int) -> int:
    found = _SPACE.match(data, at)
    return found.end() if found else at


def _skip(data: bytes, start: int) -> int:
    """Return the end of the value that begins at `start`, once it is checked against JSON's grammar.

    `expected` is what may come next: a value, a key, a colon, or what follows a value.
    """
    open_: list[int] = []
    expected, at = "value", start
    for _ in range(MOST_TOKENS):
        token = _TOKEN.match(data, at)
        if token is None:
            raise JsonError(_missing(data, at), _skip_space(data, at))
        expected = _step(token, expected, open_)
        at = token.end()
        if not open_ and expected == "next":
            return at
    raise JsonError(f"more than {MOST_TOKENS:,} values", start)


def _step(token: re.Match[bytes], expected: str, open_: list[int]) -> str:
    """Return the kinds of token that may follow a token."""
    sign = token["sign"]
    if sign is None:
        if expected in ("value", "first value"):
            return "next"
        if expected in ("key", "first key") and token["string"] is not None:
            return "colon"
        raise JsonError("a value is out of place", token.start(token.lastgroup or 0))
    if sign in b"[{" and expected in ("value", "first value"):
        open_.append(sign[0])
        if len(open_) > DEEPEST:
            raise JsonError("nested too deeply", token.start("sign"))
        return "first value" if sign == b"[" else "first key"
    if sign in b"]}":
        _close(token, expected, open_)
        return "next"
    if sign == b":" and expected == "colon":
        return "value"
    if sign == b"," and expected == "next" and open_:
        return "value" if open_[-1] == ord("[") else "key"
    raise JsonError(f"`{sign.decode()}` is out of place", token.start("sign"))


def _close(token: re.Match[bytes], expected: str, open_: list[int]) -> None:
    opened, fits = ord("[") if token["sign"] == b"]" else ord("{"), expected in ("next", _FIRST[token["sign"]])
    if not open_ or open_.pop() != opened or not fits:
        raise JsonError(f"`{token['sign'].decode()}` is out of place", token.start("sign"))


_FIRST: Final = {b"]": "first value", b"}": "first key"}


def _missing(data: bytes, at: int) -> str:
    at = _skip_space(data, at)
    if at >= len(data):
        return "ends in the middle"
    return "a string that does not end" if data[at : at + 1] == b'"' else "no JSON"


_PYTHON_CELLS: Final = frozenset({"capture", "time", "timeit", "prun", "memit", "mprun", "debug"})
"""Cell magics whose cell is Python that runs in the notebook; the cell of any other is another program."""

_RUN: Final = re.compile(r"%(?:timeit|time|prun|memit)\b(?:[ \t]+-\w+(?:[ \t]+\d+)?)*[ \t]+(?=\S)")
"""Line magics that run the statement after them, with their options."""

_MOST_CELL_MAGICS: Final = 8
"""Cell magics above one cell that are looked at."""

_CELL: Final = re.compile(r"\s*%%(?P<name>\w+)")
_MAGIC: Final = re.compile(
    r"[ \t]*(?:[!%?]"
    r"|[\w.*]+\?{1,2}[ \t]*$"
    r"|(?:pip|conda|mamba|uv|cd|ls|cat|mkdir|rm|cp|mv|pwd)(?:[ \t]+[-\w./~][^=(]*)?$)"  # known without their `%`
)
_ASSIGNED: Final = re.compile(r"[ \t]*[\w.,\[\]'\"* \t]+(?<![=!<>+*/%&|^-])=[ \t]*(?=[!%])")
_PART: Final = re.compile(
    r"""(?P<string>'''(?:[^'\\]|\\.|'(?!''))*+(?:'''|\Z)|\"""(?:[^"\\]|\\.|"(?!""))*+(?:\"""|\Z)"""
    r"""|'(?:[^'\\\r\n]|\\.)*+'?|"(?:[^"\\\r\n]|\\.)*+"?)"""
    r"|(?P<comment>\#[^\r\n]*+)|(?P<open>[(\[{])|(?P<close>[)\]}])|(?P<joined>\\(?:\r\n|\n|\r))|(?P<end>\r\n|\n|\r)",
    re.DOTALL,
)
_BLANK: Final = re.compile(r"[^\r\n]")


def python_of(cell: str) -> str | None:
    """The Python in a cell, with the lines and characters of the cell; None for a cell in another language."""
    text = cell
    for _ in range(_MOST_CELL_MAGICS):
        found = _CELL.match(text)
        if found is None:
            break
        if found["name"] not in _PYTHON_CELLS:
            return None
        end = LINE_END.search(text, found.end())
        text = _blanked(text[: end.start() if end else len(text)]) + text[end.start() if end else len(text) :]
    return text if parses(text) else _without_magics(text)


def parses(text: str) -> bool:
    """Return whether a text is a Python program."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True


def _without_magics(text: str) -> str:
    """The text with what is at the beginning of a statement, and is for IPython, made a statement of Python."""
    parts, at = [], 0
    while at < len(text):
        end = _line_end(text, at)
        line = text[at:end]
        replacement = _replacement(line)
        if replacement is None:
            end = _statement_end(text, at)
            parts.append(text[at:end])
        else:
            end = _continued(text, end)
            parts.append(replacement + _blanked(text[at + len(replacement) : end]))
        at = end
        if newline := LINE_END.match(text, at):
            parts.append(newline[0])
            at = newline.end()
    return "".join(parts)


def _replacement(line: str) -> str | None:
    """Return the Python that replaces a line of IPython's; None for a line of Python."""
    if found := _ASSIGNED.match(line):
        return found[0] + "0"
    if not _MAGIC.match(line):
        return None
    indent = line[: len(line) - len(line.lstrip())]
    run = _RUN.match(line, len(indent))
    if run and parses(f"0;{line[run.end() :]}"):
        return f"{indent}0{' ' * (run.end() - len(indent) - 2)};{line[run.end() :]}"
    return f"{indent}0"


def _statement_end(text: str, at: int) -> int:
    """Return the end of the line that ends the statement: not in brackets, a string, or after a backslash."""
    depth = 0
    for part in _PART.finditer(text, at):
        if part["open"]:
            depth += 1
        elif part["close"]:
            depth = max(depth - 1, 0)
        elif part["end"] and not depth:
            return part.start()
    return len(text)


def _continued(text: str, end: int) -> int:
    """Return the end of a line of IPython's, with the lines that a backslash joins to it."""
    while text.endswith("\\", 0, end) and end < len(text):
        newline = LINE_END.match(text, end)
        end = _line_end(text, newline.end() if newline else len(text))
    return end


def _line_end(text: str, at: int) -> int:
    found = LINE_END.search(text, at)
    return found.start() if found else len(text)


def _blanked(text: str) -> str:
    return _BLANK.sub(" ", text)
