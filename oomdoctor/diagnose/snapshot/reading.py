"""Open a snapshot file, a pickle of plain data or JSON, within bounded memory.

A pickle is a program, and Python's own unpickler runs whatever it says. This one knows the few instructions that plain
data takes and refuses all others by name, so that there is nothing that a hostile file could call. It is also bounded
in time and memory, which a restricted `pickle.Unpickler` is not: a number in a few bytes makes that one reserve
gigabytes for its memo, and tuples of tuples as keys make it hash for ever.

Source: `pickletools` describes every instruction. `torch.cuda.memory._dump_snapshot` writes protocol 4 or 5, and C++
programs that pickle a snapshot with PyTorch's own pickler write protocol 2.
"""

from __future__ import annotations

import gc
import json
import pickle
from contextlib import contextmanager
from struct import Struct
from struct import error as struct_error
from typing import TYPE_CHECKING, Any, Final

from oomdoctor.diagnose.snapshot.layout import read_layout
from oomdoctor.errors import UsageError
from oomdoctor.units import GIB, format_size

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from oomdoctor.diagnose.snapshot.layout import RawSnapshot


@contextmanager
def gc_paused() -> Iterator[None]:
    """Search for none inside; a snapshot is read and summed up without a cycle to be found."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


# An event of a history takes more than a hundred bytes and three containers, a segment's block about as much.
_BYTES_A_CONTAINER: Final = 8
_FREE_CONTAINERS: Final = 1024
_LONGEST_KEY: Final = 64  # bits

_UNSIGNED_16 = Struct("<H").unpack_from
_SIGNED_32 = Struct("<i").unpack_from
_UNSIGNED_32 = Struct("<I").unpack_from
_UNSIGNED_64 = Struct("<Q").unpack_from
_FLOAT = Struct(">d").unpack_from

_BINGET, _LONG_BINGET, _BININT1, _MEMOIZE, _STOP = (code[0] for code in (b"h", b"j", b"K", b"\x94", b"."))


def load_plain(data: bytes, source: str) -> Any:  # noqa: ANN401 - whatever the file holds
    """Build the plain data that a pickle describes.

    Args:
        data: The whole file.
        source: The file as it was given, for errors.

    Raises:
        UsageError: It asks for anything else than plain data, is cut short, damaged, or not what it pretends to be.
    """
    machine = _PickleReader(data, source)
    try:
        return machine.run()
    except (IndexError, KeyError, ValueError, struct_error, AttributeError, TypeError) as error:
        raise UsageError(
            f"`{source}` is cut short or damaged: its pickle cannot be followed beyond byte {machine.position} of "
            f"{len(data)}",
            hint="a program that is killed while it writes a snapshot leaves such a file; record it again",
        ) from error


class _PickleReader:
    """The stack that a pickle's instructions work on."""

    def __init__(self, data: bytes, source: str) -> None:
        self.data = data
        self.source = source
        self.position = 0
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo: dict[int, Any] = {}
        self.containers_left = len(data) // _BYTES_A_CONTAINER + _FREE_CONTAINERS

    def run(self) -> Any:  # noqa: ANN401
        """Follow the instructions until the last."""
        data, memo, stack, push, handlers = self.data, self.memo, self.stack, self.stack.append, _HANDLERS
        position = 0
        while True:
            code = data[position]
            # Nine in ten instructions are among these, so they are not worth a call each.
            if code == _BINGET:
                push(memo[data[position + 1]])
                position += 2
            elif code == _LONG_BINGET:
                push(memo[_UNSIGNED_32(data, position + 1)[0]])
                position += 5
            elif code == _BININT1:
                push(data[position + 1])
                position += 2
            elif code == _MEMOIZE:
                memo[len(memo)] = stack[-1]
                position += 1
            elif code == _STOP:
                return self.stack.pop()
            else:
                self.position = position
                position = handlers[code](self, position + 1)

    def since_mark(self) -> list[Any]:
        """Take what was pushed since the last mark."""
        start = self.marks.pop()
        items = self.stack[start:]
        del self.stack[start:]
        return items

    def push_container(self, container: Any) -> None:  # noqa: ANN401
        """Push a new container, of which a file of this size has only so many."""
        self.containers_left -= 1
        if self.containers_left < 0:
            raise UsageError(
                f"`{self.source}` is not a memory snapshot: it is a pickle of next to nothing but empty containers",
                hint="it would take many times its size in memory; nothing in it was run",
            )
        self.stack.append(container)

    def text(self, start: int, length: int) -> int:
        """Push a string of so many bytes."""
        self.stack.append(self.piece(start, length).decode("utf-8", "surrogatepass"))
        return start + length

    def piece(self, start: int, length: int) -> bytes:
        """Return the bytes of a piece of the file, all of which must be there."""
        piece = self.data[start : start + length]
        if len(piece) != length:
            raise IndexError(start)
        return piece

    def extend(self, items: list[Any]) -> None:
        """Add items to the list on top of the stack."""
        self.stack[-1].extend(items)

    def set_items(self, items: list[Any]) -> None:
        """Put keys and values into the dictionary on top of the stack."""
        target = self.stack[-1]
        keys = items[::2]
        if type(target) is not dict or not all(type(key) is str for key in keys):
            # Strings alone hash in a time that a file cannot stretch. Numbers are written as JSON would.
            if not all(
                isinstance(key, str) or (isinstance(key, int) and key.bit_length() <= _LONGEST_KEY) for key in keys
            ):
                raise TypeError(keys)
            keys = [str(key) for key in keys]
        target.update(zip(keys, items[1::2], strict=True))


def _step(handle: Callable[[_PickleReader], object]) -> Callable[[_PickleReader, int], int]:
    """Make an instruction without an argument of what it does to the stack."""

    def step(machine: _PickleReader, position: int) -> int:
        handle(machine)
        return position

    return step


def _binput(machine: _PickleReader, position: int) -> int:
    machine.memo[machine.data[position]] = machine.stack[-1]
    return position + 1


def _long_binput(machine: _PickleReader, position: int) -> int:
    machine.memo[_UNSIGNED_32(machine.data, position)[0]] = machine.stack[-1]
    return position + 4


def _long1(machine: _PickleReader, position: int) -> int:
    length = machine.data[position]
    machine.stack.append(int.from_bytes(machine.piece(position + 1, length), "little", signed=True))
    return position + 1 + length


def _tuple_of(count: int) -> Callable[[_PickleReader, int], int]:
    def handle(machine: _PickleReader, position: int) -> int:
        stack = machine.stack
        if len(stack) < count:
            raise IndexError(position)
        items = tuple(stack[len(stack) - count :])
        del stack[len(stack) - count :]
        machine.push_container(items)
        return position

    return handle


def _number(unpack: Callable[[bytes, int], tuple[Any, ...]], length: int) -> Callable[[_PickleReader, int], int]:
    def handle(machine: _PickleReader, position: int) -> int:
        machine.stack.append(unpack(machine.data, position)[0])
        return position + length

    return handle


def _skipped(length: int) -> Callable[[_PickleReader, int], int]:
    return lambda _, position: position + length


def _text(unpack: Callable[[bytes, int], tuple[Any, ...]], length: int) -> Callable[[_PickleReader, int], int]:
    return lambda machine, position: machine.text(position + length, unpack(machine.data, position)[0])


def _bytes(unpack: Callable[[bytes, int], tuple[Any, ...]], length: int) -> Callable[[_PickleReader, int], int]:
    def handle(machine: _PickleReader, position: int) -> int:
        count = unpack(machine.data, position)[0]
        machine.stack.append(machine.piece(position + length, count))
        return position + length + int(count)

    return handle


def _unsigned_8(data: bytes, position: int) -> tuple[int]:
    return (data[position],)


def _refused(machine: _PickleReader, position: int) -> int:
    """Refuse whatever is not plain data, and say what it was."""
    raise UsageError(
        f"`{machine.source}` is not a memory snapshot: the pickle {_request(machine, position)}",
        hint="a snapshot holds plain data only; nothing in this file was run, and no program should load it",
    )


def _request(machine: _PickleReader, position: int) -> str:
    code = machine.data[position - 1 : position]
    if code in {pickle.GLOBAL, pickle.INST}:
        module, name = (*machine.data[position : position + 400].split(b"\n", 2)[:2], b"", b"")[:2]
        return f"asks to import `{_shown(module)}.{_shown(name)}`"
    if code == pickle.STACK_GLOBAL:
        module, name = (*machine.stack[-2:], "", "")[:2]
        return f"asks to import `{_shown(module)}.{_shown(name)}`"
    return _REFUSALS.get(code, f"has the instruction {code!r}, which plain data has no use for")


def _shown(name: object) -> str:
    text = name.decode("utf-8", "replace") if isinstance(name, bytes) else str(name) if isinstance(name, str) else "?"
    return "".join(character if character.isprintable() else "?" for character in text[:100])


_REFUSALS: Final = {
    code: request
    for request, codes in {
        "asks to call a function": (pickle.REDUCE,),
        "asks to set an object's state": (pickle.BUILD,),
        "asks to make an object": (pickle.OBJ, pickle.NEWOBJ, pickle.NEWOBJ_EX),
        "refers to an object outside of the file": (pickle.PERSID, pickle.BINPERSID),
        "asks for a registered extension": (pickle.EXT1, pickle.EXT2, pickle.EXT4),
        "refers to a buffer outside of the file": (pickle.NEXT_BUFFER, pickle.READONLY_BUFFER),
        "holds a set": (pickle.EMPTY_SET, pickle.FROZENSET, pickle.ADDITEMS),
    }.items()
    for code in codes
}

_ALLOWED: Final = {
    pickle.PROTO: _skipped(1),
    pickle.FRAME: _skipped(8),
    pickle.MARK: _step(lambda machine: machine.marks.append(len(machine.stack))),
    pickle.POP: _step(lambda machine: machine.stack.pop()),
    pickle.POP_MARK: _step(_PickleReader.since_mark),
    pickle.BINPUT: _binput,
    pickle.LONG_BINPUT: _long_binput,
    pickle.NONE: _step(lambda machine: machine.stack.append(None)),
    pickle.NEWTRUE: _step(lambda machine: machine.stack.append(True)),
    pickle.NEWFALSE: _step(lambda machine: machine.stack.append(False)),
    pickle.BININT2: _number(_UNSIGNED_16, 2),
    pickle.BININT: _number(_SIGNED_32, 4),
    pickle.LONG1: _long1,
    pickle.BINFLOAT: _number(_FLOAT, 8),
    pickle.SHORT_BINUNICODE: _text(_unsigned_8, 1),
    pickle.BINUNICODE: _text(_UNSIGNED_32, 4),
    pickle.BINUNICODE8: _text(_UNSIGNED_64, 8),
    pickle.SHORT_BINBYTES: _bytes(_unsigned_8, 1),
    pickle.BINBYTES: _bytes(_UNSIGNED_32, 4),
    pickle.EMPTY_TUPLE: _tuple_of(0),
    pickle.TUPLE1: _tuple_of(1),
    pickle.TUPLE2: _tuple_of(2),
    pickle.TUPLE3: _tuple_of(3),
    pickle.TUPLE: _step(lambda machine: machine.push_container(tuple(machine.since_mark()))),
    pickle.EMPTY_LIST: _step(lambda machine: machine.push_container([])),
    pickle.EMPTY_DICT: _step(lambda machine: machine.push_container({})),
    pickle.APPEND: _step(lambda machine: machine.extend([machine.stack.pop()])),
    pickle.APPENDS: _step(lambda machine: machine.extend(machine.since_mark())),
    pickle.SETITEM: _step(lambda machine: machine.set_items([machine.stack.pop(-2), machine.stack.pop()])),
    pickle.SETITEMS: _step(lambda machine: machine.set_items(machine.since_mark())),
}
_HANDLERS: Final = tuple(_ALLOWED.get(bytes([code]), _refused) for code in range(256))


_LARGEST_FILE: Final = 4 * GIB
_PICKLE_PROTOCOLS: Final = (b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05")
_JSON_KEYS: Final = (b'"segments"', b'"device_traces"', b'"total_size"', b'"blocks"', b'"allocator_settings"')


def looks_like_snapshot(head: bytes) -> bool:
    """Return whether a file that begins like this is a pickle or a snapshot as JSON, and not a log.

    Args:
        head: The file's first bytes; a few kilobytes are enough.
    """
    if head.startswith(_PICKLE_PROTOCOLS):
        return True
    text = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    return text[:1] in {b"{", b"["} and any(key in text for key in _JSON_KEYS)


def read_snapshot(data: bytes | Path, source: str) -> RawSnapshot:
    """Read a memory snapshot, as `torch.cuda.memory._dump_snapshot` writes it, or the same as JSON.

    Args:
        data: The file, or what it holds.
        source: The file as it was given, for errors and for the result.

    Raises:
        UsageError: It cannot be read, is not a snapshot, or asks for more than plain data. Nothing in it is run.
    """
    content = data if isinstance(data, bytes) else _content(data, source)
    with gc_paused():
        plain = load_plain(content, source) if content.startswith(_PICKLE_PROTOCOLS) else _load_json(content, source)
        return read_layout(plain, source, len(content))


def _content(path: Path, source: str) -> bytes:
    try:
        if not path.is_file():  # a device or a pipe may never end
            raise UsageError(f"`{source}` is not a file", hint="give the file that `_dump_snapshot` wrote")
        size = path.stat().st_size
        if size > _LARGEST_FILE:
            raise UsageError(
                f"`{source}` is {format_size(size)}, and nothing beyond {format_size(_LARGEST_FILE)} is read",
                hint="record fewer events: `torch.cuda.memory._record_memory_history(max_entries=100_000)`",
            )
        with path.open("rb") as file:
            return file.read(_LARGEST_FILE)
    except OSError as error:
        raise UsageError(f"`{source}` cannot be read: {error.strerror or error}") from error


def _load_json(content: bytes, source: str) -> Any:  # noqa: ANN401 - what the file holds
    try:
        return json.loads(content)
    except (ValueError, RecursionError) as error:
        raise UsageError(
            f"`{source}` is not a memory snapshot: it is neither a pickle nor JSON",
            hint='record one with `torch.cuda.memory._dump_snapshot("snapshot.pickle")`',
        ) from error
