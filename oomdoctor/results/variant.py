"""Variants: how a trial differs from the target's plain step.

`oomdoctor.request.build_variant` makes them, and `oomdoctor.trial.variants` applies them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Precision = Literal["fp32", "bf16", "fp16"]


@dataclass(frozen=True, slots=True)
class EnvironmentVariable:
    """A variable of the worker's environment, such as `PYTORCH_CUDA_ALLOC_CONF`.

    Attributes:
        name: Its name.
        value: Its value.
    """

    name: str
    value: str


@dataclass(frozen=True, slots=True)
class Axis:
    """A size other than the batch that `make_batch` takes as a keyword, such as a sequence length.

    Attributes:
        name: The keyword.
        size: Its value.
    """

    name: str
    size: int


@dataclass(frozen=True, slots=True)
class Variant:
    """The difference of a trial from the target's plain step; the default is that step, in fp32.

    Attributes:
        precision: How the step runs: `fp32`, or under autocast as `bf16` or `fp16` (with a gradient scaler).
        optimizer: Name of a `torch.optim` class where the file builds none; None for AdamW.
        environment: Variables that the worker's environment has besides the parent's, by name.
        transformations: Names of transformations of the model, in the order in which they are applied.
        axes: Sizes other than the batch, by name.
    """

    precision: Precision = "fp32"
    optimizer: str | None = None
    environment: tuple[EnvironmentVariable, ...] = ()
    transformations: tuple[str, ...] = ()
    axes: tuple[Axis, ...] = ()
