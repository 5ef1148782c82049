"""An error at a line of a window, by itself: what it is, whose memory it is about, its numbers."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from oomdoctor.diagnosis.evidence import Message
from oomdoctor.diagnosis.text.allocators import read_allocator_message
from oomdoctor.diagnosis.text.derived import facts_from
from oomdoctor.diagnosis.text.extent import last_line
from oomdoctor.diagnosis.text.frameworks import read_numbers
from oomdoctor.diagnosis.text.headlines import is_sentence, is_talk, read_headline
from oomdoctor.diagnosis.text.joining import bare, join, squeeze
from oomdoctor.diagnosis.text.kinds import OTHER_ERROR, Kind, kind_of
from oomdoctor.diagnosis.text.notices import is_handled, read_notice
from oomdoctor.oom.table_other import AMBIGUOUS
from oomdoctor.results import Facts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from oomdoctor.diagnosis.text.headlines import Headline

_HEADING: Final = re.compile(r"Out of Memory\b")  # torch writes it in small letters
_NAMED: Final = "nccl-allocation"  # its words quote the driver's, so quotation marks in front of them mean nothing
_SENTENCES: Final = frozenset({"host-notebook"})  # whole sentences, and addressed to the reader
_OPEN: Final = frozenset(row.id for row in AMBIGUOUS)
_NCCL_LINES: Final = 3  # NCCL's lines about one failure stand this close together

# Errors that are printed without a type.
_UNTYPED: Final = re.compile(
    r"(?:CUDA|HIP|cuDNN|NCCL|cuda runtime) error\b.{0,20}:|THCudaCheck FAIL|Segmentation fault|Bus error"
    r"|Memory access fault by GPU|GPU Hang|Fatal Python error|HSA_STATUS_ERROR",
    re.IGNORECASE,
)


def read_error(lines: Sequence[str], at: int) -> Message | None:
    """Read the error that line `at` is a part of; None where it is a part of none."""
    if is_handled(lines[at]):
        return None
    message = read_allocator_message(lines, at)
    if message is not None:
        return message
    headline = read_headline(lines, at)
    found = _read_known(lines, at, headline) or _read_notice(lines, at)
    return found or _read_other(lines, at, headline)


def _read_known(lines: Sequence[str], at: int, headline: Headline | None) -> Message | None:
    """Read an error that the table knows."""
    line = bare(lines[at])
    last = last_line(lines, at)
    type_name = "" if headline is None else headline.type_name
    kind = kind_of(line, type_name)
    if last > at and (kind is None or kind.name in _OPEN):
        own = lines[at : last + 1]
        broken_in_a_word = "".join(bare(part) for part in own)
        kind = kind_of(join(own), type_name) or kind_of(broken_in_a_word, type_name) or kind
    if kind is None:
        return None
    facts = _facts(kind, lines, at, last)
    if headline is None and kind.name != _NAMED and facts == Facts() and not _is_said(kind, line):
        return None
    return _message(kind, facts, lines[at : last + 1], at, headline)


def _is_said(kind: Kind, line: str) -> bool:
    """Tell whether the words of a line without a type or numbers are an error's own."""
    if kind.start is None or kind.end is None:
        return False
    words = line[kind.start : kind.end]
    if _HEADING.search(words) is not None:
        return False
    # What goes on in plain words may be a sentence; behind the name of a status a message does go on.
    after = line[kind.end :] if words.lower().endswith(" memory") else ""
    return not is_talk(line[: kind.start], after)


def _read_notice(lines: Sequence[str], at: int) -> Message | None:
    line = bare(lines[at])
    notice = read_notice(line)
    if notice is None or (notice[0] not in _SENTENCES and is_sentence(line[: notice[1]])):
        return None
    kind = Kind(notice[0], is_oom=True, device="cpu")
    return _message(kind, Facts(), lines[at : last_line(lines, at) + 1], at)


def _read_other(lines: Sequence[str], at: int, headline: Headline | None) -> Message | None:
    """Read an error that nothing here knows; it is told so that the reader sees what it was."""
    line = bare(lines[at])
    untyped = _UNTYPED.search(line)
    if headline is not None and headline.type_name == "Error" and not headline.text:
        return None  # what somebody wrote above an error
    if headline is None and (
        kind_of(line) is not None or untyped is None or is_talk(line[: untyped.start()], line[untyped.end() :])
    ):
        return None
    kind = Kind(OTHER_ERROR, is_oom=False, device="none")
    return _message(kind, Facts(), lines[at : last_line(lines, at) + 1], at, headline)


def _facts(kind: Kind, lines: Sequence[str], first: int, last: int) -> Facts:
    if not kind.is_oom:
        return Facts()
    nearby = list(lines[first : last + 1])
    if kind.name == "nccl-allocation":
        around = lines[max(0, first - _NCCL_LINES) : last + 1 + _NCCL_LINES]
        nearby += [line for line in around if "NCCL WARN" in line]
    return facts_from(read_numbers(kind.name, squeeze(nearby, 0, len(nearby)).text))


def _message(kind: Kind, facts: Facts, own: Sequence[str], first: int, headline: Headline | None = None) -> Message:
    start = 0 if headline is None else headline.start
    return Message(
        kind=kind.name,
        is_oom=kind.is_oom,
        device=kind.device,
        text=join([bare(own[0])[start:], *own[1:]]),
        facts=facts,
        first=first,
        last=first + len(own) - 1,
    )
