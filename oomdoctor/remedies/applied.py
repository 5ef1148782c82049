"""The changes of a variant in a worker, by name and in order."""

from __future__ import annotations

import re
from contextlib import ExitStack, contextmanager
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from oomdoctor.errors import TargetError
from oomdoctor.remedies.blocks import (
    CheckpointBlocks,
    FreezeBlocks,
    LowRankAdapters,
    SelectiveAttention,
    SelectiveMatmuls,
)
from oomdoctor.remedies.compiled import Compiled
from oomdoctor.remedies.linear_cross_entropy import FuseByCutCrossEntropy, FuseByLiger, FuseLinearCrossEntropy
from oomdoctor.remedies.optimizers import EightBit, Fused, InBackward, OptimizerClass, WithoutForeach
from oomdoctor.remedies.tensors import DropLeftovers, HalfWeights, OffloadActivations

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import torch

    from oomdoctor.remedies.change import Change
    from oomdoctor.remedies.file_edit import AppliedChange

CHANGES: Final[Mapping[str, type[Change]]] = MappingProxyType(
    {
        "bf16-weights": HalfWeights,
        "checkpoint": CheckpointBlocks,
        "checkpoint-every": CheckpointBlocks,
        "checkpoint-first": CheckpointBlocks,
        "checkpoint-keep-matmuls": SelectiveMatmuls,
        "checkpoint-keep-attention": SelectiveAttention,
        "fused-cross-entropy": FuseLinearCrossEntropy,
        "liger-cross-entropy": FuseByLiger,
        "cut-cross-entropy": FuseByCutCrossEntropy,
        "offload-activations": OffloadActivations,
        "drop-leftovers": DropLeftovers,
        "optimizer-loop": WithoutForeach,
        "optimizer-fused": Fused,
        "optimizer-in-backward": InBackward,
        "adafactor": OptimizerClass,
        "adamw-8bit": EightBit,
        "freeze-half": FreezeBlocks,
        "lora": LowRankAdapters,
        "compile": Compiled,
    }
)
"""Changes by name; a number may follow, as in `checkpoint-first-5`."""

_NUMBERED: Final = re.compile(r"(.+)-(\d+)")


class Changes:
    """Changes of one worker's target.

    Args:
        names: Their names, in the order in which they are made.

    Raises:
        TargetError: There is no such change.
    """

    def __init__(self, names: Sequence[str] = ()) -> None:
        self._changes = [_made(name) for name in names]
        self._is_checked = False

    def model(self, model: torch.nn.Module) -> torch.nn.Module:
        """Return the model as it is trained; see `Change.model`."""
        for change in self._changes:
            model = change.model(model)
        return model

    def batch(self, batch: Any) -> Any:  # noqa: ANN401 - any nest
        """Return the batch as it is trained on."""
        for change in self._changes:
            batch = change.batch(batch)
        return batch

    @contextmanager
    def forward(self) -> Iterator[None]:
        """Surround a training step.

        Raises:
            NotApplicableError: It was the first, and a change has had nothing to do in it.
        """
        with ExitStack() as stack:
            for change in self._changes:
                stack.enter_context(change.forward())
            yield
        if not self._is_checked:
            self._is_checked = True
            for change in self._changes:
                change.check_forward()

    def optimizer(self, optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
        """Return the optimizer that steps."""
        for change in self._changes:
            optimizer = change.optimizer(optimizer)
        return optimizer

    def held_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        """Change an optimizer that a program has made; see `Change.held_optimizer`."""
        for change in self._changes:
            change.held_optimizer(optimizer)

    @property
    def drops_leftovers(self) -> bool:
        """Whether batch and loss go before the next batch is made."""
        return any(change.drops_leftovers for change in self._changes)

    @property
    def host_bytes(self) -> int:
        """Most bytes that one forward has moved to the host."""
        return sum(change.host_bytes for change in self._changes)

    def end(self) -> None:
        """Let go of what belongs to one trial."""
        for change in self._changes:
            change.end()

    def applied(self) -> tuple[AppliedChange, ...]:
        """Return what was changed."""
        return tuple(change.applied() for change in self._changes)


def _made(name: str) -> Change:
    match = _NUMBERED.fullmatch(name)
    kind = CHANGES.get(name) or CHANGES.get(match[1] if match else "")
    if kind is None:
        known = ", ".join(CHANGES)
        raise TargetError(f"there is no transformation `{name}`", hint=f"there are {known}")
    return kind(name, int(match[2]) if match and name not in CHANGES else None)
