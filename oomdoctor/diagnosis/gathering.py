"""All evidence out of all sources: logs are scanned, snapshots opened, a run's report joined with its snapshot."""

from __future__ import annotations

import io
import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from oomdoctor.diagnosis.events import read_events
from oomdoctor.diagnosis.evidence import Case
from oomdoctor.diagnosis.inputs import head
from oomdoctor.diagnosis.run_report import LARGEST_BYTES, looks_like_report, read_report
from oomdoctor.diagnosis.snapshot.summary import looks_like_snapshot, read_snapshot, summarise
from oomdoctor.diagnosis.text.scanning import scan
from oomdoctor.diagnosis.text.trend import judge_readings
from oomdoctor.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from oomdoctor.diagnosis.evidence import Event
    from oomdoctor.diagnosis.inputs import Source
    from oomdoctor.diagnosis.run_report import RunReport
    from oomdoctor.diagnosis.snapshot.raw import RawSnapshot
    from oomdoctor.results import Category, MemoryTrend

_LARGEST_SNAPSHOT: Final = 4 << 30
_FEWEST_READINGS: Final = 3  # of which a line can be told from a point


@dataclass
class _Found:
    """What was read until now."""

    events: list[Event] = field(default_factory=list)
    trends: list[MemoryTrend] = field(default_factory=list)
    snapshots: list[tuple[Path | None, RawSnapshot]] = field(default_factory=list)
    reports: list[RunReport] = field(default_factory=list)
    addresses: dict[Path, dict[int, Category]] = field(default_factory=dict)


_SAVED: Final = re.compile(rb'"command": ?"(?:probe|diagnose)"')
_COMPRESSED: Final = {
    b"\xfd7zXZ\x00": ("xz", "xz -dc"),
    b"BZh": ("bzip2", "bzip2 -dc"),
    b"\x28\xb5\x2f\xfd": ("zstd", "zstd -dc"),
    b"PK\x03\x04": ("zip", "unzip -p"),
}


def gather(sources: Sequence[Source]) -> Case:
    """Read every source.

    Raises:
        UsageError: One cannot be read, or is a snapshot or a report and broken.
    """
    found = _Found()
    for source in sources:
        _read(source, found)
    first = next(iter(found.reports), None)
    trends = [trend for trend in found.trends if trend.readings >= _FEWEST_READINGS]
    return Case(
        sources=tuple(source.name for source in sources),
        events=tuple(found.events),
        trend=max(trends, key=lambda trend: (trend.growing, trend.readings), default=None),
        snapshots=tuple(
            summary
            for folder, raw in found.snapshots
            for summary in summarise(raw, found.addresses.get(folder) if folder is not None else None)
        ),
        steps_done=None if first is None else first.steps_done,
        command=() if first is None else first.command,
        has_reports=first is not None,
        allocator_settings=None if first is None else first.allocator_settings,
    )


def _read(source: Source, found: _Found) -> None:
    with source.opened() as stream:
        start = head(stream)
        _refuse_what_is_no_evidence(source, start)
        if looks_like_report(start):
            _read_report(source, stream, found)
        elif looks_like_snapshot(start):
            data = source.path or _whole(stream, source, _LARGEST_SNAPSHOT)
            folder = None if source.path is None else source.path.parent
            found.snapshots.append((folder, read_snapshot(data, source.name)))
        else:
            scanned = scan(stream, source.name)
            found.events += read_events(scanned.windows)
            found.trends += [scanned.trend] if scanned.trend is not None else []


def _refuse_what_is_no_evidence(source: Source, start: bytes) -> None:
    """A result of ours says what was found, and compressed bytes say nothing; both would be read as a log."""
    if start.lstrip()[:1] == b"{" and b'"schema_version"' in start and _SAVED.search(start):
        hint = f"`oomdoctor report {source.name}` shows it in any format"
        raise UsageError(f"`{source.name}` is a saved result of oomdoctor, not a log", hint=hint)
    for magic, (name, command) in _COMPRESSED.items():
        if start.startswith(magic):
            hint = f"`{command} {source.name} | oomdoctor diagnose -`"
            raise UsageError(f"`{source.name}` is compressed with {name}, which is not read", hint=hint)


def _read_report(source: Source, stream: io.BufferedReader, found: _Found) -> None:
    report = read_report(_whole(stream, source, LARGEST_BYTES), source.name)
    windows = scan(io.BytesIO(report.text.encode("utf-8", "replace")), source.name).windows
    ranked = [replace(window, rank=report.rank) for window in windows]
    found.events += read_events(ranked)
    found.reports.append(report)
    trend = judge_readings(report.last_steps)
    found.trends += [trend] if trend is not None else []
    if source.path is not None:
        found.addresses[source.path.parent] = report.addresses


def _whole(stream: io.BufferedReader, source: Source, limit: int) -> bytes:
    data = stream.read(limit + 1)
    if len(data) > limit:
        raise UsageError(f"`{source.name}` is larger than {limit >> 20} MiB", hint="name the file it came from")
    return data
