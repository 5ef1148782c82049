"""Arguments of training frameworks that do what a remedy does. Imports neither torch nor a framework."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping


@dataclass(frozen=True, slots=True)
class Framework:
    """A framework that runs the training loop.

    Attributes:
        place: Where its arguments go, in words.
        modules: Modules of which a program that uses it imports one.
        arguments: Arguments by remedy.
    """

    place: str
    modules: tuple[str, ...]
    arguments: Mapping[str, str]


FRAMEWORKS: Final = (
    Framework(
        "or, where the `Trainer` of transformers runs the loop, in `TrainingArguments`",
        ("transformers", "trl"),
        {
            "checkpoint": "gradient_checkpointing=True,",
            "bf16": "bf16=True,",
            "fp16": "fp16=True,",
            "optimizer-fused": 'optim="adamw_torch_fused",',
            "adafactor": 'optim="adafactor",',
            "fused-cross-entropy": "use_liger_kernel=True,  # where liger-kernel is installed",
            "compile": "torch_compile=True,",
        },
    ),
    Framework(
        "or, where Lightning runs the loop, in `Trainer`",
        ("lightning", "pytorch_lightning"),
        {"bf16": 'precision="bf16-mixed",', "fp16": 'precision="16-mixed",', "bf16-weights": 'precision="bf16-true",'},
    ),
    Framework(
        "or, where accelerate is used, in `Accelerator`",
        ("accelerate",),
        {"bf16": 'mixed_precision="bf16",', "fp16": 'mixed_precision="fp16",'},
    ),
)
"""Frameworks whose arguments are known, with what their documentation calls them."""


def framework_arguments(source: str, remedies: Iterable[str]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield a place in words and the arguments that go there, for each framework that a program imports.

    Args:
        source: Of the program.
        remedies: Ids of what is prescribed.
    """
    named = [*remedies]
    for framework in FRAMEWORKS:
        lines = tuple(framework.arguments[name] for name in named if name in framework.arguments)
        names = "|".join(framework.modules)
        if lines and re.search(rf"^\s*(?:from|import)\s+(?:{names})\b", source, re.MULTILINE):
            yield framework.place, lines
