"""Keep each different stack once: a history has a hundred thousand entries and a few hundred stacks."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from oomdoctor.diagnosis.snapshot.raw import Frame, Stack

if TYPE_CHECKING:
    from collections.abc import Callable

_MOST_FRAMES: Final = 1000  # Python itself stops at a thousand
_LONGEST_TEXT: Final = 1000
_LARGEST_LINE: Final = 1 << 31
# What `stacks="all"` adds: frames of C and C++, with the library where the compiler left no file.
_NATIVE: Final = re.compile(
    r"^$|\?\?|\.(?:c|cc|cpp|cxx|cu|cuh|h|hpp|inl|S|s|o|a|so|pyx|dylib|dll|pyd|exe)(?:\.\d{1,9}){0,9}$|(?:^|/)python[\d.]{0,9}$"
)


class StackTable:
    """Numbers for stacks.

    Args:
        spend: Called with the number of parts that are looked at.
    """

    def __init__(self, spend: Callable[[int], None]) -> None:
        self._spend = spend
        self._numbers: dict[Stack, int] = {(): 0}
        # Snapshots share equal frames, so that most of the work is to find out that it has been done before. The parts
        # live as long as the data that is being read, and so do their identities.
        self._frames: dict[int, Frame | None] = {}
        self._by_list: dict[int, int] = {}
        self._by_frames: dict[tuple[int, ...], int] = {}

    def index(self, frames: Any) -> int:  # noqa: ANN401 - what a file holds
        """The number of a stack; what is not a list of frames is the empty stack."""
        if not isinstance(frames, list) or not frames:
            return 0
        number = self._by_list.get(id(frames))
        if number is None:
            number = self._by_list[id(frames)] = self._number_of_list(frames)
        return number

    def stacks(self) -> tuple[Stack, ...]:
        """Every stack, by number."""
        return tuple(self._numbers)

    def _number_of_list(self, frames: list[Any]) -> int:
        self._spend(len(frames))
        frames = frames[:_MOST_FRAMES]
        key = tuple(map(id, frames))
        number = self._by_frames.get(key)
        if number is None:
            number = self._by_frames[key] = self._number_of(frames)
        return number

    def _number_of(self, frames: list[Any]) -> int:
        known = self._frames
        found = []
        for item in frames:
            if id(item) not in known:
                known[id(item)] = _frame(item)
            frame = known[id(item)]
            if frame is not None:
                found.append(frame)
        return self._numbers.setdefault(tuple(found), len(self._numbers))


def _frame(item: object) -> Frame | None:
    if not isinstance(item, dict):
        return None
    function, path, line = item.get("name"), item.get("filename"), item.get("line")
    if not isinstance(function, str) or not isinstance(path, str) or type(line) is not int:
        return None
    path = path[:_LONGEST_TEXT]
    if function == "??" or not 0 <= line < _LARGEST_LINE or _NATIVE.search(path):
        return None
    return Frame(function[:_LONGEST_TEXT], path, line)
