"""A row of the table of errors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from oomdoctor.results import Outcome

RowDevice = Literal["cuda", "hip", "xpu", "mps", "hpu", "npu", "xla", "cpu", "any"]

FRAMEWORK: Final = (
    "RuntimeError",  # PyTorch's own errors and nearly all of those that C++ raises through a binding
    "MemoryError",  # memory managers that put the device's error into Python's own, such as RMM's
    "torch.multiprocessing.spawn.ProcessRaisedException",
    "torch.distributed.elastic.multiprocessing.errors.ChildFailedError",
    "concurrent.futures.process._RemoteTraceback",
    "multiprocessing.pool.RemoteTraceback",
    "ray.exceptions.RayTaskError",
)
"""Types whose text is evidence: what frameworks raise, and what carries another process's traceback as text."""

TORCH_OOM: Final = ("torch.OutOfMemoryError", "torch.cuda.OutOfMemoryError")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One way in which an error reads, and what it says.

    Attributes:
        id: Stable name.
        outcome: What the trial's outcome is where the row decides.
        patterns: Regular expressions, upper and lower case alike; the text must contain a match of every one.
        raised_by: Qualified names of exception types, builtins without a module; the error must be an instance of one.
        needs_pressure: The text alone decides nothing: it is an OOM only where memory was nearly exhausted, and
            `FAILED` otherwise.
        not_when_ample: An OOM unless at least half of the device is known to have been free; `FAILED` then.
        device: Whose memory it is about; `any` where the error does not tell.
        example: A text that the row matches when raised as the first of `raised_by`.
        reason: Why this is or is not an OOM, without a trailing period.
        source: Where it was reported.
    """

    id: str
    outcome: Outcome = Outcome.OOM
    patterns: tuple[str, ...]
    raised_by: tuple[str, ...] = FRAMEWORK
    needs_pressure: bool = False
    not_when_ample: bool = False
    device: RowDevice = "cuda"
    example: str
    reason: str
    source: str
