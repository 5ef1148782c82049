"""Profile the memory of one trial: record the allocator's history and mark what ran when. Runs in the worker.

Autograd's threads run no Python, so its allocations cannot be told from frames. But its nodes are numbered in the order
in which the forward made them, and a backward pass takes them in the opposite order: so the numbers between a module's
beginning and its end are that module's, and a hook on the first node of each stretch tells when it is reached.
"""

from __future__ import annotations

from bisect import bisect_right
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from oomdoctor.agent.allocator_blocks import HistoryMismatchError
from oomdoctor.results import Outcome, PhaseName
from oomdoctor.target.placement import tensors_in
from oomdoctor.trial.meters import TrialMeter
from oomdoctor.trial.profile.allocation_log import build_log, summarise
from oomdoctor.trial.profile.marks import (
    MarkKind,
    Marks,
    MicroPhase,
    TensorOwners,
    inputs,
    named_modules,
    read_events,
    start_recording,
    stop_recording,
)
from oomdoctor.trial.profile.operators import OperatorMarker, lines_at
from oomdoctor.trial.trial import run_trial
from oomdoctor.trial.worker_answers import ProfileOutcome, differing_peaks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from torch import nn
    from torch.utils.hooks import RemovableHandle

    from oomdoctor.trial.profile.allocation_log import AllocationLog
    from oomdoctor.trial.profile.marks import HistoryStart
    from oomdoctor.trial.profile.operators import Noted
    from oomdoctor.trial.protocol import RunTrial
    from oomdoctor.trial.step import TrialSetup


@contextmanager
def mark_module_calls(modules: Sequence[nn.Module], marks: Marks, graph: GraphMarker) -> Iterator[None]:
    """Mark the calls of `modules`, which are named by their positions, for as long as this is entered."""
    handles = [handle for index in _hookable(modules) for handle in _hook(modules[index], index, marks, graph)]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _hookable(modules: Sequence[nn.Module]) -> Iterator[int]:
    """Yield all modules but scripted ones, which take no hooks, and parts of compiled ones, whose hooks do not run."""
    inside = {id(part) for module in modules if _is_compiled(module) for part in module.modules() if part is not module}
    for index, module in enumerate(modules):
        compiled_itself = getattr(module, "_compiled_call_impl", None) is not None
        if id(module) not in inside and not compiled_itself and not isinstance(module, torch.jit.ScriptModule):
            yield index


def _is_compiled(module: nn.Module) -> bool:
    return type(module).__name__ == "OptimizedModule" or getattr(module, "_compiled_call_impl", None) is not None


def _hook(module: nn.Module, index: int, marks: Marks, graph: GraphMarker) -> tuple[RemovableHandle, RemovableHandle]:
    return (
        module.register_forward_pre_hook(partial(_enter, index, marks, graph), prepend=True),
        module.register_forward_hook(partial(_leave, index, marks, graph), always_call=True),
    )


def _enter(index: int, marks: Marks, graph: GraphMarker, _module: nn.Module, _args: object) -> None:
    if not torch.compiler.is_compiling():
        marks.note(MarkKind.ENTER, index)
        graph.entered(index)


def _leave(index: int, marks: Marks, graph: GraphMarker, _module: nn.Module, _args: object, output: object) -> None:
    if not torch.compiler.is_compiling():
        marks.note(MarkKind.LEAVE, index)
        graph.left(output)


_UNNUMBERED: Final = 1 << 62
"""Nodes that accumulate a parameter's gradient have the largest number of all, and run as soon as they can."""


class GraphMarker:
    """Follows which module makes which nodes, and marks when the backward pass comes to them.

    Args:
        marks: Where to note it.
        enabled: False for no hook on any node; then a backward's memory is nobody's.
    """

    def __init__(self, marks: Marks, *, enabled: bool) -> None:
        self._marks = marks
        self._enabled = enabled
        self._in_backward = False
        self._restart()

    def _restart(self) -> None:
        self._stack: list[int] = []
        self._begins: list[int] = []
        self._owners: list[int | None] = []
        self._hooked: set[int] = set()
        self._note_owner()

    def begin_forward(self) -> None:
        """Start the marks of a new graph."""
        self._in_backward = False
        self._restart()

    def begin_backward(self, loss: torch.Tensor | None) -> None:
        """Hook the finished graph; what is computed from now on is recomputed, for a checkpoint."""
        if loss is not None:
            self._hook((loss,))
        self._in_backward = True
        self._restart()

    def entered(self, index: int) -> None:
        """Note that a module's forward began."""
        if self._in_backward and not self._stack:
            self._restart()
        self._stack.append(index)
        self._note_owner()

    def left(self, output: object) -> None:
        """Note that the innermost module's forward ended."""
        if self._stack:
            self._stack.pop()
        self._note_owner()
        if self._in_backward and not self._stack:
            # A checkpoint that runs a backward of its own will do so on this graph.
            self._hook(tensors_in(output))

    def _note_owner(self) -> None:
        self._begins.append(int(torch._C._autograd._get_sequence_nr()))  # noqa: SLF001 - the only way to the number
        self._owners.append(self._stack[-1] if self._stack else None)

    def _hook(self, outputs: Iterable[torch.Tensor]) -> None:
        if not self._enabled:
            return
        last: object = self  # nobody's index
        for number, node in _nodes(outputs, self._begins[0]):
            owner = self._owners[bisect_right(self._begins, number) - 1]
            if owner != last:
                node.register_prehook(partial(self._reached, owner))
            last = owner

    def _reached(self, owner: int | None, _gradients: object) -> None:
        self._marks.note(MarkKind.BACK, owner)


def _nodes(outputs: Iterable[torch.Tensor], first: int) -> list[tuple[int, Any]]:
    """Return nodes that lead to some tensors and are numbered from `first` on, in the order of the backward pass."""
    found: dict[Any, int] = {}
    waiting: list[Any] = [output.grad_fn for output in outputs]
    while waiting:
        node = waiting.pop()
        if node is None or node in found:
            continue
        number = node._sequence_nr()  # noqa: SLF001 - the only way to the order of the backward pass
        if not first <= number < _UNNUMBERED:
            continue
        found[node] = number
        waiting.extend(following for following, _ in node.next_functions)
    return sorted(((number, node) for node, number in found.items()), key=lambda pair: -pair[0])


class ProfileMeter(TrialMeter):
    """Records the allocator's history of a whole trial, and marks what happened when.

    Args:
        modules: Every module of the model.
        hooks_modules: Whether to note which module's forward runs.
        hooks_graph: Whether to note which module's part of the backward runs.

    Attributes:
        start: What there was when recording began; None until it has.
        events: The history, once it has ended without an error.
        marks: What was noted.
    """

    def __init__(self, modules: Sequence[nn.Module], *, hooks_modules: bool, hooks_graph: bool) -> None:
        super().__init__()
        self._modules = modules
        self._hooks_modules = hooks_modules
        self._owners = TensorOwners(modules)
        self._loss: torch.Tensor | None = None
        self.marks = Marks()
        self._graph = GraphMarker(self.marks, enabled=hooks_graph)
        self.start: HistoryStart | None = None
        self.events: Sequence[Mapping[str, Any]] = ()

    @contextmanager
    def whole(self) -> Iterator[None]:
        """Record what the whole trial does."""
        with ExitStack() as stack:
            stack.callback(stop_recording)
            self.start = start_recording()
            self.marks.label(self._owners.weights())
            self._hook(stack)
            yield
            self.marks.note(MarkKind.CLEAR)
            torch._C._cuda_clearCublasWorkspaces()  # noqa: SLF001 - what this frees were cuBLAS's workspaces
            self.marks.note(MarkKind.CLEARED)
            self.events = read_events()

    def _hook(self, stack: ExitStack) -> None:
        if self._hooks_modules:
            stack.enter_context(mark_module_calls(self._modules, self.marks, self._graph))
        handle = register_optimizer_step_post_hook(lambda optimizer, *_: self.stepped(optimizer))
        stack.callback(handle.remove)
        for parameter in self._owners.parameters:
            # Only the target's own hooks can make a gradient go before the backward ends.
            if getattr(parameter, "_post_accumulate_grad_hooks", None):
                stack.callback(self._hook_gradient(parameter).remove)

    def _hook_gradient(self, parameter: Any) -> RemovableHandle:  # noqa: ANN401 - torch has no types for these hooks
        hooks = parameter._post_accumulate_grad_hooks  # noqa: SLF001 - no public way to be the first
        others = dict(hooks)
        hooks.clear()
        handle: RemovableHandle = parameter.register_post_accumulate_grad_hook(
            lambda owner: self.marks.label(self._owners.gradients((owner,)))
        )
        hooks.update(others)  # which may do away with the gradient
        return handle

    @contextmanager
    def micro_phase(self, iteration: int, micro_step: int, name: PhaseName) -> Iterator[None]:
        """Mark a phase's beginning and end, and what is known of its blocks at its end."""
        with self.phase(iteration, name):
            if name is PhaseName.FORWARD:
                self._graph.begin_forward()
            elif name is PhaseName.BACKWARD:
                self._graph.begin_backward(self._loss)
                self._loss = None
            self.marks.note(MarkKind.BEGIN, MicroPhase(iteration, micro_step, name))
            yield
            self.marks.label([*self._owners.weights(), *self._owners.gradients()])
            self.marks.note(MarkKind.END)

    def placed(self, batch: object) -> None:
        """Note where the batch lies."""
        self.marks.label(inputs(batch))

    def computed(self, loss: torch.Tensor) -> None:
        """Keep the loss until its backward begins, which is at once."""
        self._loss = loss

    def stepped(self, optimizer: torch.optim.Optimizer) -> None:
        """Note what an optimizer keeps."""
        self.marks.label(self._owners.optimizer_state(optimizer))


@dataclass(frozen=True, slots=True)
class _Detail:
    """Level of detail of a profile, and the sentence for a profile that has no more.

    Attributes:
        modules: Whether the modules' forwards are watched.
        graph: Whether the backward's nodes are.
        lack: What is missing without what was left out.
    """

    modules: bool
    graph: bool
    lack: str


_DETAILS: Final = (
    _Detail(modules=True, graph=True, lack=""),
    _Detail(modules=True, graph=False, lack="memory that the backward allocates is not attributed to modules"),
    _Detail(modules=False, graph=False, lack="only weights, gradients and optimizer state are attributed to modules"),
)


def profile(
    setup: TrialSetup, question: RunTrial, peak_allocated_bytes: int | None, give_back: Callable[[], None]
) -> ProfileOutcome:
    """Record memory at a size.

    Watching must not change what is watched: the peak has to be that of a trial that nobody watches.

    Args:
        setup: The model and how it trains.
        question: The trial.
        peak_allocated_bytes: The peak of a trial that nobody watched.
        give_back: Has memory as it was before a trial.

    Raises:
        TargetError: The user's file does not keep the contract.
    """
    found: list[ProfileOutcome] = []
    for detail in _DETAILS:
        recorder = _recorder(setup, detail)
        log, outcome = _record(setup, question, recorder)
        give_back()
        found.append(outcome)
        memory = outcome.memory
        if log is not None and memory is not None and memory.peak_allocated_bytes == peak_allocated_bytes:
            reason = f"{found[0].reason or _CHANGES}; so {detail.lack}" if detail.lack else None
            lines = lines_at(log, recorder.events, _note_operators(setup, question), memory.peak_event)
            return replace(outcome, memory=replace(memory, source_lines=lines), reason=reason)
        if not found[0].is_fresh:  # its plans are those of other trials, and less detail does not change them
            break
    first = next((one for one in found if one.memory is not None), None)
    return found[0] if first is None else replace(first, reason=_differs(found, peak_allocated_bytes))


_CHANGES: Final = "the target allocates other memory while it is profiled"


def _differs(found: Sequence[ProfileOutcome], peak_allocated_bytes: int | None) -> str:
    """Say how far apart the peaks of trials at one size were."""
    peaks = [outcome.memory.peak_allocated_bytes for outcome in found if outcome.memory is not None]
    peaks += [] if peak_allocated_bytes is None else [peak_allocated_bytes]
    return f"{differing_peaks(peaks)}; these figures are those of one of them"


class OperatorMeter(TrialMeter):
    """Records which operator allocates what in a whole trial.

    Args:
        roots: Directories or files of the user's code.

    Attributes:
        noted: What was noted; empty until the trial has ended.
    """

    def __init__(self, roots: Sequence[Path]) -> None:
        super().__init__()
        self._marker = OperatorMarker(roots)
        self.noted: Noted = ()

    @contextmanager
    def whole(self) -> Iterator[None]:
        """Record what the whole trial does."""
        with ExitStack() as stack:
            stack.callback(stop_recording)
            start = start_recording()
            with self._marker:
                yield
            torch._C._cuda_clearCublasWorkspaces()  # noqa: SLF001 - as where blocks are recorded
            self.noted = self._marker.allocations(start.count, read_events())


def _note_operators(setup: TrialSetup, question: RunTrial) -> Noted:
    """Return what allocates what; nothing where the step cannot run so, or where the compiler runs it otherwise."""
    if any(map(_is_compiled, setup.model.modules())):
        return ()
    meter = OperatorMeter(setup.target.own_roots)
    try:
        outcome = run_trial(setup, question, meter).trial.outcome
    except Exception:  # noqa: BLE001 - memory is recorded already, and stays right without this
        return ()
    return meter.noted if outcome is Outcome.FITS else ()


def _recorder(setup: TrialSetup, detail: _Detail) -> ProfileMeter:
    modules = [module for module, _ in named_modules(setup.model)]
    return ProfileMeter(modules, hooks_modules=detail.modules, hooks_graph=detail.graph)


def _record(
    setup: TrialSetup, question: RunTrial, recorder: ProfileMeter
) -> tuple[AllocationLog | None, ProfileOutcome]:
    attempt = run_trial(setup, question, recorder)
    ended, is_fresh = attempt.trial, attempt.is_fresh
    if ended.outcome is not Outcome.FITS or recorder.start is None:
        why = f"the target fails while it is profiled ({ended.error})"
        return None, ProfileOutcome(None, why, ended.outcome, is_fresh)
    try:
        log = build_log(recorder.start, recorder.events, recorder.marks)
    except HistoryMismatchError as error:
        return None, ProfileOutcome(None, str(error), ended.outcome, is_fresh)
    names = [name for _, name in named_modules(setup.model)]
    memory = summarise(log, names, question.micro_batch, question.micro_steps, ended.peak_reserved_bytes or 0)
    return log, ProfileOutcome(memory, None, ended.outcome, is_fresh)
