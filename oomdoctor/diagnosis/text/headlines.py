"""The last line of a traceback, `SomeError: what happened`, wherever a log has put it; and what is no more than talk.

Programs, comments and instructions mention errors too. What makes the difference is what stands before the words: an
exception's type or a log record's prefix in an error, a sentence or code in everything else.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from oomdoctor.diagnosis.text.joining import bare

if TYPE_CHECKING:
    from collections.abc import Sequence

_NAME: Final = r"(?:[A-Za-z_]\w{0,60}\.){0,8}[A-Za-z_]\w{0,80}"
_ENDINGS: Final = r"(?:Error|Exception|Interrupt|Exit|OutOfResources|BadAlloc|Timeout|Killed)"
_HEADLINE: Final = re.compile(
    rf"(?<![\w.'\"])(?P<type>(?:[A-Za-z_]\w{{0,60}}\.){{0,8}}\w{{0,80}}?{_ENDINGS})(?: ?\([^()]{{0,80}}\))?:(?!:)"
    r"|(?<![\w.])what\(\):"
)
_ALONE: Final = re.compile(rf"(?P<type>{_NAME})(?::.*)?")
_MEMORY_TYPE: Final = re.compile(r"(?P<type>(?:[A-Za-z_]\w{0,60}\.){0,8}\w{0,60}MemoryError):?")
_SECOND_LINE: Final = re.compile(r"(?:CUDA|HIP) kernel errors might be asynchronously reported")
_FRAME: Final = re.compile(r'\s*File "|Traceback \(most recent call last\)')
_LINES_OF_A_FRAME: Final = 6  # between a frame's line and the error: code, markers, notes

_CODE: Final = re.compile(
    r"^(?:except|raise|define|if|elif|assert|return|def|class|import|from|print|throw|case|catch|with|for|while|#define)\b"
    r"|\b(?:in|raise|except|print|logger\.\w{1,12}|pytest\.raises)\b ?\(?[^ ]{0,40}$"
)
_AS_CODE: Final = re.compile(r"(?:Error|Exception)\(['\"]$")  # an exception that a log prints as code
# A quotation, unless it is the value in a record.
_QUOTED: Final = re.compile(r"(?<![:=] )(?<![:=])['\"](?:[\w.]{0,80}: ?)?$|[(=\[]$")
# Documentation of an exception: `ValueError: If the size is negative.`
_DESCRIBES: Final = re.compile(
    r"\s{0,3}(?:(?:If|When|Raised|In case|Whenever)\b"
    r"|[\w ]{0,60}(?:out of memory) (?:is|are|errors?|occurs|happens|means|arises|appears) )"
)
_STATEMENT: Final = re.compile(r"raise \w{1,80}\(.{0,500}[\"')]\s{1,4}$")  # a statement that was joined with its error
_QUOTED_WHOLE: Final = re.compile(r"([\"'])(?P<inside>[^\"']{1,2000})\1(?:\.(?:\s.*)?)?")
_RECORD: Final = re.compile(rf"\W{{0,6}}Exception Type:\W{{1,4}}(?P<type>{_NAME})\W{{0,3}}")  # a report's field
_PROSE: Final = re.compile(
    r"\b(?:if|when|you|your|avoid\w{0,3}|prevent\w{0,3}|fix\w{0,3}|handl\w{1,4}|may|might|could|would|should|can|such|like"
    r"|common|typical\w{0,2}|without|whether|unless|instead|catch\w{0,3}|cause[sd]?|see|get|getting)\b",
    re.IGNORECASE,
)
_PREFIX_ENDS: Final = re.compile(r"[:\]|>)]\s|\s-\s|[❌✗✘!]\s?")
_TALK_FOLLOWS: Final = re.compile(
    r"\s{1,3}(?:errors?|issues?|problems?|exceptions?|messages?|when|while|if|because|happens|occurs|means|arises|appears|can|may|might|will"
    r"|should|and|or|is|in|for|with|despite|even|during training[,.]|caught|handling|crash\w{0,3})\b"
    r"|\W{0,4}(?:retry|reduc|falling back|fall back|skipp|recover|trying again|attempting|try )"
    r"|['\"]?\s?(?:\)|in\b|not in\b|:$)|['\"]{0,2}\?",
    re.IGNORECASE,
)


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
    line = bare(lines[at])
    alone = _ALONE.fullmatch(line)
    if alone is not None and (_ends_a_traceback(lines, at) or _MEMORY_TYPE.fullmatch(line) is not None):
        return Headline(alone["type"], 0, line[alone.end("type") + 1 :].strip())
    record = _RECORD.fullmatch(line)
    if record is not None:
        return Headline(record["type"], record.start("type"), "")
    whole = _QUOTED_WHOLE.fullmatch(line)
    if whole is not None:
        line = whole["inside"]
    match = _HEADLINE.search(line) if whole is None else _HEADLINE.match(line)
    if match is None or (is_talk(_STATEMENT.sub("", line[: match.start()])) and not _goes_on(lines, at)):
        return None
    if _DESCRIBES.match(line, match.end()) is not None:
        return None
    return Headline(match["type"] or "", match.start() + (whole is not None), line[match.end() :].strip())


def _goes_on(lines: Sequence[str], at: int) -> bool:
    """Tell whether the next line is what PyTorch prints below an error of CUDA or HIP, whatever stands before it."""
    return at + 1 < len(lines) and _SECOND_LINE.match(bare(lines[at + 1])) is not None


def _ends_a_traceback(lines: Sequence[str], at: int) -> bool:
    """Tell whether the line stands where a traceback names its exception, whatever the type is called."""
    if lines[at][:1].isspace() or at == 0 or not lines[at - 1][:1].isspace():
        return False
    return any(_FRAME.match(bare(line)) is not None for line in lines[max(0, at - _LINES_OF_A_FRAME) : at])


def is_talk(before: str, after: str = "") -> bool:
    """Tell whether words are part of a sentence or of code, by what stands before and behind them in their line."""
    if _AS_CODE.search(before) is not None:
        return is_sentence(before)
    return is_sentence(before) or _QUOTED.search(before) is not None or _TALK_FOLLOWS.match(after) is not None


def is_sentence(before: str) -> bool:
    """Tell whether the beginning of a line is that of a sentence or of code."""
    return _CODE.search(before.lstrip()) is not None or _PROSE.search(_own_words(before)) is not None


def _own_words(before: str) -> str:
    """What is left of a line's beginning without time stamps, levels and names of loggers."""
    end = 0
    for match in _PREFIX_ENDS.finditer(before):
        end = match.end()
    return before[end:]
