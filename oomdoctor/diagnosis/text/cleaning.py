"""What a program printed, without what terminals, loggers, launchers and CI put around it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

LONGEST_LINE: Final = 8192
"""Characters of a line that are kept."""

# Complete sequences; then colours whose escape character was lost or spelled out on the way into a web page.
_ESCAPES: Final = re.compile(
    r"\x1b\[[0-?]{0,64}[ -/]{0,8}[@-~]"
    r"|\x1b[\]_P^][^\x07\x1b]{0,4096}(?:\x07|\x1b\\)?"
    r"|\x1b[ -/]{0,4}[0-~]?"
    r"|(?:\^\[|␛|\\x1b|\\033|\\u001b|#x1[bB];?)\[[\d;]{0,32}[A-Za-z]"
    r"|(?<![\w\])])\[(?:\d{1,3};){0,8}(?:0|1|2|4|[39][0-7]|38|39|49)?m(?![/\]]|[\w./-]{1,80}(?::\d{1,6})?\])"
)
_CONTROL: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b\u200e\u200f\ufeff]")

# Who adds a blank of its own has it taken away again; the rest is the program's indentation.
_RANK: Final = re.compile(
    r"[ ]{0,2}(?:(?:[\w.-]{1,64}:[ ]?)?\[(?:rank|RANK|Rank)[ ]?(?P<rank>\d{1,6})\]:?[ ]?"
    r"|\[default(?P<torchrun>\d{1,6})\]:"
    r"|\[[\w.-]{0,40}\d{0,6}\|(?P<elastic>\d{1,6})\]:"
    r"|\[\d{1,6},(?P<mpi>\d{1,6})\]<std(?:err|out|diag)>:"
    r"|(?:rank|RANK|Rank)[ ]?(?P<plain>\d{1,6}):[ ]?"
    r"|\(\w{1,40}[ ]rank=(?P<vllm>\d{1,6})(?:[ ]pid=\d{1,10})?\)[ ]?"
    r"|(?P<srun>\d{1,5}):[ ])"
)

_LEVEL: Final = r"(?:TRACE|DEBUG|INFO|WARN(?:ING)?|ERROR|CRITICAL|FATAL|SEVERE)"
_DATE: Final = r"\d{4}[-/]\d\d[-/]\d\d"
_TIME: Final = r"\d{1,2}:\d\d:\d\d(?:[.,]\d{1,9})?(?:[ ]?(?:Z|UTC|[AP]M)|[+-]\d\d:?\d\d)?"
_STAMP: Final = rf"[\[(<]?(?:{_DATE}[T_ -]{{1,2}}{_TIME}|{_DATE}|(?:\d\d[/-]\d\d[ -]{{1,3}})?{_TIME})[\])>]?"

_SYSLOG: Final = r"[A-Z][a-z]{2}[ ]{1,2}\d{1,2}[ ]\d\d:\d\d:\d\d[ ][\w.-]{1,64}[ ][\w./()-]{1,64}(?:\[\d{1,10}\])?:[ ]"

_PREFIXES: Final = tuple(
    re.compile(pattern)
    for pattern in (
        rf"[ ]{{0,1}}{_STAMP}(?:[ ]?[|:-](?=[ ])|:(?=\S))?[ ]?",
        rf"(?:[|-][ ])?[\[(]?{_LEVEL}[\])]?[ ]{{0,8}}(?:\|[ ]?|(?={_STAMP}))",  # `INFO     | …`, `ERROR 11-18 18:07`
        rf"\[{_LEVEL}\][ ]{{0,8}}",
        rf"[ ]?[|-][ ]{_LEVEL}[ ]{{0,8}}[|-][ ]",
        r"[\w.<>-]{1,120}:[\w.<>-]{1,80}:\d{1,6}[ ][|-][ ]",  # `pkg.module:function:121 - `
        r"[IWEF]\d{4}[ ]\d\d:\d\d:\d\d\.\d{1,9}[ ]{1,8}\d{1,10}[ ][\w./-]{1,120}:\d{1,6}\][ ]?",  # glog
        _SYSLOG,
        r"[a-zA-Z][\w.-]{0,60}-\d{1,4}[ ]{1,30}\|[ ]?",  # docker compose
        r"\[pod/[\w./-]{1,120}\][ ]?",
        r"\([\w.-]{1,80}[ ]pid=\d{1,10}(?:,[ ]ip=[\d.]{1,20})?\)[ ]?",  # Ray
        r"\[?[\w/-]{1,80}\.py:\d{1,6}\](?:[ ]|$)",  # vLLM
        r"##\[(?:error|warning|debug|group)\]",
        r"wandb:[ ]",
        r"E[ ]{3}",  # pytest
        r"[ ]{0,3}(?:#{1,6}|//{1,3}|>{1,4}|\*{1,3}|[•‣·])(?![\w/*#>])[ ]?",
        r"[ ]{0,3}>{1,4}(?=\w)",  # a quotation without a space
        r"[ ]{0,3}-[ ](?=\w)",
        r"[ ]{0,3}`{1,3}",
    )
)
_MOST_PREFIXES: Final = 8

_BOX_LEFT: Final = re.compile(r"[ ]{0,8}[│┃║╭╰┌└├╞]{1,2}[─━═]{0,400}[ ]?")
_BOX_RIGHT: Final = re.compile(r"[ ]{0,400}[─━═]{0,400}[│┃║╮╯┐┘┤╡]{1,2}[ ]{0,8}$")
_BOX: Final = frozenset("│┃║╭╮╰╯┌┐└┘├┤")

# A progress bar stays on its line when the program dies, and the error is printed right after it.
_GLUED: Final = re.compile(r"(?:it|s|B|ex|step|batch)(?:/(?:s|it))[^\]\n]{0,400}\](?=[A-Z(])")


@dataclass(frozen=True, slots=True)
class CleanLine:
    """A line of a program's output.

    Attributes:
        text: The line without prefixes, colours and boxes, its indentation kept.
        rank: The process that printed it, where a prefix says so.
    """

    text: str
    rank: int | None


def clean(raw: bytes) -> CleanLine:
    """Clean one line, without its end; never raises."""
    text = raw[: 4 * LONGEST_LINE].decode(errors="replace")
    if "\x1b" in text or "[" in text or "#x1" in text:
        text = _ESCAPES.sub("", text)
    text = _CONTROL.sub("", text)
    text, rank = _without_prefixes(text)
    if not _BOX.isdisjoint(text):
        text = _without_box(text)
    text = text.rstrip()
    if text.count("`") % 2 == 1:  # the other one stood before the text
        text = text.removesuffix("`")
    return CleanLine(text[:LONGEST_LINE], rank)


def unglue(text: str) -> tuple[str, ...]:
    """Part an error from the progress bar in front of it."""
    match = _GLUED.search(text)
    return (text,) if match is None else (text[: match.end()], text[match.end() :])


def segments(line: bytes) -> list[bytes]:
    """Part what carriage returns wrote over each other; of a progress bar's states only the last is kept."""
    if b"\r" not in line:
        return [line]
    parts = [part for part in line.split(b"\r") if part.strip()]
    last = len(parts) - 1
    return [part for at, part in enumerate(parts) if at == last or b"%|" not in part or b"%|" not in parts[at + 1]]


def _without_prefixes(text: str) -> tuple[str, int | None]:
    rank: int | None = None
    at = 0
    for _ in range(_MOST_PREFIXES):
        match = _RANK.match(text, at)
        if match is not None:
            number = next(group for group in match.groups() if group is not None)
            rank = int(number) if rank is None else rank
        else:
            match = next((found for prefix in _PREFIXES if (found := prefix.match(text, at))), None)
        if match is None or match.end() == at:
            break
        at = match.end()
    return text[at:], rank


def _without_box(text: str) -> str:
    inner = _BOX_RIGHT.sub("", text, count=1)
    left = _BOX_LEFT.match(inner)
    return inner if left is None else inner[left.end() :]
