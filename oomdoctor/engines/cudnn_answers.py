"""Ask the real cuDNN which engines it would choose on a card, and how much workspace each takes. No GPU is needed.

Since cuDNN 9.8 a descriptor of a device's properties stands for a device in everything that this asks. It is run as a
process of its own, `python answers.py SETTINGS`: the library must not meet the null GPU, which goes by the names of the
libraries that it loads. So this file imports nothing but the standard library.

A question is a line `KEY CARD GRAPH`: the card as JSON without spaces, the graph in the text of the null GPU's
`cudnn_graph.c`. The answer is a line `COUNT ENGINE:NUMERICAL_NOTES:BEHAVIOR_NOTES:WORKSPACE_BYTES:STATUS ...` in the
order of the library's heuristics. Each is also appended to a file, after its key.
Source: cuDNN's backend interface, `cudnn_graph.h` of cuDNN 9.8 to 9.26.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

_ENGINE: Final = 2
_ENGINE_CONFIGURATION: Final = 3
_EXECUTION_PLAN: Final = 5
_DEVICE_PROPERTIES: Final = 38

_HEURISTICS_RESULTS: Final = 202
_HEURISTICS_DEVICE: Final = 204
_CONFIGURATION_ENGINE: Final = 300
_CONFIGURATION_WORKSPACE_BYTES: Final = 303
_PLAN_CONFIGURATION: Final = 401
_PLAN_DEVICE: Final = 407
_ENGINE_INDEX: Final = 1301
_ENGINE_NUMERICAL_NOTE: Final = 1303
_ENGINE_BEHAVIOR_NOTE: Final = 1305
_DEVICE_JSON: Final = 2702

_INT64: Final = 3
_NUMERICAL_NOTE: Final = 11
_DESCRIPTOR: Final = 15
_BEHAVIOR_NOTE: Final = 19
_CHAR: Final = 24

_RUNTIME_COMPILATION: Final = 0
"""Note of an engine that compiles its kernel: to build its plan takes seconds, and its configuration knows the same."""

_MAX_NOTES: Final = 32
_TOKENS: Final = re.compile(r"(\d+)\(|(\d+):(\d+)=|([0-9a-f]+)|[,;)]")
_LARGEST_FILE: Final = 16 << 20
"""Bytes of kept answers after which they are begun anew."""


class LibraryError(Exception):
    """The library refused a call."""


class Cudnn:
    """The real library.

    Args:
        library: Path of `libcudnn.so.9`.
        before: Libraries to load before it, which it would otherwise look for by name.

    Raises:
        OSError: A library cannot be loaded.
    """

    def __init__(self, library: str, before: list[str]) -> None:
        for path in before:
            ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)
        self._library = ctypes.CDLL(library)
        for name in ("SetAttribute", "GetAttribute"):
            getattr(self._library, f"cudnnBackend{name}").argtypes = _ARGUMENTS[name]
        self._cards: dict[str, ctypes.c_void_p] = {}

    def _card(self, text: str) -> ctypes.c_void_p:
        if text not in self._cards:
            card = self._create(_DEVICE_PROPERTIES)
            self._set(card, _DEVICE_JSON, _CHAR, len(text), text.encode())
            self._check("Finalize", card)
            self._cards[text] = card
        return self._cards[text]

    def answer(self, card: str, graph: str) -> str:
        """Return the answer to a question; `-1` where the library does not support the graph on the card."""
        made: list[ctypes.c_void_p] = []
        try:
            device = self._card(card)
            heuristics = self._build(_parse(graph), device, made)
            count = ctypes.c_int64()
            self._get(heuristics, _HEURISTICS_RESULTS, _DESCRIPTOR, 0, count, None)
            found = (ctypes.c_void_p * max(count.value, 1))()
            for index in range(count.value):
                made.append(self._create(_ENGINE_CONFIGURATION))
                found[index] = made[-1]
            if count.value:
                self._get(heuristics, _HEURISTICS_RESULTS, _DESCRIPTOR, count.value, count, found)
            lines = [self._configuration(ctypes.c_void_p(found[index]), device) for index in range(count.value)]
        except LibraryError:
            return "-1"
        finally:
            for descriptor in reversed(made):
                self._library.cudnnBackendDestroyDescriptor(descriptor)
        return " ".join([str(len(lines)), *lines])

    def _configuration(self, configuration: ctypes.c_void_p, device: ctypes.c_void_p) -> str:
        engine, count, index, size = self._create(_ENGINE), ctypes.c_int64(), ctypes.c_int64(), ctypes.c_int64()
        try:
            self._get(configuration, _CONFIGURATION_ENGINE, _DESCRIPTOR, 1, count, ctypes.byref(engine))
            self._get(engine, _ENGINE_INDEX, _INT64, 1, count, ctypes.byref(index))
            self._get(configuration, _CONFIGURATION_WORKSPACE_BYTES, _INT64, 1, count, ctypes.byref(size))
            numerical = self._notes(engine, _ENGINE_NUMERICAL_NOTE, _NUMERICAL_NOTE)
            behavior = self._notes(engine, _ENGINE_BEHAVIOR_NOTE, _BEHAVIOR_NOTE)
        finally:
            self._library.cudnnBackendDestroyDescriptor(engine)
        status = 0 if behavior >> _RUNTIME_COMPILATION & 1 else self._plan_status(configuration, device)
        return f"{index.value}:{numerical:x}:{behavior:x}:{size.value}:{status}"

    def _plan_status(self, configuration: ctypes.c_void_p, device: ctypes.c_void_p) -> int:
        plan = self._create(_EXECUTION_PLAN)
        try:
            self._set(plan, _PLAN_CONFIGURATION, _DESCRIPTOR, 1, ctypes.byref(configuration))
            self._set(plan, _PLAN_DEVICE, _DESCRIPTOR, 1, ctypes.byref(device))
            return int(self._library.cudnnBackendFinalize(plan))
        finally:
            self._library.cudnnBackendDestroyDescriptor(plan)

    def _notes(self, engine: ctypes.c_void_p, name: int, kind: int) -> int:
        """Return the notes of an engine, a bit each."""
        notes, count = (ctypes.c_int * _MAX_NOTES)(), ctypes.c_int64()
        self._get(engine, name, kind, _MAX_NOTES, count, notes)
        return sum(1 << notes[index] for index in range(min(count.value, _MAX_NOTES)))

    def _build(self, node: _Node, device: ctypes.c_void_p, made: list[ctypes.c_void_p]) -> ctypes.c_void_p:
        """Make a descriptor and those that it is made of; each is appended to `made`, to be destroyed by the caller."""
        kind, attributes = node
        descriptor = self._create(kind)
        made.append(descriptor)
        for name, value_kind, values in attributes:
            if value_kind == _DESCRIPTOR:
                children = (ctypes.c_void_p * len(values))(*(self._build(child, device, made) for child in values))
                self._set(descriptor, name, value_kind, len(values), children)
            else:
                self._set(descriptor, name, value_kind, len(values), b"".join(values))
        if kind == _HEURISTICS:
            self._set(descriptor, _HEURISTICS_DEVICE, _DESCRIPTOR, 1, ctypes.byref(device))
        self._check("Finalize", descriptor)
        return descriptor

    def _create(self, kind: int) -> ctypes.c_void_p:
        descriptor = ctypes.c_void_p()
        self._check("CreateDescriptor", kind, ctypes.byref(descriptor))
        return descriptor

    def _set(self, *arguments: Any) -> None:  # noqa: ANN401 - C's pointers
        self._check("SetAttribute", *arguments)

    def _get(self, descriptor: ctypes.c_void_p, name: int, kind: int, room: int, *pointers: Any) -> None:  # noqa: ANN401 - as above
        count, values = pointers
        self._check("GetAttribute", descriptor, name, kind, room, ctypes.byref(count), values)

    def _check(self, name: str, *arguments: Any) -> None:  # noqa: ANN401 - as above
        status = getattr(self._library, f"cudnnBackend{name}")(*arguments)
        if status:
            raise LibraryError(f"cudnnBackend{name}: status {status}")


_ARGUMENTS: Final = {
    "SetAttribute": (ctypes.c_void_p, ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_void_p),
    "GetAttribute": (ctypes.c_void_p, ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p),
}
_HEURISTICS: Final = 4

_Node = tuple[int, list[tuple[int, int, list[Any]]]]
"""Kind of a descriptor, and its attributes: name, type, and values, each bytes or a node."""


def _parse(graph: str) -> _Node:
    """Parse the text of heuristics.

    Raises:
        LibraryError: It is not such a text.
    """
    tokens = _TOKENS.finditer(graph)
    node = (_HEURISTICS, _parse_attributes(tokens))
    if next(tokens, None) is not None:
        raise LibraryError("a question is malformed")
    return node


def _parse_attributes(tokens: Iterator[re.Match[str]]) -> list[tuple[int, int, list[Any]]]:
    attributes: list[tuple[int, int, list[Any]]] = []
    for token in tokens:
        kind, name, value_kind, data = token.groups()
        if name is not None:
            attributes.append((int(name), int(value_kind), []))
        elif kind is not None:
            attributes[-1][2].append((int(kind), _parse_attributes(tokens)))
        elif data is not None:
            attributes[-1][2].append(bytes.fromhex(data))
        elif token[0] == ")":
            break
    return attributes


def main() -> None:
    """Answer questions from standard input until it ends; the settings are a JSON object, the only argument."""
    settings = json.loads(sys.argv[1])
    if os.fork():
        os._exit(0)  # whoever started this waits for no child
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # it ends when its questions do
    library = Cudnn(settings["library"], settings["before"])
    kept = Path(settings["answers"])
    kept.parent.mkdir(parents=True, exist_ok=True)
    if kept.is_file() and kept.stat().st_size > _LARGEST_FILE:
        kept.unlink()
    with kept.open("ab", buffering=0) as file:
        for line in sys.stdin:
            key, card, graph = line.split()
            answer = library.answer(card, graph)
            file.write(f"\n{key} {answer}\n".encode())  # one write, so that several processes can append
            sys.stdout.write(f"{answer}\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
