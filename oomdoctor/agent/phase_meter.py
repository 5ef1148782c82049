"""Phase meter: the phase that training is in, and the memory of each phase from the allocator's history.

An iteration ends with an optimizer step, and what comes after it belongs to the next one's forward. What a program does
before its first forward is loading.

The peaks are never reset: they are the program's own. How much was allocated between two borders follows from the
events between them.
"""


# ruff: noqa: ANN401 - torch and what programs hand over have no type here

from __future__ import annotations

import functools
import weakref
from typing import TYPE_CHECKING, Any, NamedTuple

from . import history_frames
from .allocator_blocks import AllocatorBlocks
from .guard import guarded, note_failure

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence


_MOST_EVENTS = 1_000_000
_WITHOUT_BLOCK = ("oom", "snapshot", "end")


class PhaseMemory(NamedTuple):
    """What was allocated between two borders.

    Attributes:
        border: Where it begins.
        peak_bytes: Most.
        lowest_bytes: Least.
        end_bytes: When it ended.
        allocations: How many there were.
    """

    border: PhaseStart
    peak_bytes: int
    lowest_bytes: int
    end_bytes: int
    allocations: int


class AllocatorHistory:
    """The allocator's history in this process.

    Attributes:
        is_recorded: Whether it is recorded, and nobody else has changed what is.
        device: Index of the device.
        offset: Allocations and frees that the program has had the allocator forget.
    """

    def __init__(self) -> None:
        self._torch: Any = None
        self.is_recorded = False
        self.device = 0
        self.offset = (0, 0)

    def begin(self, torch: Any, device: int) -> None:
        """Record from now on; what the program itself asks to record ends it."""
        self._torch = torch
        self.device = device
        torch.cuda.memory._record_memory_history(  # noqa: SLF001
            "all", context=None, stacks="python", max_entries=_MOST_EVENTS
        )
        history_frames.FRAME_RECORDING.undo.append(self._lose)
        history_frames.notice_others(torch)
        self.is_recorded = True

    def position(self) -> tuple[int, int, int]:
        """Allocations and frees until now, and the bytes allocated; zeros before CUDA is initialised."""
        if self._torch is None or not self._torch.cuda.is_initialized():
            return 0, 0, 0
        tree = self._torch._C._cuda_memoryStats(self.device)  # noqa: SLF001
        count = tree["allocation"]["all"]
        allocations, frees = self.offset
        return allocations + count["allocated"], frees + count["freed"], tree["allocated_bytes"]["all"]["current"]

    def read(self, borders: Sequence[PhaseStart]) -> list[PhaseMemory]:
        """What was allocated from each border to the next, the last one until now.

        Returns:
            Nothing where the history is not complete, or does not end with what the allocator itself counts.
        """
        if not self.is_recorded:
            return []
        end = self.position()
        snapshot = self._torch.cuda.memory._snapshot()  # noqa: SLF001
        events = snapshot["device_traces"][self.device]
        blocks = AllocatorBlocks(snapshot.get("allocator_settings") or {})
        stops = [*(border[2:] for border in borders[1:]), end]
        try:
            found = _measure_parts(events, stops, blocks)
            return [PhaseMemory(border, *figures) for border, figures in zip(borders, found)]  # noqa: B905 - not in 3.8
        except (KeyError, MismatchError) as error:
            note_failure("history", error)
            return []

    def _lose(self) -> None:
        self.is_recorded = False


HISTORY = AllocatorHistory()


class MismatchError(Exception):
    """What the events say is not what the allocator counts."""


def _measure_parts(
    events: Iterable[dict[str, Any]], stops: Sequence[tuple[int, int, int]], blocks: AllocatorBlocks
) -> Iterator[tuple[int, int, int, int]]:
    """The most, the least, the last bytes and the allocations up to each stop."""
    allocations = frees = live = begun = 0
    peak = lowest = 0
    waiting = iter([*stops, (-1, -1, -1)])
    stop = next(waiting)
    apply = blocks.apply
    for event in [*events, {"action": "end"}]:
        while allocations == stop[0] and frees == stop[1]:
            if live != stop[2]:
                raise MismatchError(f"{live} bytes where the allocator has {stop[2]}")
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
        raise MismatchError(f"{allocations} allocations and {frees} frees, and a border at {stop[:2]}")


LOAD, FORWARD, BACKWARD, OPTIMIZER, EVALUATION = "load", "forward", "backward", "optimizer", "evaluation"


class PhaseStart(NamedTuple):
    """Where a phase begins, and the one before it ends.

    Attributes:
        iteration: Counted from 1; 0 for loading.
        phase: What begins.
        allocations: How many the allocator has counted until here.
        frees: Likewise.
        allocated_bytes: In live tensors here.
    """

    iteration: int
    phase: str
    allocations: int
    frees: int
    allocated_bytes: int


class Phases:
    """The phases of a process until now.

    Attributes:
        iteration: The current one.
        borders: All of them, in order.
    """

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Begin again, as a process does that was forked."""
        self.iteration = 0
        self.borders = [PhaseStart(0, LOAD, 0, 0, 0)]
        self._backwards = 0
        self._is_in_step = False
        self._was_trained = False
        self._evaluated: Any = None
        self._opened = 0

    @property
    def phase(self) -> str:
        """The current one."""
        return self.borders[-1].phase

    def named_now(self, *, has_gradients: bool) -> str:
        """The current phase, where nothing that comes later can correct it.

        Many models are made by a library that calls `eval()`, and trained without `train()`.
        """
        if self.phase == EVALUATION and has_gradients and not self._was_trained:
            return FORWARD
        return self.phase

    def forward_begins(self, module: Any) -> None:
        """The first module is called, or the first after an evaluation."""
        if self.phase != LOAD:
            return
        self.iteration = 1
        if self._evaluated is None or module.training:
            self._enter(FORWARD)
        else:
            self._open_evaluation()

    def mode_changed(self, module: Any, *, is_training: bool) -> None:
        """`train()` or `eval()` was called."""
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
        """The engine is asked for; the outermost backward counts."""
        self._backwards += 1
        if self._backwards == 1:
            self._dismiss_evaluation()
            self.iteration = max(1, self.iteration)
            self._enter(BACKWARD)

    def backward_ended(self) -> None:
        """The engine is let go."""
        self._backwards -= 1
        if self._backwards == 0:
            self._enter(OPTIMIZER if self._is_in_step else FORWARD)

    def step_begins(self, *, has_closure: bool) -> None:
        """An optimizer's step begins; one with a closure begins with a forward."""
        if self._backwards:  # one optimizer for each parameter, which steps in backward
            return
        self._is_in_step = True
        if has_closure:
            return
        last = self.borders[-1]
        if len(self.borders) > 1 and last.phase == FORWARD and self.borders[-2].phase == BACKWARD:
            self.borders[-1] = last._replace(phase=OPTIMIZER)  # unscaling and clipping of gradients
        else:
            self._enter(OPTIMIZER)

    def step_ended(self, done: int) -> None:
        """An optimizer's step has ended.

        Args:
            done: Steps that count until now.
        """
        if self._backwards:
            return
        self._is_in_step = False
        self.iteration = done + 1
        self._enter(FORWARD)

    def _open_evaluation(self) -> None:
        self._opened = len(self.borders)
        self._enter(EVALUATION)

    def _dismiss_evaluation(self) -> None:
        """What a backward follows, with no `train()` between, was none."""
        if self.phase == EVALUATION:
            for index in range(self._opened, len(self.borders)):
                self.borders[index] = self.borders[index]._replace(phase=FORWARD)

    def _enter(self, phase: str) -> None:
        self.borders.append(PhaseStart(self.iteration, phase, *HISTORY.position()))


PHASES = Phases()


_FORGETS_PEAKS = ("_cuda_resetPeakMemoryStats", "_accelerator_resetPeakStats")
_FORGETS_COUNTS = ("_cuda_resetAccumulatedMemoryStats", "_accelerator_resetAccumulatedStats")


class Peaks:
    """What the allocator has been made to forget.

    Attributes:
        allocated_bytes: The highest.
        reserved_bytes: The highest.
        retries: How often it gave back its cache to try again.
        ooms: How often it ran out.
    """

    def __init__(self) -> None:
        self.allocated_bytes = 0
        self.reserved_bytes = 0
        self.retries = 0
        self.ooms = 0


PEAKS = Peaks()


def watch_peak_resets(torch: Any) -> None:
    """Note the figures each time before the program resets them."""
    for names, note in ((_FORGETS_PEAKS, _note_peaks), (_FORGETS_COUNTS, _note_counts)):
        for name in names:
            if hasattr(torch._C, name):  # noqa: SLF001
                _call_before(torch, name, guarded(functools.partial(note, torch)))


def peaks_now(torch: Any) -> Peaks:
    """The figures until now."""
    _note_peaks(torch)
    found = Peaks()
    tree = torch._C._cuda_memoryStats(HISTORY.device)  # noqa: SLF001
    found.allocated_bytes, found.reserved_bytes = PEAKS.allocated_bytes, PEAKS.reserved_bytes
    found.retries = PEAKS.retries + tree["num_alloc_retries"]
    found.ooms = PEAKS.ooms + tree["num_ooms"]
    return found


def _call_before(torch: Any, name: str, note: Callable[[], Any]) -> None:
    original = getattr(torch._C, name)  # noqa: SLF001

    @functools.wraps(original)
    def reset(*arguments: Any, **named: Any) -> Any:
        note()
        return original(*arguments, **named)

    setattr(torch._C, name, reset)  # noqa: SLF001


def _note_peaks(torch: Any) -> None:
    tree = torch._C._cuda_memoryStats(HISTORY.device)  # noqa: SLF001
    PEAKS.allocated_bytes = max(PEAKS.allocated_bytes, tree["allocated_bytes"]["all"]["peak"])
    PEAKS.reserved_bytes = max(PEAKS.reserved_bytes, tree["reserved_bytes"]["all"]["peak"])


def _note_counts(torch: Any) -> None:
    tree = torch._C._cuda_memoryStats(HISTORY.device)  # noqa: SLF001
    count = tree["allocation"]["all"]
    HISTORY.offset = HISTORY.offset[0] + count["allocated"], HISTORY.offset[1] + count["freed"]
    PEAKS.retries += tree["num_alloc_retries"]
    PEAKS.ooms += tree["num_ooms"]
