"""The workspaces that the installed cuDNN would take on a card, asked of the library itself; no GPU is needed.

The questions are the graphs of operations that PyTorch describes to cuDNN. On the null GPU PyTorch asks them itself, in
C (`cudnn_graph.c`); here the same graphs are written for a convolution of the emulated device. `cudnn_answers.py` runs
the library in a process of its own, and keeps what it answered.

Source of the graphs and of the order in which configurations are tried: Conv_v8.cpp, torch 2.10 to 2.15.
"""

from __future__ import annotations

import os
import struct
import subprocess  # the library's own process
from functools import cache, lru_cache
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

COMMAND: Final = "OOMDOCTOR_NULL_CUDNN_COMMAND"
"""Variable with the command of the library's process, its words separated by line feeds."""
ANSWERS: Final = "OOMDOCTOR_NULL_CUDNN_ANSWERS"
"""Variable with the path of the answers that are kept."""


# --- the graph of a convolution --------------------------------------------------------------------------------------


class TensorLayout(NamedTuple):
    """A tensor, as cuDNN is told of it.

    Attributes:
        size: Its sizes, `[N, C, ...]`.
        stride: Its strides, in elements.
        alignment: Largest power of two up to 32 that divides its address.
    """

    size: tuple[int, ...]
    stride: tuple[int, ...]
    alignment: int


class Convolution(NamedTuple):
    """A convolution of a layer: forward, or one of the two of its backward.

    Attributes:
        kind: `forward`, `data` for the gradient of the input, or `filter` for that of the weight.
        dtype: Such as `float32`.
        x: The input, or its gradient.
        w: The weight, or its gradient.
        y: The output, or its gradient.
        padding: Of each dimension of space.
        stride: As `padding`.
        dilation: As `padding`.
    """

    kind: str
    dtype: str
    x: TensorLayout
    w: TensorLayout
    y: TensorLayout
    padding: tuple[int, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]


_TENSOR_CORE, _DOWN_CONVERT_INPUTS, _NONDETERMINISTIC = 1 << 0, 1 << 1, 1 << 4
_INSTANT, _FALLBACK = 0, 2
_OPERATIONS: Final = {"forward": (10, 700), "filter": (11, 712), "data": (12, 706)}
"""Kind of descriptor, and its first attribute: alpha, beta, convolution, w, x, y follow in that order."""
_DATA_TYPES: Final = {"float32": 0, "float64": 1, "float16": 2, "bfloat16": 9}
_FLOAT, _DOUBLE, _INT64, _DESCRIPTOR = 4, 5, 3, 15


def graph_of(convolution: Convolution, mode: int) -> str:
    """Return the question about a convolution, in the text of `cudnn_graph.c`."""
    kind, first = _OPERATIONS[convolution.kind]
    data_type = _DATA_TYPES[convolution.dtype]
    x, w, y = (_tensor(getattr(convolution, name), name, data_type) for name in "xwy")
    is_double = convolution.dtype == "float64"
    scales = struct.Struct("<d" if is_double else "<f")
    scale_type = _DOUBLE if is_double else _FLOAT
    operation = _node(
        kind,
        (first + 4, _DESCRIPTOR, [x]),
        (first + 3, _DESCRIPTOR, [w]),
        (first + 5, _DESCRIPTOR, [y]),
        (first + 2, _DESCRIPTOR, [_convolution(convolution, _DATA_TYPES["float64"] if is_double else 0)]),
        (first, scale_type, [scales.pack(1).hex()]),
        (first + 1, scale_type, [scales.pack(0).hex()]),
    )
    graph = _node(15, (801, _DESCRIPTOR, [operation]))
    return _attributes((201, _DESCRIPTOR, [graph]), (200, 8, [_int(mode)]))


def _tensor(tensor: TensorLayout, name: str, data_type: int) -> str:
    return _node(
        17,
        (901, 1, [_int(data_type)]),
        (902, _INT64, _int64s(tensor.size)),
        (903, _INT64, _int64s(tensor.stride)),
        (906, _INT64, _int64s([ord(name)])),
        (900, _INT64, _int64s([tensor.alignment])),
    )


def _convolution(convolution: Convolution, compute_type: int) -> str:
    padding = _int64s(convolution.padding)
    return _node(
        1,
        (100, 1, [_int(compute_type)]),
        (101, 7, [_int(1)]),
        (106, _INT64, _int64s([len(convolution.stride)])),
        (105, _INT64, padding),
        (104, _INT64, padding),
        (102, _INT64, _int64s(convolution.dilation)),
        (103, _INT64, _int64s(convolution.stride)),
    )


def _node(kind: int, *attributes: tuple[int, int, list[str]]) -> str:
    return f"{kind}({_attributes(*attributes)})"


def _attributes(*attributes: tuple[int, int, list[str]]) -> str:
    return "".join(f"{name}:{kind}={','.join(values)};" for name, kind, values in attributes)


def _int(value: int) -> str:
    return struct.pack("<i", value).hex()


def _int64s(values: Sequence[int]) -> list[str]:
    return [struct.pack("<q", value).hex() for value in values]


def regular_strides(size: Sequence[int], stride: Sequence[int], *, channels_last: bool) -> tuple[int, ...]:
    """Return strides as PyTorch tells them: those of dimensions of size 1 are what a dense tensor would have.

    Source: `fixSizeOneDimStride`, Descriptors.cpp of cuDNN.
    """
    space = range(len(size) - 1, 1, -1)
    fixed = [*stride]
    order = (1, *space, 0) if channels_last else (*space, 1, 0)
    for index, dim in enumerate(order):
        if size[dim] == 1:
            fixed[dim] = prod(size[inner] for inner in order[:index])
    return tuple(fixed)


# --- the answers -----------------------------------------------------------------------------------------------------


class EngineConfiguration(NamedTuple):
    """An engine that cuDNN would choose.

    Attributes:
        engine: Its index.
        numerical_notes: A bit a note.
        behavior_notes: A bit a note.
        workspace_bytes: What it needs while it runs.
        status: Of building a plan; 0 is success.
    """

    engine: int
    numerical_notes: int
    behavior_notes: int
    workspace_bytes: int
    status: int


def _configurations_in(answer: str) -> tuple[EngineConfiguration, ...]:
    """Parse `COUNT ENGINE:NUMERICAL_NOTES:BEHAVIOR_NOTES:WORKSPACE_BYTES:STATUS ...`."""
    words = (word.split(":") for word in answer.split()[1:])
    return tuple(
        EngineConfiguration(int(engine), int(numerical, 16), int(behavior, 16), int(size), int(status))
        for engine, numerical, behavior, size, status in words
    )


_PRIMES: Final = ((1 << 56) - 5, (1 << 55) - 55)


def _key(question: str) -> str:
    """Return the name under which an answer is kept, as `write_key` of `cudnn_answers.c` does."""
    number = int.from_bytes(question.encode(), "big")
    return "".join(f"{number % prime:014x}" for prime in _PRIMES)


class _Library:
    """The library's process, started at the first question of which no answer is kept."""

    def __init__(self) -> None:
        lines = Path(os.environ[ANSWERS])
        text = lines.read_text(encoding="utf-8") if lines.is_file() else ""
        self._kept = dict(line.split(" ", 1) for line in text.splitlines() if " " in line)
        self._process: subprocess.Popen[str] | None = None

    def answer(self, card: str, graph: str) -> str | None:
        """Return the answer to a question; None where there is none."""
        key = _key(card + graph)
        return self._kept.get(key) or self._ask(f"{key} {card} {graph}\n")

    def _ask(self, question: str) -> str | None:
        process = self._process = self._process or self._start()
        if process.stdin is None or process.stdout is None:
            return None
        try:
            process.stdin.write(question)
            process.stdin.flush()
            return process.stdout.readline()
        except OSError:
            return None

    @staticmethod
    def _start() -> subprocess.Popen[str]:
        words = os.environ[COMMAND].split("\n")
        process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={}, text=True)
        process.wait()  # it goes on in a child of its own
        return process


def can_ask() -> bool:
    """Return whether this process can ask the real cuDNN."""
    return COMMAND in os.environ


@cache
def _library(_process: int) -> _Library:
    return _Library()  # a parent's is the parent's


@lru_cache(maxsize=1 << 16)
def _configurations(card: str, graph: str) -> tuple[EngineConfiguration, ...]:
    return _configurations_in(_library(os.getpid()).answer(card, graph) or "")


@lru_cache(maxsize=1 << 16)
def workspaces(card: str, convolution: Convolution, *, deterministic: bool, allow_tf32: bool) -> tuple[int, ...]:
    """Return the bytes of the workspaces that PyTorch tries, in its order; it takes the first that fits.

    Those after one that is sure to fit are left out.

    Args:
        card: As `card_properties` returns it.
        convolution: The convolution.
        deterministic: Whether engines that are not deterministic are left out.
        allow_tf32: Whether TF32 may be used for fp32.
    """
    left_out = _DOWN_CONVERT_INPUTS
    if deterministic:
        left_out |= _NONDETERMINISTIC
    if convolution.dtype == "float32" and not allow_tf32:
        left_out |= _TENSOR_CORE
    sizes: list[int] = []
    for mode in (_INSTANT, _FALLBACK):
        for one in _configurations(card, graph_of(convolution, mode)):
            if one.numerical_notes & left_out or one.status:
                continue
            sizes.append(one.workspace_bytes)
            if one.workspace_bytes <= _SURE_TO_FIT:
                return tuple(sizes)
    return tuple(sizes) or (0,)


_SURE_TO_FIT: Final = 1 << 20
"""Bytes of a workspace that comes from the allocator's small blocks, so that what follows it is never asked for."""
