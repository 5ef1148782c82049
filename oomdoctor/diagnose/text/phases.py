"""The phase of training that a traceback shows, and the owner of a source file: user or library.

Every frame is compared with the signs of `phases.toml`, first sign first, and has at most one phase. The innermost
frame with a phase decides, except where the table says that an outer one takes precedence.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

from oomdoctor.diagnose.tables import compiled, read_table
from oomdoctor.results import TrainingPhase

if TYPE_CHECKING:
    from collections.abc import Sequence

    from oomdoctor.results import SourceLine


_TABLE = read_table(__file__)
_LONGEST_PATH = 4096

_TYPED_BY_HAND = compiled(_TABLE["typed_by_hand"])
_CHECKOUTS = "|".join(_TABLE["checkouts"])
_LIBRARY_PLACES = tuple(
    re.compile(place.replace("{checkouts}", _CHECKOUTS), re.IGNORECASE) for place in _TABLE["library_places"]
)
_NATIVE = re.compile(r"\.(?:c|cc|cpp|cxx|cu|cuh|h|hpp|so|dll|pyd|pyx)(?:\.\d+)*(?::\d+)?$", re.IGNORECASE)


def is_library(path: str) -> bool:
    """Return whether a file is not code that a user wrote: a library's, the standard library's, generated, not Python.

    Args:
        path: As a traceback or a memory snapshot prints it, of any operating system.
    """
    plain = path.strip()[:_LONGEST_PATH].replace("\\", "/")
    if _TYPED_BY_HAND.fullmatch(plain):
        return False
    if not plain or plain.startswith(("<", "??", "[")) or _NATIVE.search(plain):
        return True
    return any(place.search(plain) for place in _LIBRARY_PLACES)


def user_line(frames: Sequence[SourceLine]) -> SourceLine | None:
    """The innermost frame that is the user's own code; None where all are libraries'."""
    return next((frame for frame in reversed(frames) if not is_library(frame.path)), None)


@dataclass(frozen=True, slots=True)
class Sign:
    """One sign, as `phases.toml` describes it; of the patterns, all that are given must be found."""

    phase: TrainingPhase
    path: re.Pattern[str] | None
    function: re.Pattern[str] | None
    code: re.Pattern[str] | None
    where: Literal["anywhere", "innermost_sign", "own_innermost"]

    def shown_by(self, path: str, function: str, code: str) -> bool:
        """Return whether a frame shows the sign."""
        return (
            (self.path is None or self.path.search(path) is not None)
            and (self.function is None or self.function.fullmatch(function) is not None)
            and (self.code is None or self.code.search(code) is not None)
        )


def _sign(entry: dict[str, Any]) -> Sign:
    path, function, code = (compiled(entry[key]) if key in entry else None for key in ("path", "function", "code"))
    return Sign(TrainingPhase(entry["phase"]), path, function, code, entry.get("where", "anywhere"))


_SIGNS = tuple(map(_sign, _TABLE["sign"]))
_PRECEDENCE = tuple(
    (TrainingPhase(rule["outer"]), frozenset(map(TrainingPhase, rule["inner"]))) for rule in _TABLE["precedence"]
)
_MESSAGES = tuple((compiled(one["words"], re.IGNORECASE), TrainingPhase(one["phase"])) for one in _TABLE["message"])
_COVERING: Final = frozenset({TrainingPhase.BACKWARD, TrainingPhase.DATA_LOADING})
"""Phases that a line of code alone does not contradict: hooks and datasets may do anything."""

_MOST_FRAMES = 1000
_LONGEST_MESSAGE = 2000


def phase_of(frames: Sequence[SourceLine], message: str) -> TrainingPhase | None:
    """Return the phase that the program was in when it raised an error.

    Args:
        frames: The traceback, outermost first.
        message: The error's words; where they name a phase, they settle it.

    Returns:
        The phase; None where neither tells.
    """
    said = next((phase for words, phase in _MESSAGES if words.search(message[:_LONGEST_MESSAGE])), None)
    if said is not None:
        return said
    outer: list[TrainingPhase] = []
    innermost: Sign | None = None
    for depth, frame in enumerate(reversed(frames[-_MOST_FRAMES:])):
        sign = _sign_of(frame, innermost_frame=depth == 0, innermost_sign=innermost is None)
        if sign is not None and innermost is None:
            innermost = sign
        elif sign is not None:
            outer.append(sign.phase)
    return None if innermost is None else _settled(innermost, outer)


def _settled(innermost: Sign, outer: list[TrainingPhase]) -> TrainingPhase:
    tentative = innermost.where != "anywhere"
    for phase, inner in _PRECEDENCE:
        if phase in outer and (innermost.phase in inner or (tentative and phase in _COVERING)):
            return phase
    return innermost.phase


def _sign_of(frame: SourceLine, *, innermost_frame: bool, innermost_sign: bool) -> Sign | None:
    """The sign that a frame shows.

    Args:
        frame: The frame.
        innermost_frame: Whether no frame lies inside it.
        innermost_sign: Whether no frame inside it shows any sign.
    """
    path = frame.path.replace("\\", "/")
    function = (frame.function or "").rpartition(".")[2]
    code = frame.code or ""
    for sign in _SIGNS:
        if sign.where == "innermost_sign" and not innermost_sign:
            continue
        if sign.where == "own_innermost" and not (innermost_frame and not is_library(frame.path)):
            continue
        if sign.shown_by(path, function, code):
            return sign
    return None
