"""The headline of an error, `SomeError: what happened`, and how far its message reaches over wrapped lines.

Wrapped lines are joined in two ways: without any white space to read numbers, so that it does not matter where a line
was broken, in the middle of a word included; and with single spaces to show the message.

Programs, comments and instructions mention errors too. The text before the words tells them apart: an exception's type
or a log record's prefix in an error, a sentence or code in everything else.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from oomdoctor.diagnose.tables import Patterns

if TYPE_CHECKING:
    from collections.abc import Sequence


_PATTERNS: Final = Patterns(__name__)
LONGEST_TEXT: Final = 2000  # characters of a message that are kept

_LONGEST_LINE: Final = 8192  # characters of a line that are looked at

# What stands around a quoted message: comment signs, boxes, bullets, Markdown.
_LEADING: Final = re.compile(r"(?:[\s│┃|>#*•]|//|--(?=\s)|-(?=\s)|;(?=\s)){0,40}")

_TYPOGRAPHY: Final = str.maketrans({
    "\u2018": "'", "\u2019": "'", "\u201c": '"', "\u201d": '"', "\u2011": "-", "\u00a0": " ", "\u202f": " ",
    "\u200b": None, "\u200c": None, "\u200d": None, "\u2060": None, "\ufeff": None, "`": None, "\x00": None,
    "\uff08": "(", "\uff09": ")", "\uff1a": ": ", "\uff1b": ";", "\uff0c": ",",
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class CompactText:
    """Lines in lower case without white space, as one text.

    Attributes:
        text: The text.
        first: Index of the first line.
        starts: Offset in the text at which each line begins.
    """

    text: str
    first: int
    starts: tuple[int, ...]

    def line_of(self, offset: int) -> int:
        """Return the index of the line that a character of the text comes from."""
        return self.first + bisect_right(self.starts, offset) - 1


def undecorated(line: str) -> str:
    """Take off what a quotation puts around a line, and replace typographic signs by plain ones."""
    plain = line[:_LONGEST_LINE].translate(_TYPOGRAPHY)
    leading = _LEADING.match(plain)
    start = leading.end() if leading is not None else 0
    return plain[start:].rstrip(" \t\r\n\\|│┃")


def compact(lines: Sequence[str], first: int, stop: int) -> CompactText:
    """Put lines `first` to `stop`, exclusive, together without white space."""
    parts, starts, offset = [], [], 0
    for line in lines[first:stop]:
        part = "".join(undecorated(line).lower().split())
        starts.append(offset)
        parts.append(part)
        offset += len(part)
    return CompactText(text="".join(parts), first=first, starts=tuple(starts))


def join(lines: Sequence[str]) -> str:
    """Put lines together with single spaces, cut after `LONGEST_TEXT` characters."""
    text = " ".join(word for line in lines for word in undecorated(line).split())
    return text if len(text) <= LONGEST_TEXT else f"{text[: LONGEST_TEXT - 1]}…"


_NAME: Final = r"(?:[A-Za-z_]\w{0,60}\.){0,8}[A-Za-z_]\w{0,80}"
_HEADLINE: Final = _PATTERNS("headline")
_ALONE: Final = re.compile(rf"(?P<type>{_NAME})(?::.*)?")
_MEMORY_TYPE: Final = re.compile(r"(?P<type>(?:[A-Za-z_]\w{0,60}\.){0,8}\w{0,60}MemoryError):?")
_BARE_TYPE: Final = re.compile(r"(?:[A-Za-z_]\w{0,60}\.){0,8}\w{0,80}Error:")  # whose message begins below it
_SECOND_LINE: Final = re.compile(r"(?:CUDA|HIP) kernel errors might be asynchronously reported")
_FRAME: Final = re.compile(r'\s*File "|Traceback \(most recent call last\)')
_LINES_OF_A_FRAME: Final = 6  # between a frame's line and the error: code, markers, notes

_CODE: Final = _PATTERNS("code")
_AS_CODE: Final = re.compile(r"(?:Error|Exception)\(['\"]$")  # an exception that a log prints as code
# A quotation, unless it is the value in a record.
_QUOTED: Final = re.compile(r"(?<![:=] )(?<![:=])['\"](?:[\w.]{0,80}: ?)?$|[(=\[]$")
_DESCRIBES: Final = _PATTERNS("describes")
_STATEMENT: Final = re.compile(r"raise \w{1,80}\(.{0,500}[\"')]\s{1,4}$")  # a statement that was joined with its error
_FULL_QUOTATION: Final = re.compile(r"([\"'])(?P<inside>[^\"']{1,2000})\1(?:\.(?:\s.*)?)?")
_RECORD: Final = re.compile(rf"\W{{0,6}}Exception Type:\W{{1,4}}(?P<type>{_NAME})\W{{0,3}}")  # a report's field
_PROSE: Final = _PATTERNS("prose", re.IGNORECASE)
_PREFIX_ENDS: Final = re.compile(r"[:\]|>)]\s|\s-\s|[❌✗✘!]\s?")
_TALK_FOLLOWS: Final = _PATTERNS("talk_follows", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Headline:
    """An exception's type and text in one line.

    Attributes:
        type_name: As printed, such as `torch.OutOfMemoryError`; empty for C++'s `what():`.
        start: Where it begins in the bare line.
        text: What follows the colon.
    """

    type_name: str
    start: int
    text: str


def read_headline(lines: Sequence[str], at: int) -> Headline | None:
    """Read line `at` as the line in which an exception is named; None where it is none."""
    line = undecorated(lines[at])
    alone = _ALONE.fullmatch(line)
    if alone is not None and (_ends_a_traceback(lines, at) or _MEMORY_TYPE.fullmatch(line) is not None):
        return Headline(alone["type"], 0, line[alone.end("type") + 1 :].strip())
    record = _RECORD.fullmatch(line)
    if record is not None:
        return Headline(record["type"], record.start("type"), "")
    whole = _FULL_QUOTATION.fullmatch(line)
    if whole is not None:
        line = whole["inside"]
    match = _HEADLINE.search(line) if whole is None else _HEADLINE.match(line)
    # what PyTorch prints below an error of CUDA or HIP tells one, whatever stands before it
    continues = at + 1 < len(lines) and _SECOND_LINE.match(undecorated(lines[at + 1])) is not None
    if match is None or (is_mention(_STATEMENT.sub("", line[: match.start()])) and not continues):
        return None
    if _DESCRIBES.match(line, match.end()) is not None:
        return None
    return Headline(match["type"] or "", match.start() + (whole is not None), line[match.end() :].strip())


def _ends_a_traceback(lines: Sequence[str], at: int) -> bool:
    """Return whether the line stands where a traceback names its exception, whatever the type is called."""
    if lines[at][:1].isspace() or at == 0 or not lines[at - 1][:1].isspace():
        return False
    return any(_FRAME.match(undecorated(line)) is not None for line in lines[max(0, at - _LINES_OF_A_FRAME) : at])


def is_mention(before: str, after: str = "") -> bool:
    """Return whether words are part of a sentence or of code, by the text before and behind them in their line."""
    if _AS_CODE.search(before) is not None:
        return is_sentence(before)
    return is_sentence(before) or _QUOTED.search(before) is not None or _TALK_FOLLOWS.match(after) is not None


def is_sentence(before: str) -> bool:
    """Return whether the beginning of a line is that of a sentence or of code."""
    prefixes = [0, *(match.end() for match in _PREFIX_ENDS.finditer(before))]  # time stamps, levels, names of loggers
    return _CODE.search(before.lstrip()) is not None or _PROSE.search(before, prefixes[-1]) is not None


_MOST_LINES: Final = 12
_WRAPS_FROM: Final = 60  # characters; a shorter line was not broken by a terminal

_CONTINUES: Final = _PATTERNS("continues")
_ENDS: Final = _PATTERNS("ends")
_NAMES_AN_ERROR: Final = re.compile(r"\b\w{1,80}(?:Error|Exception): ")
_SENTENCE_ENDS: Final = (".", "!", "?", ":", ";", "。")


def last_line(lines: Sequence[str], first: int) -> int:
    """Index of the last line of the message that begins in line `first`."""
    last = first
    for index in range(first + 1, min(len(lines), first + _MOST_LINES)):
        line = undecorated(lines[index])
        if not line and undecorated(lines[last]).endswith(":"):
            continue  # the message begins below its type, after an empty line
        if not line or not _belongs(undecorated(lines[last]), line):
            break
        last = index
    return last


def _belongs(before: str, line: str) -> bool:
    if _CONTINUES.match(line) is not None or _BARE_TYPE.fullmatch(before) is not None:
        return True
    if _ENDS.match(line) is not None or _NAMES_AN_ERROR.search(line) is not None:
        return False
    return len(before) >= _WRAPS_FROM and not before.endswith(_SENTENCE_ENDS)
