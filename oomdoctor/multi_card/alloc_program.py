"""Allocation programs: what a traced step asks an allocator for on a card, its live bytes.

Its run on a simulated allocator.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from oomdoctor.agent.allocator_blocks import NO_LIMIT
from oomdoctor.agent.phase_meter import Counts, PhaseMeter
from oomdoctor.engines.allocator.caching import CachingAllocator
from oomdoctor.engines.allocator.device_memory import AllocationError, DeviceMemory
from oomdoctor.engines.trace.op_trace import (
    OperatorEnd,
    OptionalWorkspace,
    PhaseMark,
    TemporariesEntry,
    Workspace,
    WorkspacesCleared,
)
from oomdoctor.engines.trace.operators import temporaries_of
from oomdoctor.results import Phase, PhaseName

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from oomdoctor.engines.allocator.settings import AllocatorSettings, Rules
    from oomdoctor.engines.catalogue import Card
    from oomdoctor.engines.trace.op_trace import AllocationStep, Entry
    from oomdoctor.multi_card.scaling import MemoryTrace


CallAllocations = tuple[tuple[tuple["AllocationStep", ...], tuple["AllocationStep", ...]], ...]
"""Allocations of each call: those before its results are made, and those after."""
Chunk = tuple[list[int], "TemporariesEntry | OperatorEnd | WorkspacesCleared | PhaseMark | None"]
"""Allocations and frees of tensors, and what an operator does after them."""


@dataclass(frozen=True, slots=True)
class AllocationProgram:
    """Requests to an allocator, apart from those that depend on the card.

    Attributes:
        loading: While the target is loaded.
        trial: In the trial.
    """

    loading: list[Chunk]
    trial: list[Chunk]


def program_of(steps: MemoryTrace) -> AllocationProgram:
    """Return a trace as chunks of requests."""
    return AllocationProgram(_runs(steps.entries[: steps.start]), _runs(steps.entries[steps.start :]))


def without_empty_calls(program: AllocationProgram, scripts: CallAllocations) -> AllocationProgram:
    """Return the program without sections that allocate nothing, which are most, and without ends that free nothing."""
    return AllocationProgram(_condensed(program.loading, scripts), _condensed(program.trial, scripts))


def _condensed(runs: list[Chunk], scripts: CallAllocations) -> list[Chunk]:
    kept: list[Chunk] = []
    numbers: list[int] = []
    takes = False
    for chunk, marker in runs:
        numbers += chunk
        if isinstance(marker, TemporariesEntry):
            if not scripts[marker.call][marker.is_after]:
                continue
            takes = True
        elif isinstance(marker, OperatorEnd):
            if not takes:
                continue
            takes = False
        kept.append((numbers, marker))
        numbers = []
    return kept


def allocating_calls(scripts: CallAllocations) -> object:
    """Return which sections allocate; programs that agree in that lose the same sections."""
    return tuple(bool(part) for script in scripts for part in script)


def call_allocations(steps: MemoryTrace, card: Card) -> CallAllocations:
    """Return the allocations of a trace's calls on a card."""
    answers = (temporaries_of(replace(call, card=card)) for call in steps.calls)
    return tuple((answer.before, answer.after) for answer in answers)


def allocation_order(scripts: CallAllocations) -> object:
    """Return the order of allocations and frees, whatever their bytes."""
    return tuple(
        tuple(step if isinstance(step, int) and step <= 0 else 1 for step in part)
        for script in scripts
        for part in script
    )


def _runs(entries: Sequence[Entry]) -> list[Chunk]:
    runs: list[Chunk] = []
    numbers: list[int] = []
    for entry in entries:
        if isinstance(entry, int):
            numbers.append(entry)
        else:
            runs.append((numbers, entry))
            numbers = []
    return [*runs, (numbers, None)]


class Executor:
    """Asks an allocator for what a program says, on one card.

    Args:
        allocator: The allocator.
        scripts: What the program's calls take on the card.

    Attributes:
        meter: Memory by phase.
        workspace_retries: How often all cached blocks were given back for a workspace.
    """

    def __init__(self, allocator: CachingAllocator, scripts: CallAllocations) -> None:
        self._allocator = allocator
        self._scripts = scripts
        self._addresses: list[int] = []
        self._held: list[int] = []
        self._workspaces: dict[object, int] = {}
        self._fitted: tuple[dict[object, int], dict[object, int]] = ({}, {})  # the target's thread, autograd's
        self.workspace_retries = 0
        self.meter: PhaseMeter[PhaseName, Phase] = PhaseMeter(self._counts, allocator.reset_peak_stats, Phase)

    def _counts(self) -> Counts:
        held = self._allocator
        live = held.allocated_bytes, held.peak_allocated_bytes
        return Counts(*live, held.reserved_bytes, held.peak_reserved_bytes)

    def play(self, runs: Sequence[Chunk]) -> None:
        """Allocate and give back.

        Raises:
            AllocationError: Memory is out.
        """
        malloc, free = self._allocator.malloc, self._allocator.free
        addresses = self._addresses
        for numbers, marker in runs:
            for number in numbers:
                if number > 0:
                    addresses.append(malloc(number))
                elif number < 0:
                    free(addresses[-1 - number])
                else:
                    self._allocator.empty_cache()
            if isinstance(marker, TemporariesEntry):
                self._take(marker, malloc)
            elif isinstance(marker, PhaseMark):
                if marker.is_end:
                    self.meter.end()
                else:
                    phase: Any = marker.phase
                    self.meter.begin(*phase)
            elif marker is not None:
                self._give_back(is_workspace=isinstance(marker, WorkspacesCleared))

    def _take(self, section: TemporariesEntry, malloc: Callable[[int], int]) -> None:
        for step in self._scripts[section.call][section.is_after]:
            if isinstance(step, Workspace):
                key = (step.library, section.in_backward)
                if key not in self._workspaces:
                    self._workspaces[key] = malloc(step.nbytes)
            elif isinstance(step, OptionalWorkspace):
                retries = self._allocator.retries
                fitted = self._fitted[section.in_backward]
                self._held.append(step.take(fitted, lambda size: malloc(size) if size else 0, AllocationError))
                self.workspace_retries += self._allocator.retries - retries
            elif step < 0:
                self._allocator.free(self._held[-1 - step])
                self._held[-1 - step] = 0
            else:
                self._held.append(malloc(step))

    def _give_back(self, *, is_workspace: bool) -> None:
        """The allocator gives no address for no bytes, and takes none back."""
        kept = [*self._workspaces.values()] if is_workspace else self._held
        for address in kept:
            self._allocator.free(address)
        if is_workspace:
            self._workspaces.clear()
        else:
            self._held = []


_GRANULARITY: Final = 512
"""Bytes of a block; what is there before the trial is known in whole blocks, as the allocator counts it."""


def live_peak(program: AllocationProgram, scripts: CallAllocations) -> int:
    """Return the bytes of what was loaded, and the most that the trial keeps alive besides."""
    living = _LiveBytes(scripts)
    living.go_through(program.loading, _GRANULARITY)
    living.peak = living.now
    living.go_through(program.trial, 1)
    return living.peak


class _LiveBytes:
    """Bytes that are alive, as a program goes on; `Executor` does the same with an allocator.

    Attributes:
        now: Bytes that are alive.
        peak: The most that were.
    """

    def __init__(self, scripts: CallAllocations) -> None:
        self._scripts = scripts
        self._sizes: list[int] = []
        self._held: list[int] = []
        self._workspaces: dict[object, int] = {}
        self.now = self.peak = 0

    def go_through(self, runs: Sequence[Chunk], unit: int) -> None:
        """Count what runs allocate and give back, in whole units."""
        sizes, now, peak = self._sizes, self.now, self.peak
        for numbers, marker in runs:
            for number in numbers:
                if number > 0:
                    size = -(-number // unit) * unit
                    sizes.append(size)
                    now += size
                    if now > peak:  # noqa: PLR1730 - quicker than a call, and this is done for millions
                        peak = now
                elif number < 0:
                    now -= sizes[-1 - number]
            self.now, self.peak = now, peak
            if isinstance(marker, TemporariesEntry):
                self._take(marker)
            elif isinstance(marker, OperatorEnd):
                self.now -= sum(self._held)
                self._held = []
            elif isinstance(marker, WorkspacesCleared):
                self.now -= sum(self._workspaces.values())
                self._workspaces.clear()
            now, peak = self.now, self.peak

    def _take(self, section: TemporariesEntry) -> None:
        for step in self._scripts[section.call][section.is_after]:
            if isinstance(step, Workspace):
                key = (step.library, section.in_backward)
                self.now += 0 if key in self._workspaces else self._workspaces.setdefault(key, step.nbytes)
            elif isinstance(step, OptionalWorkspace):
                self._held.append(0)  # none is needed
            elif step < 0:
                self.now -= self._held[-1 - step]
                self._held[-1 - step] = 0
            else:
                self._held.append(step)
                self.now += step
            self.peak = max(self.peak, self.now)


@dataclass(frozen=True, slots=True)
class CardMemory:
    """The memory that a step has.

    Attributes:
        total_bytes: Of the card.
        context_bytes: What the process holds besides, and others hold.
        allowed_bytes: Most that the allocator may hold in the trial.
    """

    total_bytes: int
    context_bytes: int
    allowed_bytes: int

    @property
    def capacity_bytes(self) -> int:
        """Bytes that the allocator may hold while the target is loaded."""
        return self.total_bytes - self.context_bytes


@dataclass(frozen=True, slots=True)
class Execution:
    """Result of a program on an allocator.

    Attributes:
        error: PyTorch's message where memory ran out, else None.
        was_loaded: False where it ran out while the target was loaded.
        peak_allocated_bytes: Most bytes in live tensors in the trial.
        peak_reserved_bytes: Most bytes held from the driver in the trial.
        retries: How often all cached blocks were given back to try again, loading included, workspaces of cuDNN not.
        workspace_retries: How often they were for those.
        phases: Memory by phase.
    """

    error: str | None
    was_loaded: bool
    peak_allocated_bytes: int
    peak_reserved_bytes: int
    retries: int
    workspace_retries: int
    phases: tuple[Phase, ...]

    @property
    def is_tight(self) -> bool:
        """Return whether cached blocks had to be given back."""
        return self.retries + self.workspace_retries > 0


def execute(
    program: AllocationProgram, scripts: CallAllocations, room: CardMemory, settings: AllocatorSettings, rules: Rules
) -> Execution:
    """Run what is asked for through an allocator."""
    allocator = CachingAllocator(DeviceMemory(room.total_bytes, room.context_bytes), settings, rules)
    allocator.heap.statistics.counts_all = False  # nobody asks for them, and they take a fifth of the time
    player = Executor(allocator, scripts)
    _set_limit(allocator, room.capacity_bytes, room.total_bytes)
    error, was_loaded = _run(player, program.loading), False
    if error is None:
        was_loaded = True
        _set_limit(allocator, room.allowed_bytes, room.total_bytes)
        player.meter.peak_reserved_bytes = allocator.reserved_bytes  # what loading reserved meanwhile is no part
        error = _run(player, program.trial)
    meter, own_retries = player.meter, allocator.retries - player.workspace_retries
    peaks = meter.peak_allocated_bytes, meter.peak_reserved_bytes
    return Execution(error, was_loaded, *peaks, own_retries, player.workspace_retries, meter.phases)


def is_plain(settings: AllocatorSettings) -> bool:
    """Return whether the allocator does the same on all cards that are large enough: unused memory changes nothing."""
    return (
        settings.largest_split == NO_LIMIT
        and not settings.expandable
        and not settings.collection_threshold
        and settings.memory_fraction >= 1
    )


def _set_limit(allocator: CachingAllocator, allowed_bytes: int, total_bytes: int) -> None:
    """As `oomdoctor.trial.trial.allow`."""
    allocator.set_memory_fraction(min(1.0, (allowed_bytes + 0.5) / total_bytes))


def _run(player: Executor, runs: list[Chunk]) -> str | None:
    """Return the message where memory ran out."""
    try:
        player.play(runs)
    except AllocationError as error:
        player.meter.end(has_failed=True)
        return str(error)
    return None
