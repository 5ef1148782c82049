"""Training phases of a command: which phase its process is in, and the memory of each from the allocator's history.

The peaks are never reset: they are the program's own. A phase begins at a position in the allocator's history, counted
in allocations and frees, and the events between two positions say how much was allocated. The history is recorded
without stacks, so it costs next to nothing.
"""

# ruff: noqa: ANN401, SLF001 - torch and its models have no type here; the history has no public way

from __future__ import annotations

import functools
import weakref
from typing import TYPE_CHECKING, Any, NamedTuple

from .allocator_blocks import AllocatorBlocks, HistoryMismatchError, read_trace
from .guard import guarded, note_failure
from .history_frames import RecorderWatch
from .phase_meter import BACKWARD, EVALUATION, FORWARD, LOAD, OPTIMIZER

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from .allocator_blocks import AllocationTrace

_MOST_EVENTS = 1_000_000
_WITHOUT_BLOCK = ("oom", "snapshot", "end")


class Position(NamedTuple):
    """A position in the allocator's history.

    Attributes:
        allocations: Allocations that the allocator has counted until here.
        frees: Frees until here.
        allocated_bytes: Bytes in live tensors here.
    """

    allocations: int
    frees: int
    allocated_bytes: int


_START = Position(0, 0, 0)


class PhaseStart(NamedTuple):
    """The begin of a phase, and the end of the one before it.

    Attributes:
        iteration: From 1; 0 for loading.
        phase: The phase that begins.
        position: Its position in the history.
    """

    iteration: int
    phase: str
    position: Position


class PhasePart(NamedTuple):
    """Memory between the start of a phase and the next start.

    Attributes:
        start: The start of the phase.
        peak_bytes: Most bytes allocated.
        lowest_bytes: Least bytes allocated.
        end_bytes: Bytes allocated when it ended.
        allocations: Number of allocations.
    """

    start: PhaseStart
    peak_bytes: int
    lowest_bytes: int
    end_bytes: int
    allocations: int


class TrainingPhases:
    """The phases of a process until now, from the calls that its training makes.

    An iteration ends with an optimizer step, and what comes after it belongs to the next one's forward. What a program
    does before its first forward is loading.

    Args:
        position: Returns the current position in the allocator's history.
        evaluates: Told that an evaluation begins, or that it has ended or was none.

    Attributes:
        iteration: The current one.
        starts: The starts of all phases, in order.
    """

    def __init__(self, position: Callable[[], Position], evaluates: Callable[[bool], Any]) -> None:
        self._position = position
        self._evaluates = guarded(evaluates)
        self.reset()

    def reset(self) -> None:
        """Begin again, as a process does that was forked."""
        self.iteration = 0
        self.starts = [PhaseStart(0, LOAD, _START)]
        self._backwards = 0
        self._is_in_step = False
        self._was_trained = False
        self._evaluated: Any = None
        self._opened = 0

    @property
    def phase(self) -> str:
        """The current one."""
        return self.starts[-1].phase

    def phase_now(self, *, has_gradients: bool) -> str:
        """Return the current phase, where nothing that comes later can correct it.

        Many models are made by a library that calls `eval()`, and trained without `train()`.
        """
        if self.phase == EVALUATION and has_gradients and not self._was_trained:
            return FORWARD
        return self.phase

    def forward_begins(self, module: Any) -> None:
        """Take in that the first module is called, or the first after an evaluation."""
        if self.phase != LOAD:
            return
        self.iteration = 1
        if self._evaluated is None or module.training:
            self._enter(FORWARD)
        else:
            self._open_evaluation()

    def mode_changed(self, module: Any, *, is_training: bool) -> None:
        """Take in a call of `train()` or `eval()`."""
        if is_training:
            self._was_trained = True
            self._evaluated = None
            if self.phase == EVALUATION:
                self._enter(FORWARD)
            return
        self._evaluated = weakref.ref(module)
        if self.phase == FORWARD and not self._is_in_step:
            self._open_evaluation()

    def backward_begins(self) -> None:
        """Take in that the engine is asked for; the outermost backward counts."""
        self._backwards += 1
        if self._backwards == 1:
            if self.phase == EVALUATION:  # no `train()` came between, so it was none
                opened = self.starts[self._opened :]
                self.starts[self._opened :] = [start._replace(phase=FORWARD) for start in opened]
                self._evaluates(False)  # noqa: FBT003 - a callback
            self.iteration = max(1, self.iteration)
            self._enter(BACKWARD)

    def backward_ended(self) -> bool:
        """Take in that the engine is let go; return whether the outermost backward has ended."""
        self._backwards -= 1
        if self._backwards == 0:
            self._enter(OPTIMIZER if self._is_in_step else FORWARD)
        return self._backwards == 0

    def step_begins(self, has_closure: bool) -> None:  # noqa: FBT001 - a callback
        """Take in that an optimizer's step begins; one with a closure begins with a forward."""
        if self._backwards:  # one optimizer for each parameter, which steps in backward
            return
        self._is_in_step = True
        if has_closure:
            return
        last = self.starts[-1]
        if len(self.starts) > 1 and last.phase == FORWARD and self.starts[-2].phase == BACKWARD:
            self.starts[-1] = last._replace(phase=OPTIMIZER)  # unscaling and clipping of gradients
        else:
            self._enter(OPTIMIZER)

    def step_ended(self, done: int) -> None:
        """Take in that an optimizer's step has ended.

        Args:
            done: Steps that count until now.
        """
        if self._backwards:
            return
        self._is_in_step = False
        self.iteration = done + 1
        self._enter(FORWARD)

    def _open_evaluation(self) -> None:
        self._opened = len(self.starts)
        self._enter(EVALUATION)

    def _enter(self, phase: str) -> None:
        if EVALUATION in (phase, self.phase) and phase != self.phase:
            self._evaluates(phase == EVALUATION)
        self.starts.append(PhaseStart(self.iteration, phase, self._position()))


class AllocatorHistory:
    """The allocator's history in this process.

    Args:
        torch: The module.

    Attributes:
        device: Index of the device.
        trace: What `read` found to be asked for and given back since the beginning; see `allocator_blocks`.
    """

    def __init__(self, torch: Any) -> None:
        self.trace: AllocationTrace = []
        self._torch = torch
        self._is_recorded = False
        self._forgotten = (0, 0)  # allocations and frees that the program has had the allocator forget
        self.device = 0

    def begin(self, device: int) -> None:
        """Record from now on; what the program itself asks to record ends it."""
        self.device = device
        self._torch.cuda.memory._record_memory_history("all", context=None, stacks="python", max_entries=_MOST_EVENTS)
        RecorderWatch(self._torch, functools.partial(setattr, self, "_is_recorded", False)).begin()  # noqa: FBT003 - as it is kept
        self._is_recorded = True

    def forget_counts(self, device: int, statistics: Any) -> None:
        """Keep the counts that the program is about to reset."""
        if device == self.device:
            count = statistics["allocation"]["all"]
            self._forgotten = self._forgotten[0] + count["allocated"], self._forgotten[1] + count["freed"]

    def position(self) -> Position:
        """Return the position of now; the start before CUDA is initialised."""
        if not self._torch.cuda.is_initialized():
            return _START
        tree = self._torch._C._cuda_memoryStats(self.device)
        count = tree["allocation"]["all"]
        allocations, frees = self._forgotten
        current = tree["allocated_bytes"]["all"]["current"]
        return Position(allocations + count["allocated"], frees + count["freed"], current)

    def read(self, starts: Sequence[PhaseStart]) -> list[PhasePart]:
        """Return the memory from each start to the next, the last one until now.

        Returns:
            Nothing where the history is not complete, or does not end with what the allocator itself counts.
        """
        self.trace = []
        if not self._is_recorded:
            return []
        stops = [*(start.position for start in starts[1:]), self.position()]
        snapshot = self._torch.cuda.memory._snapshot()
        events = snapshot["device_traces"][self.device]
        blocks = AllocatorBlocks(snapshot.get("allocator_settings") or {})
        try:
            found = _measure(events, stops, blocks)
            parts = [PhasePart(start, *figures) for start, figures in zip(starts, found)]  # noqa: B905 - not in 3.8
        except HistoryMismatchError as error:
            note_failure("history", error)
            return []
        iterations = zip(starts, starts[1:])  # noqa: B905, RUF007 - neither is in 3.8
        ends = [later.position for now, later in iterations if later.iteration > now.iteration > 0]
        self.trace = read_trace(events, [end.allocations + end.frees for end in (*ends, stops[-1])])
        return parts


def _measure(
    events: Iterable[dict[str, Any]], stops: Sequence[Position], blocks: AllocatorBlocks
) -> Iterator[tuple[int, int, int, int]]:
    """Yield the most, the least and the last bytes, and the allocations, up to each stop."""
    allocations = frees = live = begun = 0
    peak = lowest = 0
    waiting = iter([*stops, Position(-1, -1, -1)])
    stop = next(waiting)
    apply = blocks.apply
    for event in [*events, {"action": "end"}]:
        while allocations == stop[0] and frees == stop[1]:
            if live != stop[2]:
                raise HistoryMismatchError(f"{live} bytes where the allocator has {stop[2]}")
            yield peak, lowest, live, allocations - begun
            peak = lowest = live
            begun = allocations
            stop = next(waiting)
        action = event["action"]
        if action in _WITHOUT_BLOCK:
            continue
        live += apply(action, event["addr"], event["size"])
        if action == "alloc":
            allocations += 1
            if live > peak:  # noqa: PLR1730 - a call for each of a million events
                peak = live
        elif action == "free_requested":
            frees += 1
            if live < lowest:  # noqa: PLR1730 - likewise
                lowest = live
    if stop[0] != -1:
        raise HistoryMismatchError(f"{allocations} allocations and {frees} frees, and a phase begins at {stop[:2]}")
