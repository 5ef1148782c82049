"""GitHub-flavoured Markdown from text that nobody vouches for.

The text of a document may come from anyone whose pull request is being judged, so none of it can become markup: it is
shown in code spans, or with every character that could mean something escaped.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from oomdoctor.report.plain_text import LONGEST_TEXT, shortened

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence


_CODE_SPAN = re.compile(r"(?<!`)`( ?[^` ][^`]*)`(?!`)")
_INLINE_MARKUP = re.compile(r"[\\`*_\[\]()!~$#]")
_BLOCK_MARKUP = re.compile(r"^(?:[-+=>]|:(?=:)|\d+(?=[.)](?:\s|$)))")
_BACKTICKS = re.compile(r"`+")

# GitHub makes links of these after no backslash protects them any longer; an invisible space inside does.
_AUTOLINKED = re.compile(r"@(?=\w)|#(?=\d)|gh-(?=\d)|:(?=//)|www(?=\.)", re.IGNORECASE)
_ZERO_WIDTH_SPACE = "\u200b"

# In a job's output GitHub's runner takes a line that begins with `::`, or has `##[`, for a command.
_COMMAND = re.compile(r"^\s*:(?=:)|##(?=\[)", re.MULTILINE)


def code(text: str) -> str:
    """Return one code span that shows `text`, whatever it holds; empty where `text` shows nothing."""
    cleaned = shortened(text, LONGEST_TEXT)
    if not cleaned:
        return ""
    fence = _fence(cleaned, 1)
    padding = " " if "`" in (cleaned[0], cleaned[-1]) else ""
    return f"{fence}{padding}{_no_command(cleaned)}{padding}{fence}"


def prose(text: str) -> str:
    """Return `text` as it reads: its pairs of backticks stay code, everything else that could be markup is escaped."""
    outside_and_inside = _CODE_SPAN.split(shortened(text, LONGEST_TEXT))
    return "".join(code(part) if index % 2 else _escape(part) for index, part in enumerate(outside_and_inside))


def code_block(text: str) -> str:
    """Return a fenced block that shows one line of `text`."""
    return code_lines([shortened(text, LONGEST_TEXT)])


def code_lines(lines: Iterable[str]) -> str:
    """Return a fenced block that shows lines, of which none has a character that cannot be seen."""
    text = _no_command("\n".join(lines))
    fence = _fence(text, 3)
    return f"{fence}text\n{text}\n{fence}"


def _no_command(text: str) -> str:
    return _COMMAND.sub(rf"\g<0>{_ZERO_WIDTH_SPACE}", text)


def _escape(text: str) -> str:
    text = _AUTOLINKED.sub(rf"\g<0>{_ZERO_WIDTH_SPACE}", text)
    text = _INLINE_MARKUP.sub(r"\\\g<0>", text)
    text = _BLOCK_MARKUP.sub(_escape_start, text)
    return text.replace("&", "&amp;").replace("<", "&lt;")


def _escape_start(match: re.Match[str]) -> str:
    start = match[0]
    return f"{start}\\" if start.isdecimal() else f"\\{start}"


def _fence(text: str, least: int) -> str:
    longest = max((len(run) for run in _BACKTICKS.findall(text)), default=0)
    return "`" * max(least, longest + 1)


def table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table; a heading that begins with `>` is of a column of numbers."""
    rules = ["--:" if heading.startswith(">") else "---" for heading in headings]
    lines = [[heading.removeprefix(">") for heading in headings], rules, *rows]
    # Within a table a bar ends the cell, even inside a code span, unless it is escaped.
    return "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines)


def fitting(rows: Iterable[tuple[str, ...]], room: int) -> Iterator[tuple[str, ...]]:
    """Yield the first rows of a table that so many characters have room for."""
    for row in rows:
        room -= row_size(row)
        if room < 0:
            return
        yield row


def warning_block(texts: Iterable[str], count: int, room: int) -> Iterator[str]:
    """Yield one block of `count` warnings, as many as so many characters have room for; none where there are none.

    Texts that there is no room for are not made.
    """
    if count:
        shown = [text for (text,) in fitting(((text,) for text in texts), room)]
        more = [f"... and {count - len(shown)} more."] if len(shown) < count else []
        yield "\n".join(["> [!WARNING]", *(f"> - {text}" for text in [*shown, *more])])


def row_size(row: tuple[str, ...]) -> int:
    """Return characters of a table's row at most: bars between its cells, and a backslash before each bar within."""
    return sum(len(cell) + cell.count("|") + len(" | ") for cell in row)


def folded(title: str, body: str) -> str:
    """Return a body that GitHub shows once its title is clicked."""
    return f"<details>\n<summary>{title}</summary>\n\n{body}\n\n</details>"
