"""What notebooks have beside Python: lines and cells for IPython, put out of the way so that all else stays."""

from __future__ import annotations

import ast
import re
import warnings
from typing import Final

from oomdoctor.lint.positions import LINE_END

_PYTHON_CELLS: Final = frozenset({"capture", "time", "timeit", "prun", "memit", "mprun", "debug"})
"""Cell magics whose cell is Python that runs in the notebook; the cell of any other is another program."""

_RUN: Final = re.compile(r"%(?:timeit|time|prun|memit)\b(?:[ \t]+-\w+(?:[ \t]+\d+)?)*[ \t]+(?=\S)")
"""Line magics that run the statement after them, with their options."""

_MOST_CELL_MAGICS: Final = 8
"""As many above one cell."""

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
    """Whether a text is a program."""
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
    """What stands for a line; None where the line is Python's own."""
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
    """Where the line ends that ends the statement: not in brackets, not in a string, not after a backslash."""
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
    """Where a line for IPython ends, with those that it is continued on by a backslash."""
    while text.endswith("\\", 0, end) and end < len(text):
        newline = LINE_END.match(text, end)
        end = _line_end(text, newline.end() if newline else len(text))
    return end


def _line_end(text: str, at: int) -> int:
    found = LINE_END.search(text, at)
    return found.start() if found else len(text)


def _blanked(text: str) -> str:
    return _BLANK.sub(" ", text)
