"""How a case is written down: a function, and the tensors that it is given."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch

DEVICE = "cuda"
HALF = torch.bfloat16


class Given(NamedTuple):
    """A tensor to be made.

    Attributes:
        shape: Its shape.
        dtype: Its type.
        needs_grad: Whether its gradient is asked for.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype
    needs_grad: bool

    def make(self) -> torch.Tensor:
        """The tensor."""
        return torch.zeros(self.shape, dtype=self.dtype, device=DEVICE, requires_grad=self.needs_grad)


class Case(NamedTuple):
    """What to run.

    Attributes:
        function: What is computed.
        given: Of what.
    """

    function: Callable[..., Any]
    given: tuple[Given, ...]

    def ready(self) -> Callable[[], None]:
        """What runs it forward and backward, with tensors that are there already."""
        tensors = [one.make() for one in self.given]
        leaves = [tensor for tensor in tensors if tensor.requires_grad]

        def run() -> None:
            output = self.function(*tensors)
            if leaves and output.requires_grad:
                torch.autograd.grad(output, leaves, torch.ones_like(output), allow_unused=True)

        return run


def case(function: Callable[..., Any], *tensors: Given) -> Case:
    """A function of tensors."""
    return Case(function, tensors)


def leaf(*shape: int, dtype: torch.dtype = torch.float32) -> Given:
    """A tensor whose gradient is asked for."""
    return Given(shape, dtype, needs_grad=True)


def given(*shape: int, dtype: torch.dtype = torch.float32) -> Given:
    """A tensor that has none."""
    return Given(shape, dtype, needs_grad=False)


def zeros(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """A tensor that the function makes."""
    return torch.zeros(shape, dtype=dtype, device=DEVICE)


def ones(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """The same, of ones."""
    return torch.ones(shape, dtype=dtype, device=DEVICE)


def places(*shape: int) -> torch.Tensor:
    """Indices."""
    return zeros(*shape, dtype=torch.int64)


def channels_last(x: torch.Tensor) -> torch.Tensor:
    """With the channels of a pixel side by side."""
    return x.contiguous(memory_format=torch.channels_last)
