"""Evaluate one batch: by the file's own step, else by its training step without gradients. Runs in the worker."""

from __future__ import annotations

from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING

import torch

from oomdoctor.target.placement import call_model, default_training_step, loss_in, tensors_in
from oomdoctor.trial.variants import autocast

if TYPE_CHECKING:
    from collections.abc import Iterator

    from oomdoctor.trial.step import TrialSetup


@contextmanager
def evaluating(model: torch.nn.Module) -> Iterator[None]:
    """Put every module into evaluation mode, and back into the mode that it had."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, was_training in modes:
            module.training = was_training


class Evaluator:
    """Evaluates batches, and sees whether a graph is built for a backward that never comes.

    Args:
        setup: The model and how it runs.
        without_graph: Whether the file's own step runs under `torch.no_grad()` too, to learn what its graph costs.

    Attributes:
        builds_graph: Whether the model, or what the step returned, had a graph.
    """

    def __init__(self, setup: TrialSetup, *, without_graph: bool) -> None:
        self._setup = setup
        self._without_graph = without_graph
        self.builds_graph = False

    def run(self, batch: object) -> object:
        """Return what the caller of an evaluation holds until the next batch has been evaluated.

        That is what the file's `evaluation_step` returns; without one the model's output, or where the file has a
        training step of its own the loss.
        """
        watch = self._setup.model.register_forward_hook(self._watch)
        try:
            with self._setup.changes.forward(), autocast(self._setup.variant):
                output = self._evaluated(batch)
        finally:
            watch.remove()
        self._watch(None, None, output)
        return output

    def _evaluated(self, batch: object) -> object:
        target, model = self._setup.target, self._setup.model
        if target.evaluation_step is not None:
            with torch.no_grad() if self._without_graph else nullcontext():
                return target.evaluation_step(model, batch)
        with torch.no_grad():
            if target.training_step is default_training_step:
                return call_model(model, batch)
            output = target.training_step(model, batch)
        loss = loss_in(output)
        return output if loss is None else loss

    def _watch(self, _module: object, _inputs: object, output: object) -> None:
        self.builds_graph = self.builds_graph or any(tensor.grad_fn is not None for tensor in tensors_in(output))
