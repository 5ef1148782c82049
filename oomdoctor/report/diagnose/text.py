"""A diagnosis on the terminal, its snapshots included; and in one line a file, for logs in a loop."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rich.padding import Padding
from rich.text import Text

from oomdoctor.report.diagnose import memory, sentences
from oomdoctor.report.diagnose import memory as card
from oomdoctor.report.plain_text import CATEGORY_WORDS, clean, first_line, optional_size, sentence, share, shortened
from oomdoctor.report.terminal import aligned, answer, cells, pairs, printed, readable_width, section, table
from oomdoctor.results import Confidence
from oomdoctor.units import format_size

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.console import RenderableType
    from rich.table import Table

    from oomdoctor.output import Terminal
    from oomdoctor.report.diagnose.memory import DeviceMemoryParts, Use
    from oomdoctor.results import (
        DiagnosisDocument,
        DiagnosisResult,
        Remedy,
        SnapshotComparison,
        SnapshotSummary,
        SourceLine,
        TimelinePoint,
    )

_ROWS: Final = 8
_LONGEST: Final = 90
_LABEL: Final = len("1023.99 MiB") + 1
_BLOCKS: Final = " \u2581\u2582\u2583\u2584\u2585\u2586\u2587\u2588"
_ASCII_BLOCKS: Final = "    #####"
_MARKS: Final = ("\u25bc", "v")


def timeline(found: SnapshotSummary, width: int, *, unicode: bool) -> Text:
    """Return allocated memory as an area under a mark at its peak; `width` columns at most, labels included."""
    columns = allocated_by_column(found.timeline, min(_LONGEST, width - _LABEL))
    top = max(columns)
    levels = [8 * _ROWS * value // max(top, 1) for value in columns]
    blocks = _BLOCKS if unicode else _ASCII_BLOCKS
    lines = [_peak_line(columns, top, _MARKS[not unicode])]
    for row in reversed(range(_ROWS)):
        label = format_size(top) if row == _ROWS - 1 else "0" if row == 0 else ""
        area = "".join(blocks[min(8, max(0, level - 8 * row))] for level in levels)
        lines.append(Text.assemble((f"{label:>{_LABEL - 1}} ", "dim"), (area.rstrip(), "cyan")))
    lines.append(_axis(found, len(columns)))
    return Text("\n").join(lines)


def allocated_by_column(points: Sequence[TimelinePoint], most: int) -> list[int]:
    """Return the highest allocated bytes in each of at most `most` equal parts of the points."""
    number = min(most, len(points))
    ends = [(index * len(points) // number, (index + 1) * len(points) // number) for index in range(number)]
    return [max(sum(point.categories) for point in points[first:last]) for first, last in ends]


def _peak_line(columns: Sequence[int], top: int, mark: str) -> Text:
    at = columns.index(top)
    words = "the peak"
    left = _LABEL + at
    if len(words) < at:
        return Text(f"{' ' * (left - len(words) - 1)}{words} {mark}", "bold")
    return Text(f"{' ' * left}{mark} {words}", "bold")


def _axis(found: SnapshotSummary, width: int) -> Text:
    first, last = found.timeline[0], found.timeline[-1]
    seconds = "" if last.microseconds is None else f", {last.microseconds / 1e6:.2f} s"
    start, end = f"event {first.event}", f"{last.event}{seconds}"
    gap = max(1, width - len(start) - len(end))
    return Text(f"{' ' * _LABEL}{start}{' ' * gap}{end}", "dim")


_MOST_LINES: Final = 8
_LONGEST_NAME: Final = 120
_WIDTH_FOR_BAR: Final = 76
_WIDTH_FOR_MORE: Final = 100
_TEXT_SNAPSHOT_LONGEST_BAR: Final = 28
_BAR: Final = ("\u2588", "#")


def snapshot_parts(found: SnapshotSummary, width: int, *, unicode: bool) -> Iterator[RenderableType]:
    """Yield one snapshot's sections."""
    history = Text(sentence(sentences.history(found)), "dim")
    yield section(sentences.snapshot_title(found), history, pairs(sentences.totals(found)))
    if rows := memory.category_rows(found):
        yield section(f"Memory by category{_when(found)}", _categories(found, rows, width, unicode=unicode))
    if lines := memory.line_rows(found):
        yield section(f"Memory by line of code{_when(found)}", *_lines(found, lines, width))
    if found.largest:
        yield section("The largest live blocks", *_largest(found))
    if found.growing:
        yield section("Lines whose memory grew step after step", *_growing(found))
    yield section("Holes", Text(sentence(sentences.fragmentation(found.fragmentation))))
    if found.timeline:
        yield section("Memory over the history", timeline(found, width - 2, unicode=unicode))


def comparison_parts(found: SnapshotComparison) -> Iterator[RenderableType]:
    """Yield two snapshots side by side."""
    grid = table("at the peak", ">before", ">after", ">difference", sizes=("before", "after", "difference"))
    for row in memory.change_rows(found):
        _add_change(grid, Text(CATEGORY_WORDS[row.category]), row.before_bytes, row.after_bytes)
    _add_change(grid, Text("in all", "bold"), found.before_bytes, found.after_bytes)
    names = [("before", shortened(found.before, _LONGEST_NAME)), ("after", shortened(found.after, _LONGEST_NAME))]
    yield section("Two snapshots compared", pairs(names), grid)
    if found.lines:
        by_line = table("line", ">before", ">after", ">difference", sizes=("before", "after", "difference"))
        for line in found.lines[:_MOST_LINES]:
            _add_change(by_line, _place(line.place), line.before_bytes, line.after_bytes)
        yield section("Lines that differ", by_line, *_left_out(found.lines))


def _when(found: SnapshotSummary) -> str:
    return " at the peak" if found.has_history else ""


def _add_change(grid: Table, name: Text, before_bytes: int, after_bytes: int) -> None:
    grid.add_row(
        name,
        Text(format_size(before_bytes)),
        Text(format_size(after_bytes)),
        Text(sentences.difference(before_bytes, after_bytes), "bold"),
    )


def _categories(
    found: SnapshotSummary, rows: Sequence[memory.CategoryRow], width: int, *, unicode: bool
) -> RenderableType:
    later = ["at the end"] if memory.has_two_moments(found) else []
    whole = sum(row.peak_bytes for row in rows)
    has_bar = width >= _WIDTH_FOR_BAR
    grid = table("category", ">size", ">", *(f">{name}" for name in later), *([""] if has_bar else []), sizes=("size",))
    for row in rows:
        length, _ = cells([row.peak_bytes, whole - row.peak_bytes], _TEXT_SNAPSHOT_LONGEST_BAR)
        grid.add_row(
            Text(CATEGORY_WORDS[row.category]),
            Text(format_size(row.peak_bytes)),
            Text(share(row.peak_bytes, whole)),
            *(Text(format_size(row.end_bytes), "dim") for _ in later),
            *([Text(_BAR[not unicode] * length, "cyan")] if has_bar else []),
        )
    return grid


def _lines(found: SnapshotSummary, rows: Sequence[memory.LineRow], width: int) -> Iterator[RenderableType]:
    later = ["at the end"] if memory.has_two_moments(found) and width >= _WIDTH_FOR_MORE else []
    blocks = ["blocks"] if width >= _WIDTH_FOR_MORE else []
    grid = table(">size", *(f">{name}" for name in later + blocks), "category", "line", sizes=("size", "at the end"))
    for row in rows[:_MOST_LINES]:
        grid.add_row(
            Text(optional_size(row.peak_bytes)),
            *(Text(optional_size(row.end_bytes), "dim") for _ in later),
            *(Text(str(row.blocks), "dim") for _ in blocks),
            Text(CATEGORY_WORDS[row.category]),
            _place(row.place),
        )
    yield grid
    yield from _left_out(rows)


def _largest(found: SnapshotSummary) -> Iterator[RenderableType]:
    grid = table(">size", "category", "line", sizes=("size",))
    for block in found.largest[:_MOST_LINES]:
        place = _place(block.place)
        if block.innermost:
            place.append(f"\n{shortened(block.innermost, _LONGEST_NAME)}", "dim")
        grid.add_row(Text(sentences.blocks(block)), Text(CATEGORY_WORDS[block.category]), place)
    yield grid
    yield from _left_out(found.largest)


def _growing(found: SnapshotSummary) -> Iterator[RenderableType]:
    grid = table("category", "line")
    for line in found.growing[:_MOST_LINES]:
        place = _place(line.place)
        place.append(f"\n{sentences.growth(line)}", "bold")
        grid.add_row(Text(CATEGORY_WORDS[line.category]), place)
    yield grid
    yield from _left_out(found.growing)


def _place(line: SourceLine | None) -> Text:
    text = Text(shortened(sentences.place(line), _LONGEST_NAME))
    if code := sentences.code(line):
        text.append(f"\n{shortened(code, _LONGEST_NAME)}", "dim")
    return text


def _left_out(rows: Sequence[object]) -> Iterator[RenderableType]:
    if len(rows) > _MOST_LINES:
        yield Text(f"and {len(rows) - _MOST_LINES} more; `--json` and `--html` have them", "dim")


_LONGEST_BAR: Final = 72
_CONFIDENCE_STYLES: Final = {Confidence.CERTAIN: "bold red", Confidence.LIKELY: "bold yellow", Confidence.POSSIBLE: ""}
_CHARACTERS: Final[dict[Use, tuple[str, str]]] = {
    "allocated": ("\u2588", "#"),
    "unallocated": ("\u2593", "="),
    "outside": ("\u2592", "+"),
    "others": ("\u2591", "x"),
    "untold": ("\u254c", "?"),
    "free": ("\u00b7", "."),
}
_STYLES: Final[dict[Use, str]] = {
    "allocated": "cyan",
    "unallocated": "magenta",
    "outside": "blue",
    "others": "yellow",
    "untold": "dim",
    "free": "dim",
}


def render(document: DiagnosisDocument, terminal: Terminal) -> str:
    """Render a diagnosis for a terminal: lines, each with a newline."""
    width = readable_width(terminal)
    return printed(_parts(document, width, unicode=terminal.unicode), terminal)


def _parts(document: DiagnosisDocument, width: int, *, unicode: bool) -> Iterator[RenderableType]:
    result = document.result
    yield _answer(document, unicode=unicode)
    yield from _error(result)
    yield from _causes(result)
    yield from _remedies(result)
    yield from _numbers(result, width, unicode=unicode)
    if result.trend is not None:
        yield section("Memory over steps", Text(sentence(sentences.trend(result.trend))))
    for found in result.snapshots:
        yield from snapshot_parts(found, width, unicode=unicode)
    if result.comparison is not None:
        yield from comparison_parts(result.comparison)
    if result.notes:
        yield section("Good to know", *(Text(sentence(note)) for note in result.notes))
    yield from _next_steps(result)
    yield from _other_errors(result)
    yield _origin(document)


def _answer(document: DiagnosisDocument, *, unicode: bool) -> RenderableType:
    style = {"oom": "bold red", "not_oom": "bold yellow", "nothing_found": "bold"}[document.status]
    lines = [Text(sentences.headline(document), style)]
    if (summary := sentences.summary(document.result)) is not None:
        lines.append(Text(summary))
    return answer(lines, style, unicode=unicode)


def _error(result: DiagnosisResult) -> Iterator[RenderableType]:
    line = result.facts.user_line
    if line is not None:
        code = [Text(text, "bold") for text in [sentences.code(line)] if text]
        yield section(f"Your line, {sentences.place(line)}", *code)
    if result.occurrences:
        first = result.occurrences[0]
        if message := first_line(first.message):
            yield section(f"The error, {sentences.origin(first)}", Text(message))


# --- why and what to do ----------------------------------------------------------------------------------------------


def _causes(result: DiagnosisResult) -> Iterator[RenderableType]:
    if not result.causes:
        return
    grid = aligned(1)
    for cause in result.causes:
        title = Text(sentences.CAUSE_WORDS[cause.id], "bold")
        grid.add_row(
            Text(sentences.confidence(cause), _CONFIDENCE_STYLES[cause.confidence]),
            Text("\n").join([title, Text(sentence(cause.evidence))]),
        )
    yield section("Why", grid)


def _remedies(result: DiagnosisResult) -> Iterator[RenderableType]:
    if not result.remedies:
        return
    grid = aligned(1)
    for number, remedy in enumerate(result.remedies, start=1):
        grid.add_row(Text(f"{number}.", "dim"), Text("\n").join(_remedy(remedy)))
    yield section("What to change", grid)


def _remedy(remedy: Remedy) -> list[Text]:
    how = clean(remedy.how or "")
    effect = [sentences.frees(remedy), f"costs: {clean(remedy.cost)}" if clean(remedy.cost) else ""]
    lines = [
        Text(sentence(remedy.change)),
        Text(how, "bold cyan"),
        Text("; ".join(filter(None, effect)), "dim"),
    ]
    return [line for line in lines if line]


def _next_steps(result: DiagnosisResult) -> Iterator[RenderableType]:
    if not result.next_steps:
        return
    lines: list[Text] = []
    for step in result.next_steps:
        lines += [Text(sentence(step.what)), Text(f"$ {clean(step.command)}", "bold cyan")]
    yield section("To learn more", *lines)


# --- the numbers -----------------------------------------------------------------------------------------------------


def _numbers(result: DiagnosisResult, width: int, *, unicode: bool) -> Iterator[RenderableType]:
    memory = card.device_memory(result.facts)
    if memory.parts:
        yield section(memory.title, *_memory(memory, width, unicode=unicode))
    if rows := card.other_numbers(result.facts):
        yield section("Also in the error" if memory.parts else "What the error tells", pairs(rows))


def _memory(memory: DeviceMemoryParts, width: int, *, unicode: bool) -> Iterator[RenderableType]:
    sizes = [part.size_bytes for part in memory.parts]
    characters = {use: both[not unicode] for use, both in _CHARACTERS.items()}
    bar = Text()
    for part, length in zip(memory.parts, cells(sizes, min(_LONGEST_BAR, width - 2)), strict=True):
        bar.append(characters[part.use] * length, _STYLES[part.use])
    yield bar
    grid = table("", "", ">", ">", sizes=())
    grid.show_header = False
    for part in memory.parts:
        grid.add_row(
            Text(characters[part.use], _STYLES[part.use]),
            Text(part.name),
            Text(format_size(part.size_bytes)),
            Text(share(part.size_bytes, memory.total_bytes)),
        )
    yield grid


# --- where it comes from ---------------------------------------------------------------------------------------------


def _other_errors(result: DiagnosisResult) -> Iterator[RenderableType]:
    if len(result.occurrences) < 2:  # noqa: PLR2004 - the first is shown above
        return
    parts: list[RenderableType] = []
    for found in result.occurrences[1:]:
        # The message of another rank's OOM says again what its numbers say.
        message = [] if found.is_oom else [Text(first_line(found.message), "dim")]
        what = Text("\n").join([Text(sentences.occurrence(found)), *message])
        parts += [Text(sentences.origin(found)), Padding(what, (0, 0, 0, 2))]
    yield section("Other errors", *parts)


def _origin(document: DiagnosisDocument) -> RenderableType:
    versions = ", ".join(f"{clean(name)} {clean(version)}" for name, version in document.versions.items())
    lines = [f"read {sentences.sources(document.result)}" if document.result.sources else "", versions]
    return Text("\n".join(filter(None, lines)), "dim")


def line(document: DiagnosisDocument) -> str:
    """Return a diagnosis in one line, such as `a.log: GPU 0 ran out of memory in backward: fragmentation (likely)`."""
    result = document.result
    parts = [f"{clean(sentences.sources(result))}: {sentences.headline(document)}"]
    if result.is_oom and result.causes:
        parts[0] += f": {sentences.CAUSE_WORDS[result.causes[0].id]} ({result.causes[0].confidence})"
    elif result.causes:
        parts.append(clean(result.causes[0].evidence))
    if result.is_oom and (numbers := sentences.summary(result)) is not None:
        parts.append(numbers)
    return "; ".join(parts)
