"""Diagnose: read the sources, find the causes, choose the remedies, add notes and next steps."""

from __future__ import annotations

import io
import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from oomdoctor.agent.unknown_reads import read_warnings
from oomdoctor.diagnose import device_causes, training_causes
from oomdoctor.diagnose.events import occurrences, primary_event, read_events
from oomdoctor.diagnose.evidence import JudgedEvidence, Situation
from oomdoctor.diagnose.proposed_commands import run_again
from oomdoctor.diagnose.remedies import choose_remedies, vocabulary
from oomdoctor.diagnose.snapshot.composition import compare
from oomdoctor.diagnose.snapshot.reading import looks_like_snapshot, read_snapshot
from oomdoctor.diagnose.snapshot.summary import summarise
from oomdoctor.diagnose.sources import LARGEST_BYTES, head, looks_like_report, read_report
from oomdoctor.diagnose.text.printed_tables import MARKS, read_cards, read_summary
from oomdoctor.diagnose.text.reading import looks_binary
from oomdoctor.diagnose.text.scan import scan
from oomdoctor.diagnose.text.trend import judge_readings
from oomdoctor.errors import UsageError
from oomdoctor.results import Cause, CauseId, Confidence, DiagnosisResult, NextStep
from oomdoctor.results.document import COMMANDS
from oomdoctor.units import MIB, format_size

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from oomdoctor.diagnose.evidence import ErrorEvidence
    from oomdoctor.diagnose.snapshot.layout import RawSnapshot
    from oomdoctor.diagnose.sources import RunReport, Source
    from oomdoctor.diagnose.text.printed_tables import CardReading, MemorySummary
    from oomdoctor.results import Category, MemoryTrend


_LARGEST_SNAPSHOT: Final = 4 << 30
_FEWEST_READINGS: Final = 3  # of which a line can be told from a point


@dataclass
class _Found:
    """Evidence read so far."""

    events: list[ErrorEvidence] = field(default_factory=list)
    trends: list[MemoryTrend] = field(default_factory=list)
    snapshots: list[tuple[Path | None, RawSnapshot]] = field(default_factory=list)
    reports: list[RunReport] = field(default_factory=list)
    addresses: dict[Path, dict[int, Category]] = field(default_factory=dict)
    cards: tuple[CardReading, ...] = ()
    memory_summary: MemorySummary | None = None
    empty: list[str] = field(default_factory=list)
    binary: list[str] = field(default_factory=list)


_SAVED: Final = re.compile(rf'"command": ?"(?:{"|".join(COMMANDS)})"'.encode())
_COMPRESSED: Final = {
    b"\xfd7zXZ\x00": ("xz", "xz -dc"),
    b"BZh": ("bzip2", "bzip2 -dc"),
    b"\x28\xb5\x2f\xfd": ("zstd", "zstd -dc"),
    b"PK\x03\x04": ("zip", "unzip -p"),
}


def read_sources(sources: Sequence[Source]) -> JudgedEvidence:
    """Read every source.

    Raises:
        UsageError: One cannot be read, or is a snapshot or a report and broken.
    """
    found = _Found()
    for source in sources:
        _read(source, found)
    first = next(iter(found.reports), None)
    trends = [trend for trend in found.trends if trend.readings >= _FEWEST_READINGS]
    return JudgedEvidence(
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
        card_options=() if first is None else first.card_options,
        has_reports=first is not None,
        allocator_settings=None if first is None else first.allocator_settings,
        device_names=() if first is None else first.device_names,
        address_space_bytes=None if first is None else first.address_space_bytes,
        unknown_reads=() if first is None else first.unknown_reads,
        cards=found.cards,
        memory_summary=found.memory_summary,
        empty_sources=tuple(found.empty),
        binary_sources=tuple(found.binary),
    )


def _read(source: Source, found: _Found) -> None:
    with source.opened() as stream:
        start = head(stream)
        _refuse_what_is_no_evidence(source, start)
        if not start:
            found.empty.append(source.name)
        if looks_like_report(start):
            _read_report(source, stream, found)
        elif looks_like_snapshot(start):
            data = source.path or _whole(stream, source, _LARGEST_SNAPSHOT)
            folder = None if source.path is None else source.path.parent
            found.snapshots.append((folder, read_snapshot(data, source.name)))
        else:
            scanned = scan(stream, source.name)
            events = [*read_events(scanned.windows)]
            found.events += events
            found.binary += [source.name] if looks_binary(start) and not events else []
            found.trends += [scanned.trend] if scanned.trend is not None else []
            found.cards = read_cards(scanned.tables.get(MARKS[0], ())) or found.cards
            found.memory_summary = read_summary(scanned.tables.get(MARKS[1], ())) or found.memory_summary


def _refuse_what_is_no_evidence(source: Source, start: bytes) -> None:
    """Refuse a result of ours, and compressed bytes, both of which would be read as a log."""
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


CAUSE_RULES: Final[tuple[Callable[[Situation], Cause | None], ...]] = (
    device_causes.size_limit,
    device_causes.kv_cache_no_room,
    device_causes.quantized_offload,
    device_causes.shm,
    device_causes.single_huge_allocation,
    device_causes.memory_fraction_cap,
    device_causes.other_process,
    device_causes.address_space,
    device_causes.unexplained_refusal,
    device_causes.library_buffers,
    training_causes.leak_across_steps,
    training_causes.missing_no_grad,
    training_causes.optimizer_state,
    training_causes.checkpoint_load,
    training_causes.batch_named_in_code,
    device_causes.fragmentation,
    training_causes.model_too_large,
    device_causes.most_of_the_device,
    device_causes.compiled_program,
    training_causes.batch_too_large,
    device_causes.fragmentation_beside_free,
    device_causes.unseen_process,
    device_causes.large_allocation,
    device_causes.host_oom,
    device_causes.not_oom,
)
"""In order of precedence among causes of one confidence: what a number proves before what a line of code suggests."""

_CAUSE_ORDER: Final = tuple(Confidence)


def find_causes(situation: Situation) -> tuple[Cause, ...]:
    """Every cause that the evidence fits, most certain first; `unknown` where there is none."""
    if situation.event is None and not situation.is_oom:  # a snapshot of a program that went on
        return tuple(filter(None, [training_causes.leak_across_steps(situation)]))
    told: dict[CauseId, Cause] = {}
    for cause in filter(None, (rule(situation) for rule in CAUSE_RULES)):
        told.setdefault(cause.id, cause)
    found = list(told.values())
    alone = [cause.id for cause in found] == [CauseId.HOST_OOM] and device_causes.address_space(situation) is None
    if not found or (alone and situation.on_gpu):
        found.append(_unknown(situation))
    return tuple(sorted(found, key=lambda cause: _CAUSE_ORDER.index(cause.confidence)))


def _unknown(situation: Situation) -> Cause:
    asked = situation.facts.tried_bytes
    if situation.is_oom and asked is not None:
        text = f"{format_size(asked)} were asked for and refused; nothing else in the message tells why"
    elif situation.is_oom:
        text = "Memory ran out, and the message has no numbers that would tell why"
    else:
        text = "Nothing in it tells of an error that is known"
    return Cause(CauseId.UNKNOWN, Confidence.CERTAIN, text)


_SEGMENTS: Final = {
    2 * MIB: "a tensor of at most 1 MiB",
    20 * MIB: "a tensor of 1 to 10 MiB",
}
_TORCH_ALLOCATOR_KINDS: Final = ("cuda-allocator", "hip-allocator")


def read_notes(situation: Situation) -> Iterator[str]:
    """Return notes on numbers of the error that are easily misread."""
    facts = situation.facts
    if situation.kind in _TORCH_ALLOCATOR_KINDS and facts.tried_bytes in _SEGMENTS:
        yield (
            f"{format_size(facts.tried_bytes)} is the segment that PyTorch asked the driver for, "
            f"to place {_SEGMENTS[facts.tried_bytes]} in it"
        )
    held = situation.held_bytes
    if held is not None and facts.total_bytes is not None and held > facts.total_bytes:
        yield (
            f"PyTorch holds {format_size(held)}, more than the device's {format_size(facts.total_bytes)}: the driver "
            "spills to system memory, as it does on Windows and in WSL, and everything is slow from there on"
        )
    if facts.own_pid is not None:
        yield f"process {facts.own_pid} is this program itself; inside a container its process id is a different one"
    if any(process.used_bytes is None for process in facts.other_processes):
        yield "the driver could not tell how much memory a listed process holds"
    if facts.private_pool_bytes:
        yield f"{format_size(facts.private_pool_bytes)} of what is allocated are in private pools, such as CUDA graphs'"
    if situation.batch_size == 1 and situation.on_gpu:
        yield "the batch is a single sample already, so that a smaller batch is no remedy"
    yield from (f"`{name}` is empty" for name in situation.case.empty_sources)
    yield from (f"`{name}` is no text, in which no error is found" for name in situation.case.binary_sources)
    yield from read_warnings(situation.case.unknown_reads, "the program")


def next_steps(situation: Situation, causes: Sequence[Cause]) -> Iterator[NextStep]:
    """Return what to collect next, where no cause is more than possible."""
    run = run_again(situation)
    case = situation.case
    if not case.events and not case.snapshots and not case.has_reports and case.trend is None:
        yield NextStep("how it ended: errors go to standard error, which a log has only with `2>&1`", run)
    if not situation.is_oom and situation.row is not None and situation.row.needs_pressure:
        yield NextStep("whether memory was full at that moment, which the message does not say", run)
    if not situation.is_oom or not situation.is_torch:
        return
    if any(cause.confidence is not Confidence.POSSIBLE and cause.id is not CauseId.UNKNOWN for cause in causes):
        return
    if situation.device == "cpu":
        yield NextStep("whether the kernel killed it, and what it held then", "dmesg -T | grep -i -A2 'out of memory'")
        return
    words = vocabulary(situation.device)
    if situation.facts.total_bytes is None or situation.facts.free_bytes is None:
        yield NextStep("whether other processes hold the device", words.status)
    if situation.device == "cuda" and situation.snapshot is None:
        what = "what fills the memory, line by line, at the moment it runs out"
        yield NextStep(what, run)
    if situation.trend is None and not situation.is_server:
        what = "whether memory grows from step to step"
        yield NextStep(what, f'print(step, "memory", {words.allocated} // 2**20, "MiB")')


_A_PAIR: Final = 2


def diagnose(sources: Sequence[Source], command: Sequence[str] = ()) -> DiagnosisResult:
    """Read all sources and say what happened.

    Args:
        sources: Files, or standard input.
        command: The command that was run, where that is known; else the one that a run's report names.

    Raises:
        UsageError: One cannot be read, or is a snapshot or a run's report and broken.
    """
    case = read_sources(sources)
    case = replace(case, command=tuple(command)) if command else case
    situation = Situation(case, primary_event(case.events))
    causes = find_causes(situation) if case.events or case.snapshots else ()
    # Two files that hold one device each; several devices of one file are no pair.
    are_a_pair = len(case.snapshots) == len({one.source for one in case.snapshots}) == _A_PAIR
    return DiagnosisResult(
        sources=case.sources,
        is_oom=situation.is_oom,
        device=situation.device if situation.is_oom else "none",
        facts=situation.facts,
        causes=causes,
        remedies=choose_remedies(situation, causes),
        notes=tuple(read_notes(situation)),
        next_steps=tuple(next_steps(situation, causes)),
        occurrences=occurrences(case.events),
        trend=case.trend,
        snapshots=case.snapshots,
        comparison=compare(*case.snapshots) if are_a_pair and not case.has_reports else None,
    )
