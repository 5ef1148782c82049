"""The question that a probe answers: one value object, made here for the command line, the API and everybody else."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from pathlib import Path


Precision = Literal["fp32", "bf16", "fp16"]
PRECISIONS: tuple[Precision, ...] = ("fp32", "bf16", "fp16")

DEFAULT_HEADROOM = 0.05
DEFAULT_TRIAL_TIMEOUT_SECONDS = 300.0
DEFAULT_STEPS = 3
"""The first step makes the optimizer's state, the second has the peak that training has, and the third proves it."""


@dataclass(frozen=True, slots=True)
class ProbeRequest:
    """One question.

    Attributes:
        target: Reference to the user's file, as given; for a command, the command in one line.
        directory: Where relative references start, and where a command runs.
        target_batch: Samples per optimizer step over all devices.
        world_size: Devices that share the target batch.
        precision: How the step runs: `fp32`, or under autocast as `bf16` or `fp16` (with a gradient scaler).
        optimizer: Name of a `torch.optim` class where the file does not build one; None for AdamW.
        headroom: Part of the capacity that the recommended size leaves free, between 0 and 1.
        gpu: Name of a catalogue card, or None for the local GPU.
        device: Index or UUID of the local GPU.
        memory_bytes: Capacity to play, or None for what the device has.
        engine: `auto`, or the engine to use.
        trial_timeout_seconds: Longest time for loading and for each trial.
        profile_micro_batch: Size at which memory is recorded by category and module; None for the maximum.
        command: A command whose words have placeholders where the sizes go, instead of a file; None for a file. It
            decides its precision and its optimizer itself.
        steps: Optimizer steps after which a trial of a command is ended.
        watched: Whether what a command uses is recorded, for an answer that is to be used again.
        guide: Whether a trace of the step tells where the search begins, which only a probe of a file on a real GPU has
            need of.
        fresh: Whether each trial of a command starts its Pythons anew, instead of forking one that has imported torch.
    """

    target: str
    directory: Path
    target_batch: int
    world_size: int = 1
    precision: Precision = "fp32"
    optimizer: str | None = None
    headroom: float = DEFAULT_HEADROOM
    gpu: str | None = None
    device: str | None = None
    memory_bytes: int | None = None
    engine: Literal["auto", "cuda", "null", "trace"] = "auto"
    trial_timeout_seconds: float = DEFAULT_TRIAL_TIMEOUT_SECONDS
    profile_micro_batch: int | None = None
    command: tuple[str, ...] | None = None
    steps: int = DEFAULT_STEPS
    fresh: bool = False
    guide: bool = True
    watched: bool = False
