"""Types for the memory that a kernel takes besides its results, and when it takes it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from oomdoctor.engines.catalogue import Card


class Workspace(NamedTuple):
    """Memory that a library allocates once for each thread of the process, and keeps.

    Attributes:
        library: Name of the library.
        nbytes: Size of the memory.
    """

    library: str
    nbytes: int


AllocationStep = int | Workspace
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
class Call:
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

TemporariesByName = dict[str, Callable[[Call], Temporaries]]
"""Functions that give the temporaries of a call, by the name of its operator without overload."""
KernelsByName = dict[str, Callable[..., Any]]
"""Kernels by the name of their operator, such as `add.Tensor`."""
