"""Output of the plugin: a test over its limit, the lines that hold its memory, the table of peaks."""

from __future__ import annotations

import linecache
import os
import sys
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from oomdoctor.diagnose.snapshot.categories import label_block
from oomdoctor.diagnose.snapshot.history import OLDER, replay
from oomdoctor.diagnose.snapshot.layout import read_layout
from oomdoctor.diagnose.snapshot.origins import read_stack
from oomdoctor.pytest_plugin.protocol import DEVICE, LIMIT, PEAK
from oomdoctor.report.plain_text import visible
from oomdoctor.units import format_size

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    import pytest

    from oomdoctor.pytest_plugin.measurement import Reading
    from oomdoctor.results import SourceLine


MOST_LINES: Final = 5
"""Lines that are named."""


@dataclass(frozen=True, slots=True)
class Held:
    """Memory that one line of code had allocated.

    Attributes:
        place: The innermost line of the user's; None where there is none in the stack.
        otherwise: What to call it then: the innermost frame, or why there is none.
        size_bytes: Bytes in its blocks.
        blocks: How many.
    """

    place: SourceLine | None
    otherwise: str
    size_bytes: int
    blocks: int


def held_lines(snapshot: dict[str, Any], device: int) -> tuple[Held, ...]:
    """Return every line that had memory at the moment that counts, the one with most first.

    Args:
        snapshot: As `torch.cuda.memory._snapshot` gives it.
        device: Index of the GPU.
    """
    raw = read_layout(snapshot, "the test's memory", sys.maxsize)
    found = next((each for each in raw.devices if each.index == device), None)
    if found is None:
        return ()
    history = replay(found)
    moment = history.peak if history.failure is None else history.moment
    blocks = label_block(history, [read_stack(stack) for stack in raw.stacks], None)
    live = [block for block in blocks if history.is_live(block.lifetime, moment)]
    sizes: defaultdict[tuple[SourceLine | None, str], list[int]] = defaultdict(list)
    for block in live:
        without = "before the test, line unknown" if block.lifetime.born == OLDER else "outside of Python"
        sizes[block.place, "" if block.place else block.innermost or without].append(block.lifetime.size)
    lines = [Held(place, otherwise, sum(of), len(of)) for (place, otherwise), of in sizes.items()]
    lines.sort(key=lambda line: (line.place.path, line.place.line) if line.place else (line.otherwise, 0))
    return tuple(sorted(lines, key=lambda line: -line.size_bytes))


_LONGEST_CODE = 100


def over_limit(reading: Reading, limit_bytes: int) -> str:
    """Return the first line of a failure, which pytest's summary shows too."""
    over = reading.peak_bytes - limit_bytes
    tenths = (2000 * over + limit_bytes) // (2 * limit_bytes)
    percent = f"{tenths // 10}.{tenths % 10} %" if tenths < 1000 else f"{tenths // 10} %"  # noqa: PLR2004 - 100 %
    return (
        f"the peak of {format_size(reading.peak_bytes)} is {format_size(over)} ({percent}) "
        f"over the limit of {format_size(limit_bytes)}"
    )


def explanation(reading: Reading, lines: Sequence[Held] | None, root: Path) -> str:
    """Return the lines below the first: the GPU, the memory held before the test, and the lines that held the most.

    Args:
        reading: What was measured.
        lines: Who held memory at the peak, or when memory ran out; None where that was not recorded.
        root: Folder that paths are shown from where they lie below it.
    """
    where = [f"on {visible(reading.name)}, of which PyTorch may take {format_size(reading.capacity_bytes)}"]
    if reading.start_bytes:
        where.append(f"{format_size(reading.start_bytes)} of it was allocated before the test's setup began")
    if reading.workspace_bytes:
        where.append(
            f"the peak may hold cuDNN's workspaces, the largest of {format_size(reading.workspace_bytes)}: "
            "where memory is short PyTorch does with smaller ones"
        )
    if lines is None:
        where.append(
            "which lines allocated it was not recorded: CUDA was not in use when the test began; mark the test"
        )
        return "\n".join(where)
    moment = "when memory ran out" if reading.ooms else "at the peak"
    return "\n".join([*where, "", f"allocated {moment}, by line:", *_table(lines, reading, root)])


def ran_out(reading: Reading, limit_bytes: int | None) -> str:
    """Return the first line where PyTorch's allocator ran out of memory."""
    times = "" if reading.ooms == 1 else f" {reading.ooms} times"
    limit = "" if limit_bytes is None else f"; the limit is {format_size(limit_bytes)}"
    return (
        f"PyTorch ran out of GPU memory{times}; the most it had allocated is {format_size(reading.peak_bytes)}{limit}"
    )


def null_gpu_notes(reading: Reading) -> str:
    """Return how the null GPU may have caused a failure; empty where it cannot have."""
    notes = []
    if reading.reads:
        times = "once" if reading.reads == 1 else f"{reading.reads} times"
        notes.append(
            f"a null GPU has memory and does no arithmetic: the test read back from it {times} and got zeros.\n"
            "check values in a test of its own, without `gpu=`, on a real GPU or on the CPU"
        )
    if reading.unknown_calls:
        notes.append("the null GPU does not serve: " + ", ".join(map(visible, reading.unknown_calls[:MOST_LINES])))
    return "\n".join(notes)


def _table(lines: Sequence[Held], reading: Reading, root: Path) -> Iterator[str]:
    shown, rest = lines[:MOST_LINES], lines[MOST_LINES:]
    rows = [(line.size_bytes, line.blocks, _place(line, root)) for line in shown]
    if rest:
        others = f"{len(rest)} other line{'' if len(rest) == 1 else 's'}"
        rows.append((sum(line.size_bytes for line in rest), sum(line.blocks for line in rest), others))
    total = sum(size for size, _, _ in rows)
    if not reading.ooms and total != reading.peak_bytes:
        rows.append((reading.peak_bytes - total, 0, "not in the history"))
    for size, blocks, place in rows:
        count = f"{blocks} block{'' if blocks == 1 else 's'}" if blocks else ""
        yield f"  {format_size(size):>11}  {count:>10}  {place}"
    if not lines:
        yield "  nothing"


def _place(line: Held, root: Path) -> str:
    if line.place is None:
        return visible(line.otherwise)
    path, number = line.place.path, line.place.line
    below = os.path.relpath(path, root)
    shown = path if below.startswith(os.pardir) else below
    function = f" in {line.place.function}" if line.place.function else ""
    code = linecache.getline(path, number).strip()
    return visible(f"{shown}:{number}{function}") + (f"    {visible(code, _LONGEST_CODE)}" if code else "")


def summarise(terminal: pytest.TerminalReporter) -> None:
    """List each test that was measured, the one with the highest peak first."""
    reports = (report for reports in terminal.stats.values() for report in reports)
    measured = {
        report.nodeid: values
        for report in reports
        if getattr(report, "when", None) == "call"
        and PEAK in (values := dict(getattr(report, "user_properties", None) or ()))
    }
    rows = sorted(measured.items(), key=lambda row: (-row[1][PEAK], row[0]))
    terminal.write_sep("=", "GPU memory")
    if not rows:
        terminal.write_line("no test was measured: mark one with `@pytest.mark.gpu_memory`")
        return
    terminal.write_line(f"{'peak':>11}  {'limit':>11}  {'share':>6}  test")
    for nodeid, values in rows:
        peak, limit = values[PEAK], values[LIMIT]
        share = f"{100 * peak // max(limit, 1)} %"
        terminal.write_line(
            f"{format_size(peak):>11}  {format_size(limit):>11}  {share:>6}  {visible(nodeid)}"
            f"  on {visible(values[DEVICE])}"
        )
