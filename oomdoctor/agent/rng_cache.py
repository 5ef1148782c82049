"""Cache of random draws: large random fills on the CPU are drawn in one trial and copied in the next.

Most of what a script computes before its first step is its model's first weights. A generator in the same state draws
the same numbers; so what a trial has drawn is kept in memory of the probe's, under the generator's state and all else
that the numbers depend on. Who finds it there copies it, and puts the generator where drawing would have left it.

First comes where the free part begins, and then one record after the other: what was asked for, how many bytes were
drawn, the generator's state afterwards and the numbers. A record counts once the free part begins behind it, so one
whose writer was killed is written over by the next.
"""

# ruff: noqa: PLC0415 - what is not needed yet is not imported yet
# ruff: noqa: ANN401 - torch's own types have no names here

from __future__ import annotations

import functools
import os
import struct
from typing import Any, NamedTuple

from . import settings
from .guard import guarded, note_failure

_HEADER = struct.Struct("<Q")
_RECORD = struct.Struct("<32sQQ")
_ALIGNMENT = 64


class StoredDraw(NamedTuple):
    """What was drawn.

    Attributes:
        begin: Where the numbers begin in the memory.
        state: Of the generator, after it.
    """

    begin: int
    state: bytes


class DrawStore:
    """What has been drawn so far, by this process or another.

    It is read and written as a file: to map it would take a fault for each of its pages.

    Args:
        path: Of the memory.
    """

    def __init__(self, path: str) -> None:
        self._descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        self._size = os.fstat(self._descriptor).st_size
        self._known: dict[bytes, StoredDraw] = {}
        self._read_until = _HEADER.size

    def find(self, key: bytes) -> StoredDraw | None:
        """What was drawn for this key of 32 bytes; None where nothing was."""
        self._read()
        return self._known.get(key)

    def copy(self, found: StoredDraw, target: Any) -> None:
        """Copy the numbers to where the program wants them.

        Raises:
            OSError: They are not all there.
        """
        rest, begin = memoryview(target).cast("B"), found.begin
        while rest:
            done = os.preadv(self._descriptor, [rest], begin)
            if not done:
                raise OSError("the memory ends before its numbers")
            rest, begin = rest[done:], begin + done

    def keep(self, key: bytes, numbers: Any, state: bytes) -> None:
        """Add what was drawn, where there is room and nobody else is adding."""
        import fcntl

        try:
            fcntl.lockf(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return
        try:
            if self.find(key) is None:
                self._append(key, memoryview(numbers).cast("B"), state)
        finally:
            fcntl.lockf(self._descriptor, fcntl.LOCK_UN)

    def _append(self, key: bytes, numbers: memoryview, state: bytes) -> None:
        begin = self._read_until
        places = _record_layout(begin, len(numbers), len(state))
        if places.end > self._size:
            return
        self._write(_RECORD.pack(key, len(numbers), len(state)), begin)
        self._write(state, places.state)
        self._write(numbers, places.numbers)
        self._write(_HEADER.pack(places.end), 0)

    def _write(self, data: bytes | memoryview, begin: int) -> None:
        rest = memoryview(data)
        while rest:
            done = os.pwrite(self._descriptor, rest, begin)
            rest, begin = rest[done:], begin + done

    def _read(self) -> None:
        (end,) = _HEADER.unpack(os.pread(self._descriptor, _HEADER.size, 0))
        while self._read_until < end:
            key, numbers, state = _RECORD.unpack(os.pread(self._descriptor, _RECORD.size, self._read_until))
            places = _record_layout(self._read_until, numbers, state)
            self._known[key] = StoredDraw(places.numbers, os.pread(self._descriptor, state, places.state))
            self._read_until = places.end


class _RecordLayout(NamedTuple):
    """Where the parts of a record begin, and where the next one does."""

    state: int
    numbers: int
    end: int


def _record_layout(begin: int, numbers: int, state: int) -> _RecordLayout:
    first = begin + _RECORD.size
    second = -(-(first + state) // _ALIGNMENT) * _ALIGNMENT
    return _RecordLayout(first, second, -(-(second + numbers) // _ALIGNMENT) * _ALIGNMENT)


_FEWEST = 1 << 16
"""Numbers below which drawing takes no longer than looking."""

_METHODS = ("normal_", "uniform_")


def watch(torch: Any) -> None:
    """Keep what these methods draw, and copy what has been drawn; do nothing where the probe gives no memory."""
    if not settings.DRAWS:
        return
    drawn = DrawStore(settings.DRAWS)
    for name in _METHODS:
        setattr(torch.Tensor, name, _cached_method(torch, name, drawn))


def _cached_method(torch: Any, name: str, drawn: DrawStore) -> Any:
    draw = getattr(torch.Tensor, name)

    @functools.wraps(draw)
    def fill(self: Any, *arguments: Any, **named: Any) -> Any:
        question = _draw_key(torch, name, self, arguments, named)
        if question is None:
            return draw(self, *arguments, **named)
        if not _fill_from_cache(torch, drawn, question, self):
            draw(self, *arguments, **named)
            guarded(_store_draw)(drawn, question, self)
        return self

    return fill


class _DrawKey:
    """What numbers depend on.

    Attributes:
        generator: That draws them.
        key: All of it, in 32 bytes.
    """

    def __init__(self, generator: Any, *parts: Any) -> None:
        import hashlib

        self.generator = generator
        self.key = hashlib.blake2b(repr(parts).encode() + _bytes_of(generator.get_state()), digest_size=32).digest()


def _draw_key(torch: Any, name: str, tensor: Any, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
    """What is asked for; None where it is too little, or where more than numbers in memory would come of it."""
    try:
        if _is_observed(torch) or not _is_plain(torch, tensor):
            return None
        plain = dict(named)
        generator = plain.pop("generator", None) or torch.default_generator
        values = [*arguments, *plain.values()]
        if not all(type(value) in (int, float) for value in values) or generator.device.type != "cpu":
            return None
        # Vector instructions take the generator's numbers in another order than one by one.
        drawing = (torch.__version__, torch.backends.cpu.get_cpu_capability(), name, tensor.dtype, tensor.numel())
        return _DrawKey(generator, drawing, arguments, sorted(plain.items()))
    except Exception as error:  # noqa: BLE001 - it is drawn then, as without us
        note_failure("draws", error)
        return None


def _is_observed(torch: Any) -> bool:
    """Whether calls are seen or changed on their way: by modes of the program's, or by transforms of functions."""
    of_torch = torch._C  # noqa: SLF001 - there are no public names
    return bool(
        of_torch._is_torch_function_mode_enabled()  # noqa: SLF001
        or of_torch._len_torch_dispatch_stack()  # noqa: SLF001
        or of_torch._functorch.peek_interpreter_stack() is not None  # noqa: SLF001
    )


def _is_plain(torch: Any, tensor: Any) -> bool:
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter) or tensor.device.type != "cpu":
        return False
    if tensor.layout is not torch.strided or tensor.numel() < _FEWEST or not tensor.is_contiguous():
        return False
    return not (tensor.requires_grad and torch.is_grad_enabled())  # which is an error of the program's


def _fill_from_cache(torch: Any, drawn: DrawStore, question: _DrawKey, tensor: Any) -> bool:
    """Fill the tensor with what was drawn before, where that can be had."""
    try:
        found = drawn.find(question.key)
        if found is None:
            return False
        drawn.copy(found, _tensor_memory(tensor))
        torch.autograd.graph.increment_version(tensor)
        question.generator.set_state(torch.frombuffer(bytearray(found.state), dtype=torch.uint8))
    except Exception as error:  # noqa: BLE001 - it is drawn then, as without us
        note_failure("draws", error)
        return False
    return True


def _store_draw(drawn: DrawStore, question: _DrawKey, tensor: Any) -> None:
    drawn.keep(question.key, _tensor_memory(tensor), _bytes_of(question.generator.get_state()))


def _bytes_of(tensor: Any) -> bytes:
    return bytes(_tensor_memory(tensor))


def _tensor_memory(tensor: Any) -> Any:
    """The tensor's own bytes; NumPy, which would give them too, is not always there."""
    import ctypes

    return (ctypes.c_char * (tensor.numel() * tensor.element_size())).from_address(tensor.data_ptr())
