"""A hostile pickle gets an error, and nothing in it runs."""

from __future__ import annotations

import os
import pickle
import struct
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from clock import within
from hypothesis import given, settings
from hypothesis import strategies as st

from oomdoctor.diagnose.snapshot.reading import load_plain
from oomdoctor.errors import UsageError

_PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False)
    | st.text(max_size=300)
    | st.binary(max_size=300),
    lambda inner: (
        st.lists(inner, max_size=6)
        | st.dictionaries(st.text(max_size=8), inner, max_size=6)
        | st.lists(inner, max_size=4).map(tuple)
    ),
    max_leaves=40,
)


class Runs:
    """Runs a function when it is unpickled freely."""

    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        self.call = (function, arguments)

    def __reduce__(self) -> tuple[Any, ...]:
        return self.call


class Plain:
    """An object that has a state."""

    def __init__(self) -> None:
        self.state = 1


@given(_PLAIN, st.sampled_from([3, 4, 5]))
@settings(max_examples=200, deadline=None)
def test_plain_data_is_what_it_was(data: object, protocol: int) -> None:
    """Lists, dictionaries, tuples, text, bytes and numbers are read as Python reads them."""
    assert load_plain(pickle.dumps(data, protocol=protocol), "x") == data


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_shared_parts_stay_shared(protocol: int) -> None:
    """What is one list in two places is one list again, and a list that holds itself does too."""
    part: list[Any] = ["x" * 300]
    part.append(part)
    data = load_plain(pickle.dumps([part] * 600 + [f"{n}" for n in range(600)], protocol=protocol), "x")
    assert data[0] is data[1] is data[0][1]
    assert data[-1] == "599"


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
@pytest.mark.parametrize(
    "make",
    [
        lambda marker: Runs(os.system, f"touch {marker}"),
        lambda marker: Runs(Path.touch, marker),
        lambda marker: Runs(eval, f"open({str(marker)!r}, 'w')"),
        lambda marker: {"segments": [Runs(exec, f"open({str(marker)!r}, 'w')")], "device_traces": []},
        lambda marker: [Plain(), marker.name],
        lambda _: OrderedDict(a=1),
        lambda _: {1, 2},
        lambda _: frozenset({1}),
        lambda _: 1j,
        lambda _: os.system,
    ],
)  # fmt: skip
def test_nothing_is_imported_called_or_made(tmp_path: Path, protocol: int, make: Callable[[Path], object]) -> None:
    """Whatever a pickle asks for beside plain data is refused by name, and has not been done."""
    marker = tmp_path / "marker"
    data = pickle.dumps(make(marker), protocol=protocol)
    with pytest.raises(UsageError, match="`evil` is not a memory snapshot: the pickle") as caught:
        load_plain(data, "evil")
    assert "nothing in this file was run" in (caught.value.hint or "")
    assert not marker.exists()


@pytest.mark.parametrize(
    ("program", "said"),
    [
        (b"cos\nsystem\n(S'touch x'\ntR.", "asks to import `os.system`"),
        (b"(S'touch x'\nios\nsystem\n.", "has the instruction b'S'"),
        (b"(\x8c\x01xios\nsystem\n.", "asks to import `os.system`"),
        (b"\x8c\x02os\x8c\x06system\x93.", "asks to import `os.system`"),
        (b"\x8c\x01a)R.", "asks to call a function"),
        (b"(\x8c\x01ao.", "asks to make an object"),
        (b"\x8c\x01a)\x81.", "asks to make an object"),
        (b"\x8c\x01a)}\x92.", "asks to make an object"),
        (b"}}b.", "asks to set an object's state"),
        (b"Pname\n.", "refers to an object outside of the file"),
        (b"\x8c\x01aQ.", "refers to an object outside of the file"),
        (b"\x82\x01.", "asks for a registered extension"),
        (b"\x83\x01\x00.", "asks for a registered extension"),
        (b"\x84\x01\x00\x00\x00.", "asks for a registered extension"),
        (b"\x97.", "refers to a buffer outside of the file"),
        (b"\x8f(K\x01\x90.", "holds a set"),
        (b"(K\x01\x91.", "holds a set"),
        (b"\x96\xff\xff\xff\xff\xff\xff\xff\x7f.", "has the instruction b'\\x96'"),
        (b"I1\n.", "has the instruction b'I'"),
        (b"\xff.", "has the instruction b'\\xff'"),
        (b"c\x1b[31mevil\n\x07name\n.", "asks to import `?[31mevil.?name`"),
    ],
)
def test_every_other_instruction_is_refused_by_name(program: bytes, said: str) -> None:
    """The error says what was asked for."""
    with pytest.raises(UsageError) as caught:
        load_plain(b"\x80\x04" + program, "evil")
    assert said in caught.value.message


@pytest.mark.parametrize(
    "program",
    [
        b"",
        b".",
        b"]",
        b"a.",
        b"]a.",
        b"e.",
        b"](e",
        b"K",
        b"h\x07.",
        b"j\xff\xff\xff\xff.",
        b"\x86.",
        b"K\x01\x86.",
        b"s.",
        b"}K\x01s.",
        b"}(K\x01u.",
        b"K\x01K\x02K\x03s.",
        b"})K\x01s.",  # a tuple as a key
        b"}]K\x01s.",
        b"}G\x00\x00\x00\x00\x00\x00\x00\x00K\x01s.",
        b"K\x01K\x02a.",
        b"\x8c\xffabc.",
        b"X\xff\xff\xff\xffabc.",
        b"\x8d\xff\xff\xff\xff\xff\xff\xff\xffabc.",
        b"B\xff\xff\xff\xffabc.",
        b"\x8a\xffabc.",
        b"\x8c\x01\xff.",
        b"M\x01",
        b"J\x01\x00",
        b"G\x00",
        b"1.",
        b"0.",
        b"u.",
        b"r\x00\x00\x00\x00.",
        b"q\x00.",
        b"\x94.",
        b"\x95\xff\xff\xff\xff\xff\xff\xff\x7f",
    ],
)
def test_a_damaged_pickle_is_an_error(program: bytes) -> None:
    """Cut short, out of order or with sizes that lie, it says where it could not be followed."""
    with pytest.raises(UsageError, match="cut short or damaged"):
        load_plain(b"\x80\x04" + program, "broken")


def test_any_cut_is_an_error() -> None:
    """A file that ends anywhere too early is one that was cut."""
    whole = pickle.dumps({"segments": [{"address": 2**40, "blocks": [("a" * 300, 1.5)]}] * 3, "n": list(range(300))})
    for length in range(2, len(whole) - 1):
        with pytest.raises(UsageError, match="cut short or damaged"):
            load_plain(whole[:length], "cut")


@given(st.data())
@settings(max_examples=300, deadline=None)
def test_any_change_is_read_or_refused(data: st.DataObject) -> None:
    """With any bytes changed it is plain data or an error, and nothing else."""
    content = bytearray(pickle.dumps({"segments": [{"address": n, "x": [(), 1.5, None]} for n in range(40)]}))
    for _ in range(data.draw(st.integers(1, 6))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    with suppress(UsageError):
        load_plain(bytes(content), "changed")


@given(st.binary(max_size=200))
@settings(max_examples=300, deadline=None)
def test_any_bytes_are_read_or_refused(content: bytes) -> None:
    """Noise after a pickle's first two bytes is plain data or an error."""
    with suppress(UsageError):
        load_plain(b"\x80\x04" + content, "noise")


def test_depth_is_no_matter() -> None:
    """A hundred thousand lists inside each other are read, and let go of, without a stack to overflow."""
    depth = 100_000
    padding = b"X\x00\x00\x20\x00" + b"y" * (1 << 21) + b"0"
    assert load_plain(b"\x80\x04" + padding + b"]" * depth + b"a" * (depth - 1) + b".", "deep")


def test_a_far_memo_takes_no_memory() -> None:
    """A memo with the number four billion is one entry, not four billion."""
    assert load_plain(b"\x80\x02]r\xff\xff\xff\xff.", "far") == []


def test_empty_containers_without_end_are_refused() -> None:
    """A file that would take sixty times its size in memory is refused before it does."""
    with pytest.raises(UsageError, match="next to nothing but empty containers"):
        load_plain(b"\x80\x04" + b"}" * 1_000_000 + b".", "bomb")


def test_tuples_of_tuples_are_never_hashed() -> None:
    """A key that would take longer than the universe to hash is an error at once."""
    doubled = b"".join(b"0h" + bytes([n]) + b"h" + bytes([n]) + b"\x86\x94" for n in range(80))
    with within(5), pytest.raises(UsageError, match="cut short or damaged"):
        load_plain(b"\x80\x04})\x85\x94" + doubled + b"K\x01s.", "hash")


def test_numbers_that_collide_take_no_time() -> None:
    """Keys that all have one hash would make Python's own dictionary quadratic."""
    prime = (1 << 61) - 1
    keys = b"".join(b"\x8a\x09" + (prime * n).to_bytes(9, "little", signed=True) + b"K\x01" for n in range(1, 60))
    wide = b"}(" + keys * 2_000 + b"u."
    with within(5):
        with pytest.raises(UsageError):
            load_plain(b"\x80\x04" + wide, "collide")
        small = b"".join(b"\x8a\x08" + struct.pack("<q", prime * n) + b"K\x01" for n in (1, 2, 3, -1))
        assert len(load_plain(b"\x80\x04}(" + small + b"u.", "collide")) == 4
