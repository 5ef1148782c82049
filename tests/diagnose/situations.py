"""Situations made by hand, sizes in GiB."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from oomdoctor.diagnose.evidence import ErrorEvidence, JudgedEvidence, Message, Situation, Window
from oomdoctor.results import (
    Category,
    CategoryBytes,
    Composition,
    Facts,
    Fragmentation,
    GrowingLine,
    MemoryDevice,
    MemoryTrend,
    ProcessMemory,
    SnapshotSummary,
    SourceLine,
    TrainingPhase,
)
from oomdoctor.units import GIB


def gib(size: float | None) -> int | None:
    """Bytes of so many GiB."""
    return None if size is None else round(size * GIB)


def situation(  # noqa: PLR0913 - one parameter a fact
    *,
    kind: str = "cuda-allocator",
    device: MemoryDevice = "cuda",
    is_oom: bool = True,
    text: str = "CUDA out of memory.",
    tried: float | None = None,
    total: float | None = None,
    free: float | None = None,
    allocated: float | None = None,
    unallocated: float | None = None,
    allowed: float | None = None,
    process: float | None = None,
    others: tuple[tuple[int, float], ...] = (),
    own_pid: int | None = None,
    phase: TrainingPhase | None = None,
    frames: tuple[SourceLine, ...] = (),
    code: str | None = None,
    step: int | None = None,
    lines: tuple[str, ...] = (),
    **case: Any,
) -> Situation:
    """One error with these facts, in a window of these lines."""
    reserved = None if allocated is None or unallocated is None else allocated + unallocated
    if code is not None:
        frames = (*frames, SourceLine("train.py", 7, "main", code))
    facts = Facts(
        gpu_index=0,
        tried_bytes=gib(tried),
        total_bytes=gib(total),
        free_bytes=gib(free),
        allocated_bytes=gib(allocated),
        reserved_bytes=gib(reserved),
        reserved_unallocated_bytes=gib(unallocated),
        process_bytes=gib(process),
        allowed_bytes=gib(allowed),
        other_processes=tuple(ProcessMemory(pid, gib(size)) for pid, size in others),
        own_pid=own_pid,
        phase=phase,
        user_line=frames[-1] if frames else None,
        step=step,
    )
    window = Window("train.log", len(lines) + 1, None, (*lines, text), len(lines), step=step)
    message = Message(kind, is_oom, device, text, facts, len(lines), len(lines))
    event = ErrorEvidence(window, message, frames)
    return Situation(JudgedEvidence(("train.log",), (event,), **case), event)


def full(**changes: Any) -> Situation:
    """A card that is plainly full, and nothing else is known."""
    return situation(**{"tried": 0.5, "total": 24, "free": 0.2, "allocated": 22, "unallocated": 0.8, **changes})


def snapshot(*, growing: tuple[GrowingLine, ...] = (), **sizes: float) -> SnapshotSummary:
    """A snapshot whose categories hold so many GiB."""
    parts = tuple(CategoryBytes(Category(name), gib(size) or 0) for name, size in sizes.items())
    allocated = sum(part.allocated_bytes for part in parts)
    end = Composition(allocated, allocated, parts, ())
    return SnapshotSummary(
        source="snapshot.pickle",
        device_index=0,
        total_bytes=None,
        has_history=True,
        truncated=False,
        events=1,
        end=end,
        peak=end,
        largest=(),
        fragmentation=Fragmentation(1, 0, 0, 0, 0),
        growing=growing,
        timeline=(),
    )


def trend(*, first: float, last: float, steps: int = 100) -> MemoryTrend:
    """Memory that rises over so many steps, or stays."""
    grown = (gib(last) or 0) - (gib(first) or 0)
    return MemoryTrend(
        readings=steps,
        first_step=1,
        last_step=steps,
        first_bytes=gib(first) or 0,
        last_bytes=gib(last) or 0,
        growing=grown > 0,
        bytes_per_step=max(0, grown // steps),
    )


def with_facts(one: Situation, **facts: Any) -> Situation:
    """The same situation with other facts."""
    assert one.event is not None
    message = replace(one.event.message, facts=replace(one.event.message.facts, **facts))
    return Situation(one.case, replace(one.event, message=message))
