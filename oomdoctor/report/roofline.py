"""A roofline of each row of a prescription: the least time that published peaks allow, a model and no measure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from oomdoctor.engines.catalogue import peaks_of
from oomdoctor.report.plain_text import capitalised, sentence, visible

if TYPE_CHECKING:
    from collections.abc import Iterator

    from oomdoctor.engines.catalogue import Peaks
    from oomdoctor.results import MeasuredRemedies, PrescribeResult

_MODEL: Final = (
    "a model, not a measurement: the longer of the time of the counted FLOPs at the card's published peak (of fp32 "
    "without TF32) and that of the counted bytes at its bandwidth, as if every operator reached them; fused operators "
    "touch fewer bytes, and the optimizer's step is left out"
)


def roofline(result: PrescribeResult) -> Iterator[str]:
    """Yield the lines of `--verbose`: what it is, the peaks with their source, and each row's modelled time."""
    peaks = peaks_of(result.device.name)
    rows = [row for row in (result.plain, *result.combined, *result.alone) if row.outcome == "measured"]
    yield visible(f"Roofline of a forward and backward at micro-batch {result.plain.maximum}, {_MODEL}.")
    if peaks is None:
        yield visible(sentence(f"No published peaks of {result.device.name} are known, so every time is unknown"))
    else:
        yield visible(sentence(capitalised(_described(peaks))))
    width = max(len(_name(row)) for row in rows)
    for row in rows:
        yield visible(f"  {_name(row):<{width}}  {_told(row, peaks)}")


def modelled_seconds(row: MeasuredRemedies, peaks: Peaks | None) -> float | None:
    """Return the least seconds that the peaks allow for a row; None where a count or a peak is not known."""
    if peaks is None or not row.step_flops or row.step_touched_bytes is None:
        return None
    if not all(kind in peaks.flops for kind in row.step_flops):
        return None
    computing = sum(count / peaks.flops[kind] for kind, count in row.step_flops.items())
    return max(computing, row.step_touched_bytes / peaks.bytes_per_second)


def _told(row: MeasuredRemedies, peaks: Peaks | None) -> str:
    seconds = modelled_seconds(row, peaks)
    if seconds is None or peaks is None or row.step_touched_bytes is None:
        return "unknown"
    by = "bytes" if seconds == row.step_touched_bytes / peaks.bytes_per_second else "FLOPs"
    host = ", without what goes to the host" if row.host_bytes else ""
    return f"{1000 * seconds:.1f} ms, by its {by}{host}"


def _described(peaks: Peaks) -> str:
    rates = ", ".join(f"{rate / 1e12:g} TFLOP/s in {kind}" for kind, rate in peaks.flops.items())
    return f"peaks: {rates}; {peaks.bytes_per_second / 1e9:g} GB/s ({peaks.source})"


def _name(row: MeasuredRemedies) -> str:
    return " + ".join(row.remedies) or "as it is"
