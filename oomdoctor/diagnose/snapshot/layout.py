"""A memory snapshot in types of our own, whichever version of PyTorch wrote it.

Three layouts are known. `torch.cuda.memory_snapshot()` gives a list of segments and nothing else. `_snapshot()` gives a
dictionary of `segments` and `device_traces`. In both, PyTorch 2.0 and older put a block's stack and its requested size
into `history`, from which the block may lack `address`; later ones put them into the block. What is not known is passed
over, and what is known must have the right type.

Source: torch/csrc/cuda/memory_snapshot.cpp, torch/csrc/cuda/Module.cpp and torch/cuda/_memory_viz.py, 1.13 to 2.15.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum, StrEnum
from typing import TYPE_CHECKING, Any, Final, NamedTuple, NoReturn

from oomdoctor.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable


class AllocatorAction(StrEnum):
    """Action of the allocator. Actions that newer versions add are ignored."""

    ALLOC = "alloc"
    FREE_REQUESTED = "free_requested"
    FREE_COMPLETED = "free_completed"
    SEGMENT_ALLOC = "segment_alloc"
    SEGMENT_FREE = "segment_free"
    SEGMENT_MAP = "segment_map"
    SEGMENT_UNMAP = "segment_unmap"
    OOM = "oom"


class BlockState(Enum):
    """State of a segment's block."""

    LIVE = "active_allocated"
    PENDING = "active_pending_free"  # freed, but a kernel on another stream may still use it
    FREE = "inactive"


class Frame(NamedTuple):
    """One Python frame of a stack."""

    function: str
    path: str
    line: int


Stack = tuple[Frame, ...]
"""Frames, innermost first. Frames of C++ are left out, so that a stack of the autograd engine's thread is empty."""


class TraceEvent(NamedTuple):
    """One entry of the history.

    Attributes:
        action: What happened.
        address: Where; of an `oom`, the bytes that the device had free.
        size: Bytes that were asked for; of segments, their size.
        stack: Index in the snapshot's stacks.
        microseconds: The clock's time; None where the snapshot has none.
        stream: The CUDA stream that it was for.
        private: Whether it was in a private pool, as CUDA graphs have; older versions do not say.
    """

    action: AllocatorAction
    address: int
    size: int
    stack: int
    microseconds: int | None
    stream: int = 0
    private: bool = False


class SnapshotBlock(NamedTuple):
    """A part of a segment.

    Attributes:
        address: Where it begins.
        size: Its bytes, as `torch.cuda.memory_allocated` counts them: rounded up.
        requested: Bytes that were asked for.
        state: Whether it is in use.
        stack: Index in the snapshot's stacks of where it was allocated.
    """

    address: int
    size: int
    requested: int
    state: BlockState
    stack: int


@dataclass(frozen=True, slots=True)
class SnapshotSegment:
    """Memory that the allocator holds from the driver.

    Attributes:
        address: Where it begins.
        size: Its bytes; of an expandable segment, of a stretch that is mapped.
        blocks: What it is cut into, by address.
        expandable: Whether it can grow.
        stream: The CUDA stream that it is for.
        small: Whether it is for small blocks.
        private: Whether it is of a private pool, as CUDA graphs have.
    """

    address: int
    size: int
    blocks: tuple[SnapshotBlock, ...]
    expandable: bool
    stream: int = 0
    small: bool = False
    private: bool = False


@dataclass(frozen=True, slots=True)
class DeviceSnapshot:
    """Segments and history of one device."""

    index: int
    segments: tuple[SnapshotSegment, ...]
    events: tuple[TraceEvent, ...]


@dataclass(frozen=True, slots=True)
class RawSnapshot:
    """A memory snapshot.

    Attributes:
        source: The file as it was given.
        devices: Those that hold memory or have a history.
        stacks: Every different stack; the first is empty.
        allocator_settings: What PyTorch's allocator was told, by name, as text.
    """

    source: str
    devices: tuple[DeviceSnapshot, ...]
    stacks: tuple[Stack, ...]
    allocator_settings: dict[str, str]


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
        """Return the index of a stack; anything that is not a list of frames is the empty stack."""
        if not isinstance(frames, list) or not frames:
            return 0
        number = self._by_list.get(id(frames))
        if number is None:
            self._spend(len(frames))
            key = tuple(map(id, frames[:_MOST_FRAMES]))
            number = self._by_frames.get(key)
            if number is None:
                number = self._by_frames[key] = self._number_of(frames[:_MOST_FRAMES])
            self._by_list[id(frames)] = number
        return number

    def stacks(self) -> tuple[Stack, ...]:
        """Every stack, by number."""
        return tuple(self._numbers)

    def _number_of(self, frames: list[Any]) -> int:
        known = self._frames
        found = []
        for item in frames:
            if id(item) not in known:
                known[id(item)] = _stack_frame(item)
            frame = known[id(item)]
            if frame is not None:
                found.append(frame)
        return self._numbers.setdefault(tuple(found), len(self._numbers))


def _stack_frame(item: object) -> Frame | None:
    if not isinstance(item, dict):
        return None
    function, path, line = item.get("name"), item.get("filename"), item.get("line")
    if not isinstance(function, str) or not isinstance(path, str) or type(line) is not int:
        return None
    path = path[:_LONGEST_TEXT]
    if function == "??" or not 0 <= line < _LARGEST_LINE or _NATIVE.search(path):
        return None
    return Frame(function[:_LONGEST_TEXT], path, line)


_LARGEST_NUMBER: Final = 1 << 64
_MOST_DEVICES: Final = 256
_ACTIONS: Final = {action.value: action for action in AllocatorAction}
_STATES: Final = {
    **{state.value: state for state in BlockState},
    "active_awaiting_free": BlockState.PENDING,
}


class WrongError(Exception):
    """The data is not a snapshot's; the text says what is wrong where."""


# What an entry takes of a file at least: its keys, an address and a size; and a frame, as a reference to another.
_SMALLEST_BUDGET: Final = 4096  # so that a small file is told what it lacks, not that it is too dense
_BYTES_AN_ENTRY: Final = 16
_BYTES_A_FRAME: Final = 2


class _Budget:
    """Budget of entries to read: as many as a file of this size can have.

    Every part of an honest snapshot takes some bytes of its file. A hostile one has a list of a thousand references to
    one list of a thousand references, and so on: a kilobyte a level that would take for ever to walk through.
    """

    def __init__(self, size: int) -> None:
        self.left = max(size, _SMALLEST_BUDGET)

    def spend(self, count: int, size: int = _BYTES_AN_ENTRY) -> None:
        self.left -= count * size
        if self.left < 0:
            raise WrongError("it holds the same parts so many times over that no program can have written it")


def read_layout(data: Any, source: str, size: int) -> RawSnapshot:  # noqa: ANN401 - what a file holds
    """Check and convert what a snapshot file holds.

    Args:
        data: Plain data, from a pickle or from JSON.
        source: The file as it was given.
        size: Bytes of the file.

    Raises:
        UsageError: It is not a snapshot.
    """
    try:
        return _LayoutReader(_Budget(size)).snapshot(data, source)
    except WrongError as wrong:
        raise UsageError(
            f"`{source}` is not a memory snapshot: {wrong}",
            hint="record one with `torch.cuda.memory._record_memory_history()` and "
            '`torch.cuda.memory._dump_snapshot("snapshot.pickle")`',
        ) from None


class _LayoutReader:
    def __init__(self, budget: _Budget) -> None:
        self.budget = budget
        self.stacks = StackTable(lambda count: budget.spend(count, _BYTES_A_FRAME))

    def snapshot(self, data: object, source: str) -> RawSnapshot:
        if isinstance(data, list):
            data = {"segments": data}
        if not isinstance(data, dict) or not ("segments" in data or "device_traces" in data):
            _wrong("it has neither segments nor a history")
        segments = self.segments(_list(data.get("segments", []), "segments"))
        traces = _list(data.get("device_traces", []), "device_traces")
        if len(traces) > _MOST_DEVICES:
            _wrong(f"it has a history of {len(traces)} devices")
        events = {index: self.events(_list(trace, "a device's history")) for index, trace in enumerate(traces)}
        devices = tuple(
            DeviceSnapshot(index, tuple(segments.get(index, ())), events.get(index, ()))
            for index in sorted({*segments, *(index for index, found in events.items() if found)})
        )
        return RawSnapshot(source, devices, self.stacks.stacks(), _settings(data.get("allocator_settings")))

    def segments(self, items: list[Any]) -> dict[int, list[SnapshotSegment]]:
        found: dict[int, list[SnapshotSegment]] = {}
        self.budget.spend(len(items))
        for item in items:
            values = _dict(item, "a segment")
            device = _number(values, "device", 0)
            if device >= _MOST_DEVICES:
                _wrong(f"a segment is of device {device}")
            found.setdefault(device, []).append(self.segment(values))
        for segments in found.values():
            segments.sort(key=lambda segment: segment.address)
        return found

    def segment(self, values: dict[str, Any]) -> SnapshotSegment:
        address, size = _number(values, "address"), _number(values, "total_size")
        blocks = []
        items = _list(values.get("blocks", []), "a segment's blocks")
        self.budget.spend(len(items))
        at = address
        for item in items:
            block = self.block(_dict(item, "a block"), at)
            at = block.address + block.size
            blocks.append(block)
        if sum(block.size for block in blocks) > size:
            _wrong(f"the blocks of the segment at {address:#x} are larger than the segment")
        expandable, small = values.get("is_expandable") is True, values.get("segment_type") == "small"
        private = _is_private(values.get("segment_pool_id"))
        return SnapshotSegment(address, size, tuple(blocks), expandable, _stream(values), small, private)

    def block(self, values: dict[str, Any], at: int) -> SnapshotBlock:
        name = values.get("state")
        state = _STATES.get(name) if isinstance(name, str) else None
        if state is None:
            _wrong("a block has an unknown state")
        size = _number(values, "size")
        origin, requested = values, _number(values, "requested_size", size)
        history = _list(values.get("history", []), "a block's history")
        if history and "frames" not in values:
            origin = _dict(history[0], "a block's history")
            requested = _number(origin, "real_size", size)
        stack = self.stacks.index(origin.get("frames"))
        return SnapshotBlock(_number(values, "address", at), size, requested, state, stack)

    def events(self, items: list[Any]) -> tuple[TraceEvent, ...]:
        self.budget.spend(len(items))
        return tuple(event for item in items if (event := self.event(item)) is not None)

    def event(self, item: object) -> TraceEvent | None:
        values = _dict(item, "an entry of the history")
        name = values.get("action")
        action = _ACTIONS.get(name) if isinstance(name, str) else _wrong("an entry of the history has no action")
        if action is None:
            return None
        address = values.get("addr", values.get("device_free", 0))
        size, time = values.get("size"), values.get("time_us")
        if type(address) is not int or type(size) is not int or not 0 <= size < _LARGEST_NUMBER:
            _wrong(f"an entry of the history, `{action}`, has no address or no size")
        if type(time) is not int or not 0 < time < _LARGEST_NUMBER:
            time = None
        stack, private = self.stacks.index(values.get("frames")), _is_private(values.get("pool_id"))
        return TraceEvent(action, address, size, stack, time, _stream(values), private)


def _stream(values: dict[str, Any]) -> int:
    stream = values.get("stream")
    return stream if type(stream) is int and 0 <= stream < _LARGEST_NUMBER else 0


def _is_private(pool: object) -> bool:
    """Return whether a block is of a private pool; the two that all share are called (0, 0)."""
    return isinstance(pool, tuple | list) and any(type(part) is int and part for part in pool[:2])


def _settings(value: object) -> dict[str, str]:
    if not isinstance(value, dict):
        return {}
    plain = ((name, setting) for name, setting in value.items() if isinstance(setting, str | int | float))
    return {name[:100]: str(setting)[:1000] for name, setting in plain if isinstance(name, str)}


def _list(value: object, what: str) -> list[Any]:
    return value if isinstance(value, list) else _wrong(f"{what} should be a list, and is not")


def _dict(value: object, what: str) -> dict[str, Any]:
    return value if isinstance(value, dict) else _wrong(f"{what} should be a dictionary, and is not")


def _number(values: dict[str, Any], name: str, default: int | None = None) -> int:
    value = values.get(name, default)
    if type(value) is not int or not 0 <= value < _LARGEST_NUMBER:
        _wrong(f"`{name}` should be a number of bytes or an address, and is not")
    return value


def _wrong(text: str) -> NoReturn:
    raise WrongError(text)
