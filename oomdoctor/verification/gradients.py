"""Run a step on the whole batch and on its parts, from one and the same state, and compare the gradients.

The state is that of the model when it was built: parameters, buffers and what its modules keep as attributes. It is put
back before each run by copying values in place; nothing of the user's is deep-copied, which many models do not allow.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import torch

from oomdoctor.target.contract import seed_host
from oomdoctor.target.splitting import split
from oomdoctor.verification.expected_randomness import ExpectedRandomness, other_generators

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

Step: TypeAlias = Callable[[torch.nn.Module, Any], torch.Tensor]
"""A training step: `(model, batch) -> scalar loss`."""
Batch: TypeAlias = Any
"""A batch or a part of one: any nest of tensors."""
Gradients: TypeAlias = list[torch.Tensor]
"""One tensor for each trainable parameter, in the model's order; zeros where no gradient came."""

_LEARNING_RATE: Final = 0.1


@dataclass(frozen=True, slots=True)
class AccumulatedStep:
    """What one optimizer step accumulated.

    Attributes:
        gradients: The accumulated gradients.
        losses: The loss of each micro-batch, before its weight.
        buffers: Floating-point buffers afterwards, by name.
        weights: Parameters after one step of plain SGD with these gradients.
    """

    gradients: Gradients
    losses: list[float]
    buffers: dict[str, torch.Tensor]
    weights: list[torch.Tensor]


@dataclass(slots=True)
class _Kept:
    """An attribute of a module, and the items of a list, dict or deque that it holds."""

    owner: dict[str, Any]
    attributes: dict[str, Any]
    items: dict[str, Any]

    @classmethod
    def of(cls, owner: dict[str, Any]) -> _Kept:
        own = {name: value for name, value in owner.items() if name not in _TORCHS_OWN}
        return cls(owner, own, {name: value.copy() for name, value in own.items() if type(value) in _CONTAINERS})

    def restore(self) -> None:
        """Put the attributes back, and the containers' items into the containers."""
        for name in [name for name in self.owner if name not in self.attributes and name not in _TORCHS_OWN]:
            del self.owner[name]
        self.owner.update(self.attributes)
        for name, items in self.items.items():
            container = self.attributes[name]
            container.clear()
            (container.update if isinstance(container, dict | set) else container.extend)(items)


_CONTAINERS: Final = (list, dict, set, deque)
_TORCHS_OWN: Final = frozenset({"_parameters", "_buffers", "_modules", "training"})


@dataclass(slots=True)
class Laboratory:
    """The model and its step, which can be run again and again from one state.

    Args:
        model: In training mode, on the CPU.
        step: The training step.
        batch: The whole batch.
        samples: Samples in it.
        backward: Runs the backward pass of a loss.
        has_lists: Whether the batch holds lists with an item a sample.

    Attributes:
        expected: Whether random draws are replaced by their expected values.
        drawn: Names of the random operators that were called so far.
        not_replaced: What drew random numbers that cannot be replaced by expected values, as a sentence's subject.
    """

    model: torch.nn.Module
    step: Step
    batch: Batch
    samples: int
    backward: Callable[[torch.Tensor], object] = torch.Tensor.backward
    has_lists: bool = False
    expected: bool = True
    drawn: dict[str, None] = field(default_factory=dict)
    not_replaced: dict[str, None] = field(default_factory=dict)
    _tensors: list[tuple[torch.Tensor, torch.Tensor]] = field(default_factory=list)
    _kept: list[_Kept] = field(default_factory=list)

    def __post_init__(self) -> None:
        held = [*self.model.parameters(), *self.model.buffers()]
        self._tensors = [(tensor, tensor.detach().clone()) for tensor in held]
        self._kept = [_Kept.of(module.__dict__) for module in self.model.modules()]

    @property
    def parameters(self) -> list[torch.nn.Parameter]:
        """Trainable parameters."""
        return [parameter for parameter in self.model.parameters() if parameter.requires_grad]

    def parts(self, sizes: Sequence[int]) -> list[Batch]:
        """Cut the batch into micro-batches of these sizes.

        Raises:
            UsageError: A part of the batch cannot be cut by samples.
        """
        return split(self.batch, self.samples, sizes, is_told=self.has_lists)

    def restore(self) -> None:
        """Put the first state back, without gradients."""
        for kept in self._kept:
            kept.restore()
        with torch.no_grad():
            for tensor, first in self._tensors:
                tensor.copy_(first)
        self.model.zero_grad(set_to_none=True)

    def run(self, parts: Sequence[Batch], weights: Sequence[float], *, seed: int = 0) -> AccumulatedStep:
        """Accumulate the gradients of weighted micro-batches from the first state.

        Args:
            parts: The micro-batches.
            weights: The factor of each one's loss.
            seed: Seed of all random numbers, set anew for each micro-batch.
        """
        self.restore()
        losses = []
        for part, weight in zip(parts, weights, strict=True):
            losses.append(self._micro_step(part, weight, seed))
        return self._finished(losses)

    @contextmanager
    def elsewhere(self) -> Iterator[None]:
        """Let runs start from parameters that are a little different, until the block is left."""
        here = self._tensors
        self._tensors = [
            (tensor, _shifted(first) if isinstance(tensor, torch.nn.Parameter) else first) for tensor, first in here
        ]
        try:
            yield
        finally:
            self._tensors = here

    def forward(self, part: Batch, around: AbstractContextManager[Any]) -> torch.Tensor:
        """Run the forward alone, from whatever state there is, in a context that sees the replaced random draws."""
        seed_host(0)
        with self._randomness(), around:
            return self.step(self.model, part)

    def _micro_step(self, part: Batch, weight: float, seed: int) -> float:
        seed_host(seed)
        with self._randomness():
            loss = self.step(self.model, part)
            self.backward(loss * weight)
        return loss.item()

    @contextmanager
    def _randomness(self) -> Iterator[None]:
        mode, before = ExpectedRandomness(), other_generators()
        context: AbstractContextManager[Any] = mode if self.expected else nullcontext()
        with context:
            yield
        self.drawn |= mode.drawn
        others = [name for name, state in other_generators().items() if before.get(name, state) != state]
        self.not_replaced |= dict.fromkeys(f"the step draws from `{name}`, whose numbers" for name in others)
        if mode.counts_drawn:
            self.not_replaced.setdefault("a random mask decides how many values a mean is over, and its draws")

    def _finished(self, losses: list[float]) -> AccumulatedStep:
        gradients = [
            torch.zeros_like(parameter) if parameter.grad is None else _dense(parameter.grad).clone()
            for parameter in self.parameters
        ]
        buffers = {
            name: buffer.detach().clone() for name, buffer in self.model.named_buffers() if buffer.is_floating_point()
        }
        torch.optim.SGD(self.parameters, lr=_LEARNING_RATE).step()
        return AccumulatedStep(
            gradients, losses, buffers, [parameter.detach().clone() for parameter in self.parameters]
        )


def _shifted(tensor: torch.Tensor) -> torch.Tensor:
    if not tensor.is_floating_point():
        return tensor
    wave = torch.cos(torch.arange(tensor.numel(), dtype=tensor.dtype)).reshape(tensor.shape)
    return tensor * (1 + _SHIFT * wave)


_SHIFT: Final = 0.05


def _dense(gradient: torch.Tensor) -> torch.Tensor:
    return gradient.to_dense() if gradient.layout is not torch.strided else gradient


def distance(ours: Sequence[torch.Tensor], true: Sequence[torch.Tensor]) -> float:
    """Return the relative error of all tensors together: norm of the difference over norm of the truth."""
    difference = sum(float((a.double() - b.double()).square().sum()) for a, b in zip(ours, true, strict=True))
    norm = sum(float(b.double().square().sum()) for b in true)
    return float((difference / (norm or difference)) ** 0.5) if difference else 0.0


def weighted_sum(parts: Sequence[Gradients], weights: Sequence[float]) -> Gradients:
    """Return the sum of the parts' gradients, each times its weight."""
    return [
        sum((weight * gradient for gradient, weight in zip(column, weights, strict=True)), torch.zeros_like(column[0]))
        for column in zip(*parts, strict=True)
    ]


def fitted_weights(parts: Sequence[Gradients], whole: Gradients) -> list[float] | None:
    """Return the weights with which the parts' gradients come closest to the whole batch's, by least squares.

    Returns:
        None where the parts' gradients do not determine them: they are too alike, or have too few numbers.
    """
    numbers = sum(gradient.numel() for gradient in whole)
    if numbers < _NUMBERS_PER_PART * len(parts):
        return None
    gram = torch.tensor([[_dot(a, b) for b in parts] for a in parts], dtype=torch.float64)
    scale = gram.diagonal().sqrt()
    if not bool((scale > 0).all()):
        return None
    normalised = gram / scale.outer(scale)
    if float(torch.linalg.cond(normalised)) > _WORST_CONDITION:
        return None
    right = torch.tensor([_dot(a, whole) for a in parts], dtype=torch.float64) / scale
    return [float(weight) for weight in torch.linalg.solve(normalised, right) / scale]


_NUMBERS_PER_PART: Final = 4
_WORST_CONDITION: Final = 1e10


def _dot(a: Gradients, b: Gradients) -> float:
    return sum(float((x.double() * y.double()).sum()) for x, y in zip(a, b, strict=True))
