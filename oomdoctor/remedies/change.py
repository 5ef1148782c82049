"""The base of what a worker changes for a remedy: the model, the batch, the forward or the optimizer."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from oomdoctor.errors import NotApplicableError
from oomdoctor.remedies.file_edit import AppliedChange, FileEdit

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    import torch


class Change:
    """A change that leaves everything as it is; a subclass replaces what it changes.

    Args:
        name: How the change was asked for.
        argument: The number at the end of its name; None without one.

    Attributes:
        drops_leftovers: Whether the loop lets go of batch and loss before it makes the next batch.
        host_bytes: Most bytes that one forward has moved to the host.
        acts_on: What it acts on, in words, once `model` has run.
        count: How many of them.
        total: How many there are.
        note: What to know besides.
    """

    drops_leftovers = False

    def __init__(self, name: str, argument: int | None = None) -> None:
        self.name = name
        self.argument = argument
        self.host_bytes = 0
        self.acts_on = ""
        self.count = self.total = 0
        self.note = ""

    def model(self, model: torch.nn.Module) -> torch.nn.Module:
        """Return the model as it is trained; it is on the CPU.

        Raises:
            NotApplicableError: There is nothing to change in it.
        """
        return model

    def batch(self, batch: Any) -> Any:  # noqa: ANN401 - any nest
        """Return the batch as it is trained on; it is on the CPU."""
        return batch

    def forward(self) -> AbstractContextManager[object]:
        """Return the context in which the training step runs."""
        return nullcontext()

    def check_forward(self) -> None:
        """See that the change has had something to do in the first forward.

        Raises:
            NotApplicableError: It has not.
        """

    def optimizer(self, optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
        """Return the optimizer that steps.

        Raises:
            NotApplicableError: It cannot be changed.
        """
        return optimizer

    def held_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        """Change an optimizer that a program has made and keeps, before its first step.

        Raises:
            NotApplicableError: It cannot be changed.
        """

    def end(self) -> None:
        """Let go of what belongs to one trial."""

    def edit(self) -> FileEdit:
        """Return the same, done by hand."""
        return FileEdit()

    def applied(self) -> AppliedChange:
        """Return what was changed, in words."""
        return AppliedChange(self.name, self.acts_on, self.count, self.total, self.edit(), self.note)


def refuse(reason: str) -> NotApplicableError:
    """Return the error of a change that has nothing to do here."""
    return NotApplicableError(reason, hint="leave the remedy out")
