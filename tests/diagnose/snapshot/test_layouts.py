"""Every layout that a version of PyTorch writes is read, and what is none of them is an error."""

# ruff: noqa: D103

from __future__ import annotations

import json
import os
import pickle
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from clock import within
from hypothesis import given, settings
from hypothesis import strategies as st

from oomdoctor.diagnose.snapshot.layout import BlockState, RawSnapshot
from oomdoctor.diagnose.snapshot.reading import looks_like_snapshot, read_snapshot
from oomdoctor.diagnose.snapshot.summary import summarise
from oomdoctor.errors import UsageError
from oomdoctor.results import Category

FRAME = {"name": "train", "filename": "/home/me/train.py", "line": 12}
LINEAR = {"name": "forward", "filename": "/usr/lib/python3/site-packages/torch/nn/modules/linear.py", "line": 134}


def block(address: int, size: int, state: str = "active_allocated", **more: Any) -> dict[str, Any]:
    return {"address": address, "size": size, "requested_size": size, "state": state, "frames": [], **more}


def segment(address: int, *blocks: dict[str, Any], **more: Any) -> dict[str, Any]:
    size = sum(part["size"] for part in blocks)
    return {"device": 0, "address": address, "total_size": size, "stream": 0, "blocks": list(blocks), **more}


def event(action: str, address: int, size: int, **more: Any) -> dict[str, Any]:
    return {"action": action, "addr": address, "size": size, "stream": 0, "frames": [FRAME], **more}


def read(data: object) -> RawSnapshot:
    return read_snapshot(pickle.dumps(data), "snapshot.pickle")


def test_a_bare_list_of_segments() -> None:
    """`torch.cuda.memory_snapshot()` gives segments and nothing else."""
    (summary,) = summarise(read([segment(4096, block(4096, 1024), block(5120, 512, "inactive"))]))
    assert (summary.end.allocated_bytes, summary.end.reserved_bytes) == (1024, 1536)
    assert (summary.has_history, summary.truncated, summary.timeline, summary.growing) == (False, False, (), ())
    assert summary.peak == summary.end
    assert [part.category for part in summary.end.categories] == [Category.OTHER]
    assert (summary.fragmentation.segments_with_holes, summary.fragmentation.hole_bytes) == (1, 512)


def test_the_layout_of_pytorch_two_and_older() -> None:
    """A block's stack and its requested size are in its history, and its address follows from the block before."""
    old = {"size": 2048, "state": "active_allocated", "history": [{"addr": 9, "real_size": 1500, "frames": [FRAME]}]}
    free = {"size": 1024, "state": "inactive"}
    data = {"segments": [{"device": 0, "address": 8192, "total_size": 5120, "blocks": [old, free, dict(old)]}]}
    raw = read(data)
    assert [(it.address, it.size, it.requested) for it in raw.devices[0].segments[0].blocks] == [
        (8192, 2048, 1500),
        (10240, 1024, 1024),
        (11264, 2048, 1500),
    ]
    (summary,) = summarise(raw)
    assert summary.end.allocated_bytes == 4096
    assert [(line.place.line, line.blocks) for line in summary.end.lines] == [(12, 2)]


def test_several_devices() -> None:
    """There is a summary for each device that holds memory or has a history, by its own index."""
    data = {
        "segments": [segment(4096, block(4096, 512)), segment(4096, block(4096, 1024), device=3)],
        "device_traces": [[], [event("alloc", 4096, 100), event("free_requested", 4096, 100)], [], []],
    }
    found = {summary.device_index: summary for summary in summarise(read(data))}
    assert sorted(found) == [0, 1, 3]
    assert (found[0].end.allocated_bytes, found[3].end.allocated_bytes) == (512, 1024)
    assert (found[1].peak.allocated_bytes, found[1].end.allocated_bytes, found[1].events) == (512, 0, 2)


@pytest.mark.parametrize("state", ["active_pending_free", "active_awaiting_free"])
def test_a_block_that_waits_for_a_stream_is_neither_allocated_nor_a_hole(state: str) -> None:
    """Its bytes are not allocated any more, and cannot be used yet."""
    data = {
        "segments": [segment(4096, block(4096, 512), block(4608, 512, state), block(5120, 512, "inactive"))],
        "device_traces": [[event("alloc", 4608, 512), event("free_requested", 4608, 512)]],
    }
    (summary,) = summarise(read(data))
    assert summary.end.allocated_bytes == 512
    assert summary.fragmentation.hole_bytes == 512


def test_stacks_may_be_in_the_segments_alone() -> None:
    """Recorded with `context="state"`, the history has no stacks, and live blocks have: they are named all the same."""
    data = {
        "segments": [segment(4096, block(4096, 512, frames=[FRAME]))],
        "device_traces": [[event("alloc", 4096, 512, frames=[]), event("alloc", 8192, 512, frames=[])]],
    }
    (summary,) = summarise(read(data))
    assert [line.place.line for line in summary.end.lines] == [12]
    assert Category.GRADIENTS not in [part.category for part in summary.peak.categories]


def test_what_is_not_known_is_passed_over() -> None:
    """Keys and actions that newer versions add change nothing."""
    data = {
        "segments": [segment(4096, block(4096, 512, future=[1]), segment_pool_id=(0, 7), is_expandable=True)],
        "device_traces": [[event("alloc", 4096, 512), event("teleport", 1, 1), {"action": "snapshot", "x": None}]],
        "allocator_settings": {"expandable_segments": True, "roundup_power2_divisions": {"1": 0}},
        "external_annotations": [{"stage": "x"}],
        "host_traces": [],
        "trace_alloc_overflowed": [False],
    }
    raw = read(data)
    assert raw.allocator_settings == {"expandable_segments": "True"}
    assert summarise(raw)[0].events == 1


def test_json_is_read_as_the_pickle_is() -> None:
    """The same layout as JSON gives the same snapshot."""
    data = {
        "segments": [segment(4096, block(4096, 512, frames=[LINEAR, FRAME]))],
        "device_traces": [[event("alloc", 4096, 512, time_us=5)]],
    }
    text = json.dumps(data).encode()
    assert read_snapshot(text, "snapshot.pickle") == read(data)
    assert read_snapshot(b"\xef\xbb\xbf" + text, "snapshot.pickle") == read(data)


def test_frames_of_c_are_left_out() -> None:
    """Only Python is the user's: what `stacks="all"` adds is dropped, and so is what is no frame."""
    native = [
        {"name": "at::empty", "filename": "/pytorch/aten/src/ATen/Empty.cpp", "line": 1},
        {"name": "??", "filename": "/lib/libc.so.6", "line": 160329},
        {"name": "f", "filename": "/lib/libpython3.11.so.1.0", "line": 2},
        {"name": "_start", "filename": "/usr/bin/python3.11", "line": 2},
        {"name": "f", "filename": "??", "line": 0},
        {"name": "??", "filename": "/opt/program", "line": 7},
        {"name": "execute_native_thread_routine", "filename": "thread48.o", "line": 0},
        {"name": "f", "filename": "", "line": 0},
        {"name": 5, "filename": "x.py", "line": 0},
        {"name": "f", "filename": "x.py", "line": -1},
        {"name": "f", "filename": "x.py"},
        "frame",
        None,
    ]
    raw = read([segment(0, block(0, 512, frames=[native[0], LINEAR, *native[1:], FRAME]))])
    (stack,) = raw.stacks[1:]
    assert [frame.path for frame in stack] == [LINEAR["filename"], FRAME["filename"]]


@pytest.mark.parametrize(
    "data",
    [
        None, 5, "text", {}, {"a": 1}, [1], [None], {"segments": 5}, {"segments": {}}, {"segments": [[]]},
        {"segments": [{}]}, {"device_traces": {}}, {"device_traces": [{}]}, {"device_traces": [[[]]]},
        {"device_traces": [[{}]]}, {"device_traces": [[{"action": 5}]]}, {"device_traces": [[{"action": "alloc"}]]},
        {"device_traces": [[{"action": "alloc", "addr": 1, "size": -1}]]},
        {"device_traces": [[{"action": "alloc", "addr": 1, "size": 1 << 64}]]},
        {"device_traces": [[{"action": "alloc", "addr": "1", "size": 1}]]},
        {"device_traces": [[{"action": "alloc", "addr": 1.5, "size": 1}]]},
        {"device_traces": [[{"action": "alloc", "addr": True, "size": 1}]]},
        {"device_traces": [[]] * 1000},
        [{"device": 0, "address": 0, "total_size": True, "blocks": []}],
        [{"device": 1 << 40, "address": 0, "total_size": 1, "blocks": []}],
        [{"device": 0, "address": -1, "total_size": 1, "blocks": []}],
        [{"device": 0, "address": 1 << 64, "total_size": 1, "blocks": []}],
        [{"device": 0, "address": 0, "total_size": 1, "blocks": 5}],
        [{"device": 0, "address": 0, "total_size": 1, "blocks": [5]}],
        [segment(0, block(0, 512, "unheard of"))],
        [segment(0, block(0, 512, None))],
        [segment(0, block(0, 512)) | {"total_size": 511}],
        [{"device": 0, "address": 0, "total_size": 1, "blocks": [{"state": "inactive", "size": 0, "history": [3]}]}],
    ],
)  # fmt: skip
def test_what_is_no_snapshot_is_an_error(data: Any) -> None:
    """The error says what it should have been, and how to record one."""
    with pytest.raises(UsageError, match=r"`snapshot\.pickle` is not a memory snapshot: ") as caught:
        read(data)
    assert "_dump_snapshot" in (caught.value.hint or "")


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[" * 200_000, b"hello", b"\x00" * 50, b'{"segments": 1e999999999}', b"\xff\xfe", b"1" * 9999],
)
def test_what_is_neither_pickle_nor_json_is_an_error(content: bytes) -> None:
    """Deep, broken and binary content alike."""
    with pytest.raises(UsageError, match="not a memory snapshot"):
        read_snapshot(content, "x")


def test_what_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    """A missing file, a directory, a device without end and an empty file."""
    empty = tmp_path / "empty"
    empty.touch()
    huge = tmp_path / "huge"
    huge.touch()
    os.truncate(huge, 5 << 30)
    for path in (tmp_path / "missing", tmp_path, Path("/dev/zero"), empty, huge):
        with pytest.raises(UsageError, match="`given`"):
            read_snapshot(path, "given")


def test_the_same_parts_over_and_over_are_an_error() -> None:
    """A few kilobytes that stand for a billion events are refused at once."""
    events = [event("alloc", 1, 1)] * 5_000
    with within(5):
        with pytest.raises(UsageError, match="so many times over"):
            read({"device_traces": [events] * 200})
        with pytest.raises(UsageError, match="so many times over"):
            read([segment(0, block(0, 1))] * 20_000)
        blocks = [block(0, 0)] * 5_000
        with pytest.raises(UsageError, match="so many times over"):
            read([{"device": 0, "address": 0, "total_size": 1, "blocks": blocks} for _ in range(200)])


def test_one_stack_shared_by_all_is_no_work() -> None:
    """A list of frames is looked at once, however many entries refer to it."""
    frames = [{"name": f"f{number}", "filename": "x.py", "line": number} for number in range(900)]
    data = {"device_traces": [[event("alloc", number, 1, frames=frames) for number in range(20_000)]]}
    content = pickle.dumps(data)
    with within(10):
        raw = read_snapshot(content, "x")
    assert len(raw.stacks) == 2


@pytest.mark.parametrize(
    ("head", "is_one"),
    [
        (pickle.dumps({"segments": []}), True),
        (pickle.dumps({}, protocol=2), True),
        (b'{"segments": [', True),
        (b'\xef\xbb\xbf\n  {"device_traces": [', True),
        (b'[{"device": 0, "address": 1, "total_size": 5', True),
        (b"", False),
        (b"Traceback (most recent call last):\n", False),
        (b'{"step": 1, "loss": 0.5}\n', False),
        (b"[rank0]: out of memory", False),
        (b"\x80\x09", False),
        (b"PK\x03\x04", False),
    ],
)
def test_a_snapshot_is_told_from_a_log(head: bytes, *, is_one: bool) -> None:
    """By its first bytes: a binary pickle, or JSON with the keys of a snapshot."""
    assert looks_like_snapshot(head) is is_one


_ANY = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 2**65) | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
_FRAMES = st.lists(st.sampled_from([FRAME, LINEAR, {"name": "x"}, None]), max_size=3) | _ANY
_ADDRESS = st.integers(0, 12).map(lambda number: number * 512)
_SIZE = st.sampled_from([0, 1, 512, 513, 1024, 2 << 20, (2 << 20) + 1, 2**63]) | st.integers(0, 2**64)
_ACTION = st.sampled_from(
    [
        "alloc",
        "free_requested",
        "free_completed",
        "segment_alloc",
        "segment_free",
        "segment_map",
        "segment_unmap",
        "oom",
    ]
)
_STATE = st.sampled_from([*(state.value for state in BlockState), "active_awaiting_free"])
_BLOCK = st.fixed_dictionaries(
    {"size": _SIZE, "state": _STATE}, optional={"address": _ADDRESS, "requested_size": _SIZE, "frames": _FRAMES}
)
_EVENT = st.fixed_dictionaries(
    {"action": _ACTION, "addr": _ADDRESS, "size": _SIZE}, optional={"frames": _FRAMES, "time_us": st.integers(0, 99)}
)
_SEGMENT = st.fixed_dictionaries(
    {"device": st.integers(0, 2), "address": _ADDRESS, "blocks": st.lists(_BLOCK, max_size=4)},
    optional={"is_expandable": st.booleans()},
).map(lambda found: found | {"total_size": sum(part["size"] for part in found["blocks"]) % 2**64})
_SNAPSHOT = st.fixed_dictionaries(
    {"segments": st.lists(_SEGMENT, max_size=3), "device_traces": st.lists(st.lists(_EVENT, max_size=30), max_size=2)}
)


@given(_SNAPSHOT)
@settings(max_examples=400, deadline=None)
def test_any_history_is_summed_up_or_refused(data: dict[str, Any]) -> None:
    """Events that contradict each other and the segments still give sums that are exact."""
    try:
        raw = read(data)
    except UsageError:
        return
    for summary in summarise(raw):
        for composition in (summary.end, summary.peak):
            assert sum(part.allocated_bytes for part in composition.categories) == composition.allocated_bytes
            assert composition.reserved_bytes >= 0
        device = next(it for it in raw.devices if it.index == summary.device_index)
        if summary.tried_bytes is None:
            blocks = [it for part in device.segments for it in part.blocks if it.state is BlockState.LIVE]
            assert summary.end.allocated_bytes == sum(it.size for it in blocks)
        assert all(min(point.categories) >= 0 for point in summary.timeline)


@given(_ANY)
@settings(max_examples=200, deadline=None)
def test_any_data_is_read_or_refused(data: Any) -> None:
    """Whatever else a file holds is an error and nothing else."""
    for content in (data, {"segments": data, "device_traces": data}):
        with suppress(UsageError):
            summarise(read(content))
