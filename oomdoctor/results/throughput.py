"""Throughput of training at several micro-batches, as it was timed."""

from __future__ import annotations

from dataclasses import dataclass

from oomdoctor.results.plan import Accumulation


@dataclass(frozen=True, slots=True)
class SizeThroughput:
    """One way to take the optimizer step, and how fast it is.

    Attributes:
        micro_batch: Its largest micro-batch.
        steps: Micro-batches in one optimizer step.
        samples_per_second: Samples of one device in a second; None where nothing was timed, as on a null GPU.
        interval: The same, at least and at most, with a confidence of 95 %; None where it was timed once.
        timed_steps: Optimizer steps that were timed, without those that warmed up.
        peak_reserved_bytes: Most bytes held from the driver in a trial of that size; None where there was none.
        ran_out: Whether memory ran out while it was timed.
        flops: Floating-point operations of one optimizer step, what is recomputed included; None where not known.
        touched_bytes: Bytes that its operators read and wrote; None where not known.
    """

    micro_batch: int
    steps: int
    samples_per_second: float | None
    interval: tuple[float, float] | None
    timed_steps: int
    peak_reserved_bytes: int | None = None
    ran_out: bool = False
    flops: int | None = None
    touched_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Throughput:
    """The answer to which micro-batch trains fastest.

    Attributes:
        fastest: The smallest micro-batch whose optimizer steps take as little time as any; None where none was timed.
        accumulation: How to reach the target batch with it; None without one, or where none was timed.
        sizes: Every size that was compared, largest first.
        timed_steps: Optimizer steps that were timed, of all sizes.
        is_settled: Whether the measurements agree well enough to tell sizes apart that differ by 3 %.
        problem: Why nothing was timed; None where something was.
    """

    fastest: int | None
    accumulation: Accumulation | None
    sizes: tuple[SizeThroughput, ...]
    timed_steps: int
    is_settled: bool
    problem: str | None = None
