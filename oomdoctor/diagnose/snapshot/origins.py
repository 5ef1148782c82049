"""Read the stack of an allocation: the kind of code, and the user's own line.

Frames are compared with the signs of `origins.toml`, innermost first, and the first that matches decides: inside of an
optimizer's step a closure may run a forward pass, and inside of a forward pass a library may load weights.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum, auto
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from oomdoctor.diagnose.tables import compiled, read_table
from oomdoctor.diagnose.text.phases import is_library
from oomdoctor.results import SourceLine

if TYPE_CHECKING:
    from oomdoctor.diagnose.snapshot.layout import Frame, Stack


class AllocationOrigin(Enum):
    """Kind of code that allocated."""

    NONE = auto()  # no Python at all: the autograd engine's thread, or not recorded
    ENGINE = auto()  # Python that the autograd engine's thread called: hooks, custom backward functions
    RECOMPUTED = auto()  # checkpointing, which runs a forward pass again for backward
    BACKWARD = auto()  # the call of backward itself, on the thread that waits for the engine
    OPTIMIZER_STATE = auto()  # where optimizers make their state
    OPTIMIZER = auto()  # elsewhere in an optimizer
    BUCKETS = auto()  # where distributed training makes its buffers for gradients
    LOAD = auto()  # weights: made, moved to the device, or read from a file
    FORWARD = auto()  # a module's forward pass, or a function of torch.nn.functional
    TRANSFER = auto()  # a library that moves batches to the device
    OWN = auto()  # the user's code outside of all that: `.to(device)`, a loss of one's own


@dataclass(frozen=True, slots=True)
class _Sign:
    """Files and functions that tell of an origin."""

    origin: AllocationOrigin
    path: re.Pattern[str]
    functions: frozenset[str] | None = None


_SIGNS: Final = tuple(
    _Sign(
        AllocationOrigin[sign["origin"].upper()],
        compiled(sign.get("path", "")),
        frozenset(sign["functions"]) if "functions" in sign else None,
    )
    for sign in read_table(__file__)["sign"]
)
_TORCH: Final = re.compile(r"[/\\]torch[/\\]")
# These start the user's program, so that it may be the thread that runs it which begins in PyTorch's files.
_LAUNCHER: Final = re.compile(
    r"[/\\]torch[/\\](?:multiprocessing|distributed[/\\](?:run|launch\w*|elastic|launcher))\b"
)


@dataclass(frozen=True, slots=True)
class StackFacts:
    """Facts of a stack.

    Attributes:
        origin: The kind of code.
        place: The innermost line that is the user's own; where none is, the outermost line of the library.
        innermost: The innermost frame in one line.
    """

    origin: AllocationOrigin
    place: SourceLine | None
    innermost: str | None

    @property
    def on_engine(self) -> bool:
        """Return whether the autograd engine's thread allocated, while the program's own thread waited for it."""
        return self.origin in _ON_ENGINE


_ON_ENGINE: Final = frozenset({AllocationOrigin.NONE, AllocationOrigin.ENGINE, AllocationOrigin.RECOMPUTED})


def read_stack(stack: Stack) -> StackFacts:
    """Read the facts of a stack."""
    if not stack:
        return StackFacts(AllocationOrigin.NONE, None, None)
    own = next((frame for frame in stack if not _is_library(frame.path)), None)
    place = None if own is None else SourceLine(own.path, own.line, own.function)
    innermost = stack[0].path.replace("\\", "/")
    for root in ("/site-packages/", "/dist-packages/"):
        innermost = innermost.rpartition(root)[2]
    return StackFacts(_origin(stack), place, f"{stack[0].function} ({innermost}:{stack[0].line})")


def as_lines(stack: Stack) -> tuple[SourceLine, ...]:
    """Return the stack as a traceback prints it, outermost frame first."""
    return tuple(SourceLine(frame.path, frame.line, frame.function) for frame in reversed(stack))


@lru_cache(maxsize=10_000)
def is_torch(path: str) -> bool:
    """Return whether a file is PyTorch's own; a user's folder may have that name too."""
    return _TORCH.search(path) is not None and is_library(path)


def _origin(stack: Stack) -> AllocationOrigin:
    found = next((origin for frame in stack if (origin := _frame_origin(frame)) is not None), None)
    root = stack[-1].path
    if is_torch(root) and not _LAUNCHER.search(root):
        recomputes = any(_frame_origin(frame) is AllocationOrigin.RECOMPUTED for frame in stack)
        return AllocationOrigin.RECOMPUTED if recomputes else AllocationOrigin.ENGINE
    if found is not None and found is not AllocationOrigin.FORWARD:
        return found
    # A module that makes a tensor of its own in its constructor keeps it; in a forward pass it is called, not made.
    own = next((frame for frame in stack if not _is_library(frame.path)), None)
    if own is not None and own.function == "__init__" and found is None:
        return AllocationOrigin.LOAD
    return found or AllocationOrigin.OWN


@lru_cache(maxsize=100_000)
def _frame_origin(frame: Frame) -> AllocationOrigin | None:
    path = frame.path.replace("\\", "/")
    for sign in _SIGNS:
        if (sign.functions is None or frame.function in sign.functions) and sign.path.search(path):
            return sign.origin
    return None


_is_library = lru_cache(maxsize=10_000)(is_library)
