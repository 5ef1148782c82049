"""Throughput of a probe in words: a row for each size that was timed, or counted where no clock runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from oomdoctor.report.plain_text import clean, count, optional_size
from oomdoctor.units import format_size

if TYPE_CHECKING:
    from collections.abc import Iterator

    from oomdoctor.results.throughput import SizeThroughput, Throughput

_TIMED: Final = ("micro-batch", "steps", "samples/s", "95 % of them", "peak reserved")
_COUNTED: Final = ("micro-batch", "steps", "TFLOP", "bytes touched", "peak reserved")
_TERA: Final = 1e12


def title(found: Throughput) -> str:
    """Return the heading of the table."""
    if found.fastest is None:
        return "What one optimizer step computes, by micro-batch"
    return f"Throughput by micro-batch, over {count(found.timed_steps, 'optimizer step')}"


def columns(found: Throughput) -> tuple[str, ...]:
    """Return the headings of the columns."""
    return _COUNTED if found.fastest is None else _TIMED


def rows(found: Throughput) -> list[tuple[str, ...]]:
    """Return the rows, in the order of `columns`."""
    row = _counted if found.fastest is None else _timed
    return [
        (str(size.micro_batch), str(size.steps), *row(size), optional_size(size.peak_reserved_bytes))
        for size in found.sizes
    ]


def _timed(size: SizeThroughput) -> tuple[str, str]:
    if size.samples_per_second is None:
        return ("ran out", "") if size.ran_out else ("-", "")
    ends = "" if size.interval is None else f"{_rate(size.interval[0])} to {_rate(size.interval[1])}"
    return _rate(size.samples_per_second), ends


def _counted(size: SizeThroughput) -> tuple[str, str]:
    return "-" if size.flops is None else f"{size.flops / _TERA:.4g}", optional_size(size.touched_bytes)


def _rate(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"  # noqa: PLR2004 - three digits tell enough


def notes(found: Throughput) -> Iterator[str]:
    """Yield sentences about the table: what is fastest, and what the reader should know."""
    if found.fastest is None:
        yield f"no time was measured: {clean(found.problem or '')}"
        yield "more steps of smaller micro-batches compute the same and touch more memory, the weights in each of them"
        return
    largest = found.sizes[0]
    if found.fastest == largest.micro_batch:
        yield f"the largest micro-batch, {found.fastest}, is the fastest"
    else:
        yield f"micro-batch {found.fastest} is the fastest, or the smallest of those that are as fast"
    if not found.is_settled:
        yield "the times scatter too much to tell sizes apart that differ by less than 3 %; is the GPU used by others?"


def answer(found: Throughput) -> str:
    """Return the answer in one line."""
    best = next((size for size in found.sizes if size.micro_batch == found.fastest), None)
    if best is None or best.samples_per_second is None:
        return f"not measured: {clean(found.problem or '')}"
    memory = "" if best.peak_reserved_bytes is None else f", {format_size(best.peak_reserved_bytes)}"
    rate = f"{_rate(best.samples_per_second)} samples/s"
    return f"micro-batch {best.micro_batch} \u00d7 {count(best.steps, 'step')}: {rate}{memory}"
