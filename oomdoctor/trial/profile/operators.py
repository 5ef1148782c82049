"""Note which operator allocates what, and from which of the user's lines. Runs in the worker.

Operators are seen as PyTorch dispatches them, in the backward too. One of the backward belongs to the line whose
operator made its node: autograd numbers nodes in the order in which the forward made them.
"""

from __future__ import annotations

import sys
from bisect import bisect_right
from collections import Counter
from dataclasses import dataclass
from itertools import starmap
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from oomdoctor.results import Category, LineBytes
from oomdoctor.target.contract import is_own_file
from oomdoctor.trial.profile.allocation_log import ORDER, live_at
from oomdoctor.trial.profile.marks import COUNTED, count_now

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import FrameType

    from torch._ops import OpOverload

    from oomdoctor.trial.profile.allocation_log import AllocationLog, ProfiledBlock


@dataclass(frozen=True, slots=True)
class Origin:
    """What allocated a block.

    Attributes:
        operator: Name of the operator, such as `aten::addmm`.
        line: The user's line, as `model.py:12`; None where none of it ran.
        is_sum: Whether it may be autograd's own sum of gradients of one tensor.
    """

    operator: str
    line: str | None
    is_sum: bool = False


Noted: TypeAlias = "Sequence[tuple[int, Origin | None]]"
"""Bytes that each allocation of a trial asked for, and what allocated it; None for no operator."""


class OperatorMarker(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes every operator that allocates or frees.

    Args:
        roots: Directories or files of the user's code.
    """

    def __init__(self, roots: Sequence[Path]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._begins: list[int] = []
        self._ends: list[int] = []
        self._origins: list[Origin] = []
        self._roots = tuple(roots)
        self._own: dict[str, str | None] = {}
        self._numbers: list[int] = []
        self._lines: list[str | None] = []

    def __torch_dispatch__(self, func: OpOverload, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # noqa: ANN401
        """Run an operator, and note what it did to memory."""
        del types
        node = torch._C._current_autograd_node()  # noqa: SLF001 - the only way to it
        line = self._line(node)
        begin, _ = count_now()
        try:
            return func(*args, **(kwargs or {}))
        finally:
            end, _ = count_now()
            if end > begin:
                self._begins.append(begin)
                self._ends.append(end)
                name = func._schema.name  # noqa: SLF001 - with its namespace
                self._origins.append(Origin(name, line, name == "aten::add" and node is not None))

    def allocations(self, start: int, events: Sequence[Mapping[str, Any]]) -> Noted:
        """Return the bytes that each allocation of a history asked for, and what allocated it.

        Args:
            start: Blocks allocated and freed before the history began.
            events: The history.
        """
        found: list[tuple[int, Origin | None]] = []
        count = start
        for event in events:
            if event["action"] == "alloc":
                at = bisect_right(self._begins, count) - 1
                is_inside = at >= 0 and count < self._ends[at]
                found.append((event["size"], self._origins[at] if is_inside else None))
            count += event["action"] in COUNTED
        return found

    def _line(self, node: Any) -> str | None:  # noqa: ANN401 - has no type
        if node is None:
            number = int(torch._C._autograd._get_sequence_nr())  # noqa: SLF001 - the only way to the number
            line = self._own_line(sys._getframe(2))  # noqa: SLF001 - `inspect` reads files
            if self._numbers and number < self._numbers[-1]:
                self._numbers.clear()
                self._lines.clear()
            self._numbers.append(number)
            self._lines.append(line)
            return line
        # The node was made before the operator below it was dispatched, which saw the next number already.
        at = bisect_right(self._numbers, int(node._sequence_nr()))  # noqa: SLF001 - as above
        recomputed = self._own_line(sys._getframe(2))  # noqa: SLF001 - a checkpoint computes again in the backward
        return recomputed or (self._lines[at] if at < len(self._lines) else None)

    def _own_line(self, frame: FrameType | None) -> str | None:
        """Return the innermost line of the user's code."""
        while frame is not None:
            name = self._name_of(frame.f_code.co_filename)
            if name is not None:
                return f"{name}:{frame.f_lineno}"
            frame = frame.f_back
        return None

    def _name_of(self, file: str) -> str | None:
        if file not in self._own:
            is_own = is_own_file(file, self._roots)
            root = next((root for root in self._roots if Path(file).is_relative_to(root)), Path(file))
            shown = str(Path(file).relative_to(root)) if root != Path(file) else Path(file).name
            self._own[file] = shown if is_own else None
        return self._own[file]


_SMALL_BYTES: Final = 512


def lines_at(
    log: AllocationLog, events: Sequence[Mapping[str, Any]], noted: Noted, moment: int
) -> tuple[LineBytes, ...]:
    """Return memory at a moment by operator and line, which another trial noted, whose operators were watched.

    Watching lets go of an operator's inputs a little later, so that blocks are cut otherwise, and some sums of
    gradients are not made in place; but else the same step asks for the same bytes in the same order. Where it did
    not, nothing is returned.

    Args:
        log: The log of all blocks.
        events: The history that it was made of.
        noted: By the other trial.
        moment: Events until then.
    """
    origins = _aligned([event["size"] for event in events if event["action"] == "alloc"], noted)
    blocks = (change[0] for change in log.changes if change is not None and change[1] > 0)
    if origins is None:
        return ()
    made = dict(zip(blocks, origins, strict=True))
    return _lines([(block, made.get(block)) for block in live_at(log, moment)])


def _aligned(sizes: Sequence[int], noted: Noted) -> list[Origin | None] | None:
    """Return what made allocations of these sizes; None where the two trials differ by more than may be left out."""
    most = len(noted) - len(sizes)
    ways: list[dict[int, int]] = [{0: 0}]  # for each allocation where the notes can be after it, and were before it
    for number, size in enumerate(sizes):
        after: dict[int, int] = {}
        for before in ways[-1]:
            for at in range(before, min(len(noted), number + most + 1)):
                if noted[at][0] == size:
                    after.setdefault(at + 1, before)
                if not _is_optional(*noted[at]):
                    break
        if not after:
            return None
        ways.append(after)
    end = next((end for end in ways[-1] if all(starmap(_is_optional, noted[end:]))), None)
    if end is None:
        return None
    found: list[Origin | None] = []
    for way in reversed(ways[1:]):
        found.append(noted[end - 1][1])
        end = way[end]
    return found[::-1]


def _is_optional(size: int, origin: Origin | None) -> bool:
    return size <= _SMALL_BYTES or (origin is not None and origin.is_sum)


def _lines(blocks: Sequence[tuple[ProfiledBlock, Origin | None]]) -> tuple[LineBytes, ...]:
    """Return blocks by operator, line and category, largest first."""
    sizes: Counter[tuple[str | None, str | None, Category]] = Counter()
    counts: Counter[tuple[str | None, str | None, Category]] = Counter()
    for block, origin in blocks:
        key = (None if origin is None else origin.operator, None if origin is None else origin.line, block.category)
        sizes[key] += block.size
        counts[key] += 1
    ordered = sorted(sizes.items(), key=lambda item: (-item[1], item[0][0] or "", item[0][1] or "", ORDER[item[0][2]]))
    return tuple(LineBytes(*key, allocated_bytes=size, blocks=counts[key]) for key, size in ordered)
