"""Turn the plain data of a snapshot into types of our own, whichever version of PyTorch wrote it.

Three layouts are known. `torch.cuda.memory_snapshot()` gives a list of segments and nothing else. `_snapshot()` gives a
dictionary of `segments` and `device_traces`. In both, PyTorch 2.0 and older put a block's stack and its requested size
into `history`, from which the block may lack `address`; later ones put them into the block. What is not known is passed
over, and what is known must have the right type.

Source: torch/csrc/cuda/memory_snapshot.cpp, torch/csrc/cuda/Module.cpp and torch/cuda/_memory_viz.py, 1.13 to 2.15.
"""

from __future__ import annotations

from typing import Any, Final, NoReturn

from oomdoctor.diagnosis.snapshot.raw import (
    Action,
    Block,
    BlockState,
    DeviceSnapshot,
    RawSnapshot,
    Segment,
    TraceEvent,
)
from oomdoctor.diagnosis.snapshot.stack_table import StackTable
from oomdoctor.errors import UsageError

_LARGEST_NUMBER: Final = 1 << 64
_MOST_DEVICES: Final = 256
_ACTIONS: Final = {action.value: action for action in Action}
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
    """How many parts may be looked at: as many as a file of this size can have.

    Every part of an honest snapshot takes some bytes of its file. A hostile one has a list of a thousand references to
    one list of a thousand references, and so on: a kilobyte a level that would take for ever to walk through.
    """

    def __init__(self, size: int) -> None:
        self.left = max(size, _SMALLEST_BUDGET)

    def spend_entries(self, count: int) -> None:
        self.spend(count * _BYTES_AN_ENTRY)

    def spend_frames(self, count: int) -> None:
        self.spend(count * _BYTES_A_FRAME)

    def spend(self, size: int) -> None:
        self.left -= size
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
        return _Reader(_Budget(size)).snapshot(data, source)
    except WrongError as wrong:
        raise UsageError(
            f"`{source}` is not a memory snapshot: {wrong}",
            hint="record one with `torch.cuda.memory._record_memory_history()` and "
            '`torch.cuda.memory._dump_snapshot("snapshot.pickle")`',
        ) from None


class _Reader:
    def __init__(self, budget: _Budget) -> None:
        self.budget = budget
        self.stacks = StackTable(budget.spend_frames)

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

    def segments(self, items: list[Any]) -> dict[int, list[Segment]]:
        found: dict[int, list[Segment]] = {}
        self.budget.spend_entries(len(items))
        for item in items:
            values = _dict(item, "a segment")
            device = _number(values, "device", 0)
            if device >= _MOST_DEVICES:
                _wrong(f"a segment is of device {device}")
            found.setdefault(device, []).append(self.segment(values))
        for segments in found.values():
            segments.sort(key=lambda segment: segment.address)
        return found

    def segment(self, values: dict[str, Any]) -> Segment:
        address, size = _number(values, "address"), _number(values, "total_size")
        blocks = []
        items = _list(values.get("blocks", []), "a segment's blocks")
        self.budget.spend_entries(len(items))
        at = address
        for item in items:
            block = self.block(_dict(item, "a block"), at)
            at = block.address + block.size
            blocks.append(block)
        if sum(block.size for block in blocks) > size:
            _wrong(f"the blocks of the segment at {address:#x} are larger than the segment")
        expandable, small = values.get("is_expandable") is True, values.get("segment_type") == "small"
        private = _is_private(values.get("segment_pool_id"))
        return Segment(address, size, tuple(blocks), expandable, _stream(values), small, private)

    def block(self, values: dict[str, Any], at: int) -> Block:
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
        return Block(_number(values, "address", at), size, requested, state, stack)

    def events(self, items: list[Any]) -> tuple[TraceEvent, ...]:
        self.budget.spend_entries(len(items))
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
    """Whether the pool of a block is none of the two that all share, which are called (0, 0)."""
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
