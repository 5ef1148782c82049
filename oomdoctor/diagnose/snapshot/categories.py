"""Categorise each block: weights, gradients, optimizer state, activations, input, workspace, or other.

Where the agent recorded the addresses of parameters, gradients and optimizer state, that decides. Otherwise a
block is judged by where it was allocated and by what became of it:

- Weights are allocated by a module's `_apply`, a parameter's or a module's construction, `load_state_dict` and such.
- The autograd engine runs backward on a thread of its own, which has no Python frames. What it allocates is a gradient
  if it outlives the backward pass, that is, if the waiting thread allocates or frees something while it lives; else it
  is workspace, the gradient of some activation. Where the program died before that could show, a block as large as a
  parameter that has no gradient yet is a gradient.
- What is allocated in an optimizer is its state if its own function for that made it or if it outlives the step; else
  it is workspace, as the temporaries of `foreach` implementations are.
- What is allocated in a module's forward pass, or computed from it, is an activation; except for what is freed by the
  same call that allocated it, which is workspace, as is the buffer that cuBLAS keeps.
- What the user's own line allocates right before a forward pass is input, as is what a data loader moves.
- A block that is older than the history is a weight if it lives until the end; except where the gradients show that
  there are more blocks of its size than parameters: then the others are optimizer state. If it is freed by `zero_grad`
  it was a gradient, if in a backward pass an activation.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from oomdoctor.diagnose.snapshot.history import OLDER
from oomdoctor.diagnose.snapshot.layout import AllocatorAction
from oomdoctor.diagnose.snapshot.origins import AllocationOrigin
from oomdoctor.results import Category

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from oomdoctor.diagnose.snapshot.history import History, Lifetime
    from oomdoctor.diagnose.snapshot.origins import StackFacts
    from oomdoctor.results import SourceLine


# 2 x 4096 KiB + 8 x 16 KiB, PyTorch's default workspace of cuBLAS but on compute capability 9; a size like no tensor's.
# Source: parseChosenWorkspaceSize in aten/src/ATen/cuda/CublasHandlePool.cpp.
_CUBLAS_WORKSPACE: Final = 8_519_680
_MOST_PARTS: Final = 4  # of each parameter: itself and what the hungriest of PyTorch's optimizers keeps of it
_CALLS_CUBLAS: Final = frozenset({AllocationOrigin.NONE, AllocationOrigin.FORWARD, AllocationOrigin.ENGINE})
_LISTED: Final = frozenset({Category.WEIGHTS, Category.GRADIENTS, Category.OPTIMIZER_STATE})
_OPTIMIZER_TEMPORARIES: Final = ("_multi_tensor", "_single_tensor", "_fused", "_foreach")
_BY_ORIGIN: Final = {
    AllocationOrigin.LOAD: Category.WEIGHTS,
    AllocationOrigin.BUCKETS: Category.GRADIENTS,
    AllocationOrigin.OPTIMIZER_STATE: Category.OPTIMIZER_STATE,
    AllocationOrigin.RECOMPUTED: Category.ACTIVATIONS,
    AllocationOrigin.TRANSFER: Category.INPUT,
    AllocationOrigin.BACKWARD: Category.WORKSPACE,
}


def categorise(
    history: History, stacks: Sequence[StackFacts], addresses: Mapping[int, Category] | None = None
) -> list[Category]:
    """Return the category of each of the history's lifetimes.

    Args:
        history: The device's history.
        stacks: What is known of each stack.
        addresses: What is known of blocks that were live when the snapshot was taken, by their address.

    Returns:
        A category for each lifetime, in their order.
    """
    categoriser = _Categoriser(history, stacks)
    known = addresses or {}
    found = [
        known[lifetime.address] if lifetime.held and lifetime.address in known else categoriser.category(lifetime)
        for lifetime in history.lifetimes
    ]
    _categorise_older(categoriser, found)
    _categorise_open_gradients(categoriser, found)
    for index, lifetime in enumerate(history.lifetimes if known else ()):
        # All addresses of parameters, gradients and states are listed, and nothing else can be one of those.
        listed = lifetime.address in known or stacks[lifetime.stack].origin is AllocationOrigin.BUCKETS
        if lifetime.held and not listed and found[index] in _LISTED:
            found[index] = Category.OTHER
    return [Category.OTHER if category is None else category for category in found]


class _Categoriser:
    """Rules for a single block; None is said of one that only the others can tell."""

    def __init__(self, history: History, stacks: Sequence[StackFacts]) -> None:
        self.history = history
        self.stacks = stacks
        self.until = history.moment if history.failure is not None else history.count
        events = [
            (i, e) for i, e in enumerate(history.device.events) if e.action is AllocatorAction.ALLOC and i < self.until
        ]
        facts = [(index, event.stack, stacks[event.stack]) for index, event in events]
        self.main = [index for index, _, stack in facts if not stack.on_engine]
        self.engine = [index for index, _, stack in facts if stack.on_engine]
        self.not_optimizer = [
            index
            for index, _, stack in facts
            if not stack.on_engine
            and stack.origin not in {AllocationOrigin.OPTIMIZER, AllocationOrigin.OPTIMIZER_STATE}
        ]
        # Without a single stack, as `context="state"` records, a missing one says nothing.
        self.stacks_recorded = any(number for _, number, _ in facts)
        # Events that allocate in another stack than the one before.
        before = [OLDER, *(number for _, number, _ in facts)]
        self.changes = [index for last, (index, number, _) in zip(before, facts, strict=False) if last != number]
        self.neighbours = _Neighbours([(index, stack) for index, _, stack in facts])

    def category(self, lifetime: Lifetime) -> Category | None:
        """Return the category of a block, as far as the block itself tells."""
        stack = self.stacks[lifetime.stack]
        if lifetime.requested == _CUBLAS_WORKSPACE and stack.origin in _CALLS_CUBLAS:
            return Category.WORKSPACE
        if stack.origin in _BY_ORIGIN:
            return _BY_ORIGIN[stack.origin]
        if not OLDER < lifetime.born < self.history.count:
            return self._older(lifetime, stack)
        return self._within(lifetime, stack)

    def _within(self, lifetime: Lifetime, stack: StackFacts) -> Category | None:
        """Return the category of a block whose allocation is in the history."""
        if stack.origin in {AllocationOrigin.NONE, AllocationOrigin.ENGINE}:
            return self._from_engine(lifetime) if self.stacks_recorded else Category.OTHER
        if stack.origin is AllocationOrigin.OPTIMIZER:
            return self._from_optimizer(lifetime, stack)
        if stack.origin is AllocationOrigin.FORWARD:
            return Category.WORKSPACE if self._freed_at_once(lifetime) else Category.ACTIVATIONS
        return self._own(lifetime)

    def _from_engine(self, lifetime: Lifetime) -> Category | None:
        lives_on, freed_by = self._lives_on(lifetime), self.stacks[lifetime.freed_by]
        freed_by_main = not lives_on and not freed_by.on_engine and lifetime.freed_by != lifetime.stack
        if self._outlives(lifetime, self.main) or freed_by_main:
            return Category.GRADIENTS
        return None if lives_on else Category.WORKSPACE

    def _from_optimizer(self, lifetime: Lifetime, stack: StackFacts) -> Category:
        if self._outlives(lifetime, self.not_optimizer):
            return Category.OPTIMIZER_STATE
        made_for_now = stack.innermost is not None and stack.innermost.startswith(_OPTIMIZER_TEMPORARIES)
        return Category.WORKSPACE if made_for_now or not self._lives_on(lifetime) else Category.OPTIMIZER_STATE

    def _own(self, lifetime: Lifetime) -> Category:
        neighbours = self.neighbours
        if neighbours.is_input(lifetime.born):
            return Category.INPUT
        if neighbours.after_forward(lifetime.born) or self._freed_in_backward(lifetime):
            return Category.WORKSPACE if self._freed_at_once(lifetime) else Category.ACTIVATIONS
        return Category.OTHER

    def _older(self, lifetime: Lifetime, stack: StackFacts) -> Category | None:
        if self._lives_on(lifetime):
            by_origin = {
                AllocationOrigin.OPTIMIZER: Category.OPTIMIZER_STATE,
                AllocationOrigin.FORWARD: Category.ACTIVATIONS,
            }
            return by_origin.get(stack.origin)
        if "zero_grad" in (self.stacks[lifetime.freed_by].innermost or ""):
            return Category.GRADIENTS
        return Category.ACTIVATIONS if self._freed_in_backward(lifetime) else Category.OTHER

    def _lives_on(self, lifetime: Lifetime) -> bool:
        return lifetime.died >= self.until

    def _outlives(self, lifetime: Lifetime, events: Sequence[int]) -> bool:
        """Return whether a block is live at the next of certain events."""
        at = bisect_right(events, lifetime.born)
        return at < len(events) and lifetime.died > events[at]

    def _freed_in_backward(self, lifetime: Lifetime) -> bool:
        """Return whether the latest allocation before a block was freed was the engine's."""
        if self._lives_on(lifetime):
            return False
        engine, main = bisect_right(self.engine, lifetime.died), bisect_right(self.main, lifetime.died)
        return bool(engine) and (not main or self.engine[engine - 1] > self.main[main - 1])

    def _freed_at_once(self, lifetime: Lifetime) -> bool:
        """Return whether nothing was allocated elsewhere while the block lived."""
        at = bisect_right(self.changes, lifetime.born)
        return not self._lives_on(lifetime) and (at == len(self.changes) or self.changes[at] > lifetime.died)


class _Neighbours:
    """Allocations before and after those in the user's own code."""

    def __init__(self, allocations: Sequence[tuple[int, StackFacts]]) -> None:
        self._before_forward: set[int] = set()
        self._after_forward: set[int] = set()
        self._last: set[int] = set()
        following: AllocationOrigin | None = None
        for index, stack in reversed(allocations):
            if stack.origin is not AllocationOrigin.OWN:
                following = AllocationOrigin.OWN if stack.on_engine else stack.origin
            elif following is None:
                self._last.add(index)
            elif following is AllocationOrigin.FORWARD:
                self._before_forward.add(index)
        before: AllocationOrigin | None = None
        for index, stack in allocations:
            if stack.origin is not AllocationOrigin.OWN:
                before = stack.origin
            elif before is AllocationOrigin.FORWARD:
                self._after_forward.add(index)
            elif before is None:
                self._last.discard(index)

    def is_input(self, event: int) -> bool:
        """Return whether the next code other than the user's own is a forward pass, or could have become one."""
        return event in self._before_forward or (event in self._last and event not in self._after_forward)

    def after_forward(self, event: int) -> bool:
        """Return whether the last code other than the user's own was a forward pass."""
        return event in self._after_forward


def _categorise_older(categoriser: _Categoriser, found: list[Category | None]) -> None:
    """Categorise blocks older than the history that outlive it: weights, and the optimizer state of each."""
    if not categoriser.history.count:
        return
    gradients = _most_at_once(categoriser, found)
    older: defaultdict[int, list[int]] = defaultdict(list)
    for index, lifetime in enumerate(categoriser.history.lifetimes):
        if found[index] is None and lifetime.born == OLDER:
            older[lifetime.requested].append(index)
    for size, indices in older.items():
        parameters = gradients.get(size) or len(indices)
        if len(indices) > _MOST_PARTS * parameters:
            continue  # something else is as large as a parameter
        for position, index in enumerate(indices):
            found[index] = Category.WEIGHTS if position < parameters else Category.OPTIMIZER_STATE


def _categorise_open_gradients(categoriser: _Categoriser, found: list[Category | None]) -> None:
    """Categorise blocks of a backward that ran out: one as large as a parameter without a gradient is its gradient."""
    lifetimes = categoriser.history.lifetimes
    missing: Counter[int] = Counter()
    for lifetime, category in zip(lifetimes, found, strict=True):
        if lifetime.born < categoriser.until <= lifetime.died:
            missing[lifetime.requested] += (category is Category.WEIGHTS) - (category is Category.GRADIENTS)
    for index, lifetime in enumerate(lifetimes):
        if found[index] is None and OLDER < lifetime.born < categoriser.history.count:
            fits = missing[lifetime.requested] > 0
            missing[lifetime.requested] -= fits
            found[index] = Category.GRADIENTS if fits else Category.WORKSPACE


def _most_at_once(categoriser: _Categoriser, found: Sequence[Category | None]) -> dict[int, int]:
    """Return the largest number of gradients of each size that were alive at the same time."""
    changes: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)
    for lifetime, category in zip(categoriser.history.lifetimes, found, strict=True):
        if category is Category.GRADIENTS:
            changes[lifetime.requested] += [(lifetime.born, 1), (lifetime.died, -1)]
    most = {}
    for size, steps in changes.items():
        count = highest = 0
        for _, change in sorted(steps):
            count += change
            highest = max(highest, count)
        most[size] = highest
    return most


@dataclass(frozen=True, slots=True)
class LabelledBlock:
    """One block.

    Attributes:
        lifetime: Where it lies and when it lived.
        category: What it is for.
        place: The user's own line that allocated it; of what backward allocated, the line that called backward.
        innermost: The innermost frame in one line.
    """

    lifetime: Lifetime
    category: Category
    place: SourceLine | None
    innermost: str | None


def label_block(
    history: History, stacks: Sequence[StackFacts], addresses: Mapping[int, Category] | None
) -> tuple[LabelledBlock, ...]:
    """Say of every block what it is for and whose it is, in the order of the history's lifetimes."""
    callers = backward_callers(history, stacks)
    categories = categorise(history, stacks, addresses)
    found = []
    for lifetime, category in zip(history.lifetimes, categories, strict=True):
        stack = stacks[lifetime.stack]
        place = stack.place or callers.get(lifetime.born)
        found.append(LabelledBlock(lifetime, category, place, stack.innermost))
    return tuple(found)


def backward_callers(history: History, stacks: Sequence[StackFacts]) -> dict[int, SourceLine]:
    """The line that waited for the autograd engine, for each event of the engine's thread.

    The engine's thread does not know who called it. But backward begins with a gradient of the loss itself, which the
    calling thread allocates.
    """
    callers: dict[int, SourceLine] = {}
    waiting: SourceLine | None = None
    for index, event in enumerate(history.device.events):
        if event.action not in {AllocatorAction.ALLOC, AllocatorAction.OOM}:
            continue
        stack = stacks[event.stack]
        if not stack.on_engine:
            waiting = stack.place if stack.origin is AllocationOrigin.BACKWARD else None
        elif waiting is not None:
            callers[index] = waiting
    return callers
