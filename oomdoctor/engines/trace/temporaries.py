"""Types for the memory that a kernel takes besides its results, and when it takes it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from oomdoctor.engines.catalogue import Card


class Workspace(NamedTuple):
    """Memory that a library takes once for each of a process's threads, and keeps.

    Attributes:
        library: Whose it is.
        nbytes: Its size.
    """

    library: str
    nbytes: int


AllocationStep = int | Workspace
"""Bytes of an allocation, `-1 - position` of one that is given back, or a library's workspace."""


class LibraryFunction(NamedTuple):
    """A function of a library that a kernel calls; it stands where an operator would.

    Attributes:
        function: Its name.
    """

    function: str

    def name(self) -> str:
        """As an operator's."""
        return self.function


@dataclass(frozen=True, slots=True)
class Call:
    """An operator's call, as the models see it.

    Attributes:
        card: On what it runs.
        operator: The operator.
        args: Its arguments.
        kwargs: Its arguments by name.
        results: What it returns; see `planning`.
    """

    card: Card
    operator: Any
    args: Any
    kwargs: Any
    results: list[Any]


@dataclass(frozen=True, slots=True)
class Temporaries:
    """What an operator takes besides its results.

    Attributes:
        before: What it takes before its results are there.
        after: What it takes after that; what is left is given back when it ends.
        order: Which results are allocated, in their order; None for all in theirs.
        on_host: Which results are tensors of the host.
    """

    before: tuple[AllocationStep, ...] = ()
    after: tuple[AllocationStep, ...] = ()
    order: list[int] | None = None
    on_host: tuple[int, ...] = ()


NO_TEMPORARIES = Temporaries()
