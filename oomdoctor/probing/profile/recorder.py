"""Watches one trial and keeps what a profile is made from."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from oomdoctor.probing.profile.forward import watching_modules
from oomdoctor.probing.profile.graph import GraphWatch
from oomdoctor.probing.profile.history import read_events, start_recording, stop_recording
from oomdoctor.probing.profile.marks import Kind, Marks, Stage
from oomdoctor.probing.profile.owners import Owners, inputs
from oomdoctor.probing.recorder import TrialRecorder
from oomdoctor.results import PhaseName

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from torch import nn
    from torch.utils.hooks import RemovableHandle

    from oomdoctor.probing.profile.history import Start


class ProfileRecorder(TrialRecorder):
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
        self._owners = Owners(modules)
        self._loss: torch.Tensor | None = None
        self.marks = Marks()
        self._graph = GraphWatch(self.marks, enabled=hooks_graph)
        self.start: Start | None = None
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
            self._clear_workspaces()
            self.events = read_events()

    def _hook(self, stack: ExitStack) -> None:
        if self._hooks_modules:
            stack.enter_context(watching_modules(self._modules, self.marks, self._graph))
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
            self._begin(name)
            self.marks.note(Kind.BEGIN, Stage(iteration, micro_step, name))
            yield
            self.marks.label([*self._owners.weights(), *self._owners.gradients()])
            self.marks.note(Kind.END)

    def _begin(self, name: PhaseName) -> None:
        if name is PhaseName.FORWARD:
            self._graph.begin_forward()
        elif name is PhaseName.BACKWARD:
            self._graph.begin_backward(self._loss)
            self._loss = None

    def placed(self, batch: object) -> None:
        """Note where the batch lies."""
        self.marks.label(inputs(batch))

    def computed(self, loss: torch.Tensor) -> None:
        """Keep the loss until its backward begins, which is at once."""
        self._loss = loss

    def stepped(self, optimizer: torch.optim.Optimizer) -> None:
        """Note what an optimizer keeps."""
        self.marks.label(self._owners.optimizer_state(optimizer))

    def _clear_workspaces(self) -> None:
        self.marks.note(Kind.CLEAR)
        torch._C._cuda_clearCublasWorkspaces()  # noqa: SLF001 - what this frees were cuBLAS's workspaces
        self.marks.note(Kind.CLEARED)
