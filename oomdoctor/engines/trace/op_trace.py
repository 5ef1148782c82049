"""The trace of a step's memory: allocations, operator calls and what a kernel takes besides its results.

A tensor is recorded by its bytes. An operator's temporaries may depend on the card, so its call is recorded instead,
and the temporaries are computed again for each card; so is the attention kernel that a card would choose. Other sizes
and other cards follow from it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

if TYPE_CHECKING:
    from collections.abc import Sequence

    from oomdoctor.engines.catalogue import Card


T = TypeVar("T")


class Workspace(NamedTuple):
    """Memory that a library allocates once for each thread of the process, and keeps.

    Attributes:
        library: Name of the library.
        nbytes: Size of the memory.
    """

    library: str
    nbytes: int


class OptionalWorkspace(NamedTuple):
    """Memory of one call of a library, of which less will do where there is no room.

    Attributes:
        call: What is called; the size that fitted is tried first at the next such call.
        sizes: Bytes, in the order in which they are tried.
    """

    call: object
    sizes: tuple[int, ...]

    def take(self, fitted: dict[object, int], allocate: Callable[[int], T], error: type[Exception]) -> T:
        """Allocate the first size for which there is room.

        Args:
            fitted: Size that fitted last on this thread, by call. PyTorch remembers it for each thread, and autograd
                has one of its own: what a checkpoint runs again is tried anew. Source: `benchmark_cache`, Conv_v8.cpp.
            allocate: Allocates bytes.
            error: What it raises where they do not fit.

        Raises:
            Exception: `error`, where none fits.
        """
        known = fitted.get(self.call)
        sizes = self.sizes if known is None else (known, *self.sizes)
        for nbytes in sizes[:-1]:
            try:
                taken = allocate(nbytes)
            except error:
                continue
            fitted[self.call] = nbytes
            return taken
        fitted[self.call] = sizes[-1]
        return allocate(sizes[-1])


AllocationStep = int | Workspace | OptionalWorkspace
"""Bytes of an allocation, `-1 - position` of one that is freed, or a library's workspace."""


class LibraryFunction(NamedTuple):
    """A function of a library that a kernel calls, in place of an operator.

    Attributes:
        function: Its name.
    """

    function: str

    def name(self) -> str:
        """Return the name, as an operator does."""
        return self.function


@dataclass(frozen=True, slots=True)
class OperatorCall:
    """An operator's call, the argument of the functions that give its temporaries.

    Attributes:
        card: The card on which it runs.
        operator: The operator, or a `LibraryFunction`.
        args: Positional arguments.
        kwargs: Keyword arguments.
        results: The results; see `plans`.
    """

    card: Card
    operator: Any
    args: Any
    kwargs: Any
    results: list[Any]

    def argument(self, position: int, name: str, default: object = None) -> Any:  # noqa: ANN401 - any argument
        """Return an argument that is given by position or by name, or its default."""
        return self.args[position] if len(self.args) > position else self.kwargs.get(name, default)


@dataclass(frozen=True, slots=True)
class Temporaries:
    """The memory that an operator takes besides its results.

    Attributes:
        before: Steps before the results are allocated.
        after: Steps after that; what is still allocated is freed when the operator ends.
        order: Indices of the results that are allocated, in the order of their allocation; None for all in their order.
        on_host: Indices of the results that are tensors of the host.
    """

    before: tuple[AllocationStep, ...] = ()
    after: tuple[AllocationStep, ...] = ()
    order: list[int] | None = None
    on_host: tuple[int, ...] = ()


NO_TEMPORARIES = Temporaries()

TemporariesByName = dict[str, Callable[[OperatorCall], Temporaries]]
"""Functions that give the temporaries of a call, by the name of its operator without overload."""
KernelsByName = dict[str, Callable[..., Any]]
"""Kernels by the name of their operator, such as `add.Tensor`."""


CACHE_EMPTIED: Final = 0
"""The entry of `empty_cache`; no allocation has 0 bytes."""
_NOT_THE_TARGET: Final = ("torch.", "oomdoctor.")


class TemporariesEntry(NamedTuple):
    """The point at which an operator takes its temporaries.

    Attributes:
        call: Index of the call in `OpTrace.calls`.
        is_after: Whether its results are allocated already.
        in_backward: Whether autograd runs it, whose threads have workspaces of their own.
    """

    call: int
    is_after: bool
    in_backward: bool


class OperatorEnd(NamedTuple):
    """The end of an operator, which frees its temporaries."""


class WorkspacesCleared(NamedTuple):
    """The release of all libraries' workspaces."""


class PhaseMark(NamedTuple):
    """The beginning or the end of a phase.

    Attributes:
        phase: The phase, as the caller names it.
        is_end: Whether it ends.
    """

    phase: object
    is_end: bool


Entry = int | TemporariesEntry | OperatorEnd | WorkspacesCleared | PhaseMark
"""Bytes of an allocation, `-1 - position` of one that is freed, `CACHE_EMPTIED`, or one of the above."""


class OpTrace:
    """The record of everything that changes memory.

    Args:
        other_cards: Cards whose choices of kernels are recorded besides those of the emulated card.

    Attributes:
        entries: The changes, in order.
        calls: The calls to which the entries of temporaries refer.
        choices: The choices of each other card, in order.
        questions: Names of the functions by which the target asked about the GPU.
        is_paused: Whether allocations are not recorded, because their operator's call is.
    """

    def __init__(self, other_cards: Sequence[Card]) -> None:
        self._other_cards = other_cards
        self._positions: dict[int, int] = {}
        self._count = 0
        self._indices: dict[int, int] = {}
        self._start: tuple[int, int, int] | None = None
        self._held_at_start: dict[int, int] = {}
        self.entries: list[Entry] = []
        self.calls: list[OperatorCall] = []
        self.choices: list[list[object]] = [[] for _ in other_cards]
        self.questions: set[str] = set()
        self.is_paused = False

    def begin(self) -> None:
        """Mark the start of a step at the first call; discard the entries since then at later calls."""
        if self._start is None:
            self._start = (len(self.entries), len(self.calls), self._count)
            self._held_at_start = dict(self._positions)
        entries, calls, self._count = self._start
        del self.entries[entries:], self.calls[calls:]
        self._indices = {id(call): index for index, call in enumerate(self.calls)}
        self.choices = [[] for _ in self._other_cards]

    @property
    def start(self) -> int:
        """Number of entries before the step."""
        return 0 if self._start is None else self._start[0]

    @property
    def is_balanced(self) -> bool:
        """Whether the step freed everything that it allocated, and nothing else."""
        return self._positions == self._held_at_start

    def allocated(self, address: int, nbytes: int) -> None:
        """Record an allocation."""
        if not self.is_paused:
            self._positions[address] = self._count
            self._count += 1
            self.entries.append(nbytes)

    def freed(self, address: int) -> None:
        """Record a free, unless the allocation is an operator's temporary."""
        position = self._positions.pop(address, None)
        if position is not None:
            self.entries.append(-1 - position)

    def emptied(self) -> None:
        """Record `empty_cache`."""
        self.entries.append(CACHE_EMPTIED)

    def cleared(self) -> None:
        """Record the release of libraries' workspaces."""
        self.entries.append(WorkspacesCleared())

    def takes(self, call: OperatorCall, *, is_after: bool, in_backward: bool) -> None:
        """Record that an operator takes its temporaries."""
        index = self._indices.setdefault(id(call), len(self.calls))
        if index == len(self.calls):
            self.calls.append(call)
        self.entries.append(TemporariesEntry(index, is_after, in_backward))

    def ended(self) -> None:
        """Record the end of an operator."""
        self.entries.append(OperatorEnd())

    def mark(self, phase: object, *, is_end: bool) -> None:
        """Record the beginning or the end of a phase."""
        self.entries.append(PhaseMark(phase, is_end))

    def chosen(self, choose: Callable[[Card], object]) -> None:
        """Record what each other card would choose."""
        for card, choices in zip(self._other_cards, self.choices, strict=True):
            choices.append(choose(card))

    def asked(self, what: str, answers: Callable[[Card], object]) -> None:
        """Record a question about the GPU, if the target asks it and neither PyTorch nor oomdoctor."""
        # the only way to the callers
        caller: Any = sys._getframe(3)  # noqa: SLF001
        if not f"{caller.f_globals.get('__package__')}.".startswith(_NOT_THE_TARGET):
            self.questions.add(what)
            self.chosen(answers)
