"""The sentences of a diagnosis: headline, causes, errors, snapshots.

All text here is plain: no colour, no markup. Text that users control is cleaned.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from oomdoctor.report.plain_text import capitalised, clean, count, shortened
from oomdoctor.results import CauseId, TrainingPhase
from oomdoctor.units import format_signed_size, format_size

if TYPE_CHECKING:
    from oomdoctor.results import (
        Cause,
        DiagnosisDocument,
        DiagnosisResult,
        Facts,
        Fragmentation,
        GrowingLine,
        HistoryReplay,
        LiveAllocation,
        MemoryTrend,
        Occurrence,
        Remedy,
        SnapshotSummary,
        SourceLine,
    )


CAUSE_WORDS: Final = {
    CauseId.BATCH_TOO_LARGE: "the batch is too large",
    CauseId.SINGLE_HUGE_ALLOCATION: "one huge allocation",
    CauseId.FRAGMENTATION: "fragmentation",
    CauseId.OTHER_PROCESS: "another process holds the device",
    CauseId.MODEL_TOO_LARGE: "the model alone does not fit",
    CauseId.OPTIMIZER_STATE: "the optimizer's state",
    CauseId.LEAK_ACROSS_STEPS: "a leak across steps",
    CauseId.MISSING_NO_GRAD: "evaluation without no_grad",
    CauseId.CHECKPOINT_LOAD: "a checkpoint loaded beside the model",
    CauseId.MEMORY_FRACTION_CAP: "a cap on this process's memory",
    CauseId.SHM: "shared memory",
    CauseId.HOST_OOM: "the host's memory",
    CauseId.SIZE_LIMIT: "a size limit that is not memory",
    CauseId.KV_CACHE_NO_ROOM: "no room for the KV cache",
    CauseId.LIBRARY_BUFFERS: "no room for a library's buffers",
    CauseId.NOT_OOM: "something else than memory",
    CauseId.UNKNOWN: "unknown",
}
"""Each cause as a title."""

UNRECORDED: Final = "allocated before recording began"
"""Stands for the place of memory that has none."""

_PHASE_WORDS: Final = {
    TrainingPhase.FORWARD: "in forward",
    TrainingPhase.BACKWARD: "in backward",
    TrainingPhase.OPTIMIZER_STEP: "in the optimizer step",
    TrainingPhase.MODEL_TO_DEVICE: "while the model was moved to the device",
    TrainingPhase.BATCH_TO_DEVICE: "while a batch was moved to the device",
    TrainingPhase.CHECKPOINT_LOAD: "while a checkpoint was loaded",
    TrainingPhase.EVALUATION: "in evaluation",
    TrainingPhase.DATA_LOADING: "while data was loaded",
}
_DEVICE_WORDS: Final = {"mps": "the MPS device", "cpu": "the host", "none": "the device"}
_INDEXED_WORDS: Final = {"cuda": "GPU", "hip": "GPU", "xpu": "XPU", "npu": "NPU", "hpu": "HPU", "xla": "XLA device"}
_LONGEST_NAME: Final = 300


# --- the answer ------------------------------------------------------------------------------------------------------


def headline(document: DiagnosisDocument) -> str:
    """Return the diagnosis in one line, such as `GPU 0 ran out of memory in backward, step 412`."""
    return capitalised(_headline(document.result))


def _headline(result: DiagnosisResult) -> str:
    if result.is_oom and any(found.kind == "killed" for found in result.occurrences[:1]):
        return f"a process was killed, likely for want of host memory{_when(result.facts)}"
    first = result.causes[0] if result.is_oom and result.causes else None
    if first is not None and first.id is CauseId.HOST_OOM and result.device != "cpu":
        return f"the host refused memory for {device(result.device, result.facts.gpu_index)}{_when(result.facts)}"
    if result.is_oom:
        return f"{device(result.device, result.facts.gpu_index)} ran out of memory{_when(result.facts)}"
    if result.occurrences:
        named = next((cause for cause in result.causes if cause.id not in (CauseId.NOT_OOM, CauseId.UNKNOWN)), None)
        return f"not an out-of-memory error{_when(result.facts)}" if named is None else CAUSE_WORDS[named.id]
    if result.snapshots:
        largest = max(summary.peak.allocated_bytes for summary in result.snapshots)
        return f"no error was found; {format_size(largest)} were allocated at the peak"
    return "no error was found"


def summary(result: DiagnosisResult) -> str | None:
    """Return the numbers that count in one line; None where none is known."""
    facts = result.facts
    parts = []
    if facts.tried_bytes is not None:
        parts.append(f"{format_size(facts.tried_bytes)} asked for")
    if facts.free_bytes is not None:
        of = "" if facts.total_bytes is None else f" of {format_size(facts.total_bytes)}"
        parts.append(f"{format_size(facts.free_bytes)}{of} free")
    elif facts.total_bytes is not None:
        parts.append(f"{format_size(facts.total_bytes)} on the device")
    if facts.allocated_bytes is not None:
        parts.append(f"{format_size(facts.allocated_bytes)} in tensors")
    return ", ".join(parts) or None


def device(name: str, index: int | None) -> str:
    """Return a device as the subject of a sentence, such as `GPU 0` or `the host`."""
    if name in _INDEXED_WORDS:
        word = _INDEXED_WORDS[name]
        return f"the {word}" if index is None else f"{word} {index}"
    return _DEVICE_WORDS[name]


def _when(facts: Facts) -> str:
    phase = "" if facts.phase is None else f" {_PHASE_WORDS[facts.phase]}"
    return phase if facts.step is None else f"{phase}{',' if phase else ' at'} step {facts.step}"


def blocks(found: LiveAllocation) -> str:
    """Return the size of a block, or of several that are alike, such as `24 x 1.00 GiB`."""
    size = format_size(found.size_bytes)
    return size if found.blocks == 1 else f"{found.blocks} x {size}"


def place(line: SourceLine | None) -> str:
    """Return the location of a line of code, such as `train.py:12 in train`."""
    if line is None:
        return UNRECORDED
    function = f" in {shortened(line.function, _LONGEST_NAME)}" if line.function else ""
    return f"{shortened(line.path, _LONGEST_NAME)}:{line.line}{function}"


def code(line: SourceLine | None) -> str:
    """Return the line's own text; empty where it is not known."""
    return shortened(line.code, _LONGEST_NAME) if line and line.code else ""


def cause(found: Cause) -> str:
    """Return a cause and its confidence, such as `fragmentation (likely)`."""
    held = confidence(found)
    return f"{CAUSE_WORDS[found.id]} ({held})" if held else CAUSE_WORDS[found.id]


def confidence(found: Cause) -> str:
    """Return the confidence in a cause; empty where the cause is unknown."""
    return "" if found.id is CauseId.UNKNOWN else found.confidence.value


def frees(remedy: Remedy) -> str:
    """Return the memory that a remedy frees, such as `frees up to 1.20 GiB`; empty where it is unknown."""
    return f"frees up to {format_size(remedy.frees_bytes)}" if remedy.frees_bytes else ""


# --- errors ----------------------------------------------------------------------------------------------------------


def origin(found: Occurrence) -> str:
    """Return the source of an error, such as `train.log:20417, rank 0, 3 times`."""
    source = shortened(found.source, _LONGEST_NAME)
    parts = [source if found.line is None else f"{source}:{found.line}"]
    if found.rank is not None:
        parts.append(f"rank {found.rank}")
    if found.count > 1:
        parts.append(f"{found.count} times")
    return ", ".join(parts)


def occurrence(found: Occurrence) -> str:
    """Return one of several errors in a line, such as `out of memory on GPU 1: 1.92 GiB asked for`."""
    if not found.is_oom:
        return f"not an out-of-memory error{_when(found.facts)}"
    facts = found.facts
    where = f"out of memory on {device(found.device, facts.gpu_index)}{_when(facts)}"
    numbers = [
        f"{format_size(size)} {name}"
        for name, size in (("asked for", facts.tried_bytes), ("free", facts.free_bytes))
        if size is not None
    ]
    return f"{where}: {', '.join(numbers)}" if numbers else where


# --- over time -------------------------------------------------------------------------------------------------------


def trend(found: MemoryTrend) -> str:
    """Return memory over steps in one sentence."""
    first, last = format_size(found.first_bytes), format_size(found.last_bytes)
    span = f"from {first} at step {found.first_step} to {last} at step {found.last_step}"
    readings = count(found.readings, "reading")
    if found.growing:
        return f"memory rose steadily {span}, {format_size(found.bytes_per_step)} a step ({readings})"
    return f"memory did not rise steadily: {span} ({readings})"


def growth(line: GrowingLine) -> str:
    """Return the growth of one line's memory, such as `2.00 MiB in 10 blocks to 80.00 MiB in 412 blocks`."""
    first = f"{format_size(line.first_bytes)} in {count(line.first_blocks, 'block')}"
    return f"{first} to {format_size(line.last_bytes)} in {count(line.last_blocks, 'block')}"


# --- snapshots -------------------------------------------------------------------------------------------------------


def snapshot_title(found: SnapshotSummary) -> str:
    """Return a snapshot's title, such as `Memory snapshot of GPU 0: snapshot.pickle`."""
    return f"Memory snapshot of GPU {found.device_index}: {shortened(found.source, _LONGEST_NAME)}"


def history(found: SnapshotSummary) -> str:
    """Return a sentence about the snapshot's history."""
    if not found.has_history:
        return "it has no history: what it shows is the moment when it was taken"
    lost = ", older ones are lost" if found.truncated else ""
    return f"its history has {count(found.events, 'event')}{lost}{_replayed(found.replay)}"


def _replayed(found: HistoryReplay | None) -> str:
    """Return whether the history is what the allocator's rules make of its allocations."""
    if found is None:
        return ""
    if found.departed_at is None:
        return "; the simulated allocator reproduces each block and segment"
    return f"; the simulated allocator differs from it at event {found.departed_at + 1}: {found.departure}"


def totals(found: SnapshotSummary) -> list[tuple[str, str]]:
    """Return allocated and reserved memory at the moments that differ: (moment, sentence)."""
    moments = [("at the peak", found.peak), ("when taken", found.end)]
    if not found.has_history:
        del moments[0]
    elif found.peak == found.end:
        moments = [("at the peak, when taken", found.end)]
    rows = [
        (name, f"{format_size(at.allocated_bytes)} allocated, {format_size(at.reserved_bytes)} reserved")
        for name, at in moments
    ]
    return rows if found.total_bytes is None else [*rows, ("device", f"{format_size(found.total_bytes)} in all")]


def fragmentation(found: Fragmentation) -> str:
    """Return holes between live blocks in one sentence."""
    holes = f"{found.segments_with_holes} of {count(found.segments, 'segment')} hold live and free blocks at once"
    if not found.segments_with_holes:
        text = f"none of {count(found.segments, 'segment')} has a hole between live blocks"
    else:
        size, largest = format_size(found.hole_bytes), format_size(found.largest_hole_bytes)
        text = f"{holes}: {size} lie in holes, the largest of {largest}"
    if not found.cached_bytes:
        return text
    return f"{text}; {format_size(found.cached_bytes)} in segments without a live block can be given back"


def difference(before_bytes: int, after_bytes: int) -> str:
    """Return the second size as a difference from the first."""
    return format_signed_size(after_bytes - before_bytes)


def sources(result: DiagnosisResult) -> str:
    """Return the names of the inputs."""
    return ", ".join(clean(shortened(source, _LONGEST_NAME)) for source in result.sources)
