"""The report of a frontier: a row for each combination of sizes, in every format; in plain text a grid and bars too."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from oomdoctor.report import buckets, gpus
from oomdoctor.report.inference import evaluation_limit, mode_words
from oomdoctor.report.issues import Case, Group, Issue, IssueKind, Issues, Location, repository_path, target_file
from oomdoctor.report.plain_text import capitalised, clean, count, sentence, visible
from oomdoctor.units import format_size

if TYPE_CHECKING:
    from collections.abc import Iterator

    from oomdoctor.output import Terminal
    from oomdoctor.results import Axis, FrontierCell, FrontierDocument, FrontierResult

_LIMITS: Final = {
    "memory": "memory",
    "target": "nothing above was asked for",
    "limit": "a limit that is not memory",
    "model": "the model alone does not fit",
    "unknown": "no answer",
}


def text(document: FrontierDocument, terminal: Terminal) -> str:
    """Render a frontier for a terminal, with a newline at its end."""
    result = document.result
    rows = [_row(result, cell) for cell in result.cells]
    columns = [
        gpus.Column(heading, [row[place] for row in rows], right=place < len(rows[0]) - 1)
        for place, heading in enumerate(_columns(result))
    ]
    answer = [sentence(headline(result)), *map(sentence, warnings(result))]
    pasted = [] if result.buckets is None else [*buckets.lines(result.buckets), ""]
    bars = _bar_lines(result, terminal.width, unicode=terminal.unicode)
    shapes = [*_grid_lines(result, terminal), *bars, *([""] if bars else [])]
    lines = [*gpus.table(columns, terminal), "", *shapes, *answer, "", *pasted, *map(sentence, legend(result))]
    return "\n".join([*map(visible, lines), ""])


# A comment on GitHub holds 65,536 characters; each part has its share of them.
_ROOM_FOR_TABLE: Final = 30_000
_ROOM_FOR_WARNINGS: Final = 10_000
_ROOM_FOR_GRID: Final = 8_000
_WIDTH_OF_BARS: Final = 80
_LONGEST_CELL: Final = 300


def markdown(document: FrontierDocument) -> str:
    """Render a frontier as GitHub-flavoured Markdown, with a newline at its end."""
    return "\n\n".join(_blocks(document)) + "\n"


def _blocks(document: FrontierDocument) -> Iterator[str]:
    from oomdoctor.report.markdown import code, code_block, fitting, prose, table, warning_block

    result = document.result
    yield f"### {prose(capitalised(_cut(headline(result))))}"
    told = list(warnings(result))
    yield from warning_block((prose(sentence(_cut(text))) for text in told), len(told), _ROOM_FOR_WARNINGS)
    rows = list(fitting((tuple(map(_cut, _row(result, cell))) for cell in result.cells), _ROOM_FOR_TABLE))
    yield table([prose(_cut(heading)) for heading in _columns(result)], rows)
    if more := len(result.cells) - len(rows):
        yield f"... and {more} more."
    if (grid := _grid(result)) is not None:
        yield prose(sentence(_cut(_grid_title(result))))
        yield table([prose(_cut(heading)) for heading in grid[0]], fitting(grid[1], _ROOM_FOR_GRID))
    if bars := _bar_lines(result, _WIDTH_OF_BARS, unicode=True):
        yield code_block("\n".join(bars))
    if result.buckets is not None:
        yield code_block("\n".join(buckets.lines(result.buckets)))
    yield "\n".join(f"- {prose(sentence(_cut(text)))}" for text in legend(result))
    yield ", ".join(code(_cut(f"{name} {version}")) for name, version in document.versions.items())


def _cut(text: str) -> str:
    return visible(text, _LONGEST_CELL)


def html(document: FrontierDocument) -> str:
    """Render a frontier as one self-contained HTML page: its chart, its table, and a grid of two sizes."""
    from oomdoctor.report.charts.frontier import chart
    from oomdoctor.report.html import render_page

    result = document.result
    most = max((cell.maximum for cell in result.cells), default=0) or 1
    values = {
        "document": document,
        "headline": headline(result),
        "warnings": list(warnings(result)),
        "columns": _columns(result),
        "rows": [(_row(result, cell), cell.maximum, round(120 * cell.maximum / most, 1)) for cell in result.cells],
        "chart": chart(result),
        "grid": _grid(result),
        "grid_title": _grid_title(result),
        "pasted": [] if result.buckets is None else buckets.lines(result.buckets),
        "legend": [*legend(result), *(f"{reason.subject}: {reason.text}" for reason in result.reasons)],
    }
    return render_page("frontier.html", values)


# --- issues ----------------------------------------------------------------------------------------------------------

_TITLE: Final = "oomdoctor probe"
_NOTHING_FITS: Final = IssueKind(
    "sizes-do-not-fit", "Nothing fits at these sizes", "Make the sizes smaller, or name a larger card.", "error"
)
_FITS: Final = IssueKind("sizes-fit", "What fits at each of the sizes", "Train with the sizes of the result.", "note")


def issues(document: FrontierDocument) -> Issues:
    """Return a cell's answer each, and a warning for each thing to know before relying on them."""
    result = document.result
    path = target_file(result.target)
    found = [_issue(result, cell) for cell in result.cells]
    told = [Issue("warning", _TITLE, (sentence(text),), Location(path)) for text in warnings(result)]
    about = {"status": document.status, "precision": result.precision, **document.versions}
    return Issues(
        headline=sentence(headline(result)),
        groups=[Group(result.target, [*found, *told], about)],
        rules=[rule for rule in (_NOTHING_FITS, _FITS) if any(issue.rule == rule.id for issue in found)],
        properties={"cells": len(result.cells), "capacity_bytes": result.capacity_bytes},
    )


def _issue(result: FrontierResult, cell: FrontierCell) -> Issue:
    rule = _FITS if cell.maximum else _NOTHING_FITS
    path, name, text = target_file(result.target), _named(cell), sentence(_answer(result, cell))
    return Issue(
        level=rule.level,
        title=f"{_TITLE} {result.target}",
        lines=(text, f"limited by {_LIMITS[cell.limited_by]}"),
        location=Location(path, name=result.target),
        subject=name,
        rule=rule.id,
        identity=("" if path is None else repository_path(path), result.target, name),
        case=Case(name=name, group=result.target, kind=cell.limited_by, message=text, body=text),
    )


# --- sentences -------------------------------------------------------------------------------------------------------


def headline(result: FrontierResult) -> str:
    """Return the answer in one line, without a full stop."""
    if len(result.cells) == 1:
        return _answer(result, result.cells[0])
    fitting = sum(cell.maximum > 0 for cell in result.cells)
    of = f"{fitting} of {count(len(result.cells), 'combination')} of sizes"
    return f"`{result.target}` fits {result.device.name} at {of}"


def _answer(result: FrontierResult, cell: FrontierCell) -> str:
    at = f" at {_named(cell)}" if cell.sizes else ""
    searched = result.searched_size
    beside = "" if searched is None else f" at micro-batch {searched.micro_batch}"
    if cell.problem is not None:
        return f"there is no answer{at}: {cell.problem}"
    what = "micro-batch" if searched is None else f"`{searched.name}`"
    if not cell.maximum:
        return f"no {what} fits{beside}{at}"
    return f"{what} {cell.maximum} is the largest that fits{beside}{at}, and {cell.recommended} is recommended"


def _named(cell: FrontierCell) -> str:
    return ", ".join(map(_size, cell.sizes)) or "as it is"


def _size(axis: Axis) -> str:
    return f"{axis.name} {axis.size}"


def _columns(result: FrontierResult) -> list[str]:
    searched = result.searched_size
    what = "micro-batch" if searched is None else searched.name
    sizes = [*result.axes, *([] if searched is None else [searched.name])]
    together = [" x ".join(["samples", *sizes])] if sizes else []
    steps = ["steps"] if result.target_batch is not None and searched is None else []
    return [*result.axes, f"largest {what}", "recommended", *steps, *together, "limited by"]


def _row(result: FrontierResult, cell: FrontierCell) -> tuple[str, ...]:
    """Return a cell's texts, one for each of the columns."""
    maximum, recommended = (str(size) if size else "-" for size in (cell.maximum, cell.recommended))
    has_steps = result.target_batch is not None and result.searched_size is None
    steps = [str(cell.accumulation.steps) if cell.accumulation else "-"] if has_steps else []
    together = [f"{cell.elements:,}" if cell.elements else "-"] if result.axes or result.searched_size else []
    limit = _LIMITS[cell.limited_by]
    return (*(str(axis.size) for axis in cell.sizes), maximum, recommended, *steps, *together, limit)


def legend(result: FrontierResult) -> Iterator[str]:
    """Yield what was asked about and where, a sentence each."""
    batch = "plain steps" if result.target_batch is None else f"a target batch of {result.target_batch}"
    devices = "" if result.world_size == 1 else f" on {result.world_size} devices"
    trained = [] if result.mode != "train" else [result.optimizer, f"{batch}{devices}"]
    varied = [*result.axes, *([result.searched_size.name] if result.searched_size else [])]
    # Documents that were written before they had a variant have a mode.
    asked = ["evaluation"] if result.mode == "eval" else []
    sizes = () if result.variant is None else result.variant.axes
    done = asked if result.variant is None else list(mode_words(result.variant, varied))
    yield ", ".join([result.target, *map(_size, sizes), result.precision, *trained, *done])
    yield f"{result.device.name}, {format_size(result.capacity_bytes)} for PyTorch"
    if result.searched_size is not None and result.searched_size.multiple_of > 1:
        yield f"`{result.searched_size.name}` was searched in multiples of {result.searched_size.multiple_of}"
    yield f"recommended: the largest that was run and leaves {result.headroom:.0%} of the capacity free"
    if result.buckets is not None:
        yield from buckets.sentences(result.buckets, result.mode)
    trials = sum(cell.trials for cell in result.cells)
    yield f"{count(trials, 'trial')}; every size that is shown was run"


def warnings(result: FrontierResult) -> Iterator[str]:
    """Yield what the reader should know before relying on the answer, once where it holds for several cells."""
    yield from result.notes
    cells_of: dict[str, list[FrontierCell]] = {}
    for cell in result.cells:
        limit = [] if cell.evaluation is None else evaluation_limit(cell.evaluation)
        for note in (*cell.notes, *limit, *([cell.problem] if cell.problem else [])):
            cells_of.setdefault(note, []).append(cell)
    for note, cells in cells_of.items():
        everywhere = len(cells) == len(result.cells)
        yield note if everywhere else f"{'; '.join(map(_named, cells))}: {note}"


_UNICODE_BAR, _ASCII_BAR = ("\u2588", "\u2592"), ("#", "=")
_SHORTEST_BAR, _LONGEST_BAR, _MOST_BARS = 10, 50, 60
_LONGEST_NAME: Final = 40


# --- grid and bars ---------------------------------------------------------------------------------------------------


def _counted(result: FrontierResult) -> str:
    """Return what the cells count: micro-batches, or the size that is searched."""
    return "micro-batch" if result.searched_size is None else result.searched_size.name


def _grid(result: FrontierResult) -> tuple[list[str], list[tuple[str, ...]]] | None:
    """Return headings and rows of a table of two sizes, a row for each value of the first and a column for the other.

    None where the cells do not differ by two sizes.
    """
    if len(result.axes) != 2 or any(len(cell.sizes) != 2 for cell in result.cells):  # noqa: PLR2004 - rows and columns
        return None
    found = {(cell.sizes[0].size, cell.sizes[1].size): cell for cell in result.cells}
    first, second = (list(dict.fromkeys(sizes[place] for sizes in found)) for place in (0, 1))
    headings = [result.axes[0], *(f"{result.axes[1]} {size}" for size in second)]
    rows = [(str(size), *(_both(found.get((size, other))) for other in second)) for size in first]
    return (headings, rows) if len(first) > 1 and len(second) > 1 else None


def _both(cell: FrontierCell | None) -> str:
    """Return what fits, and in brackets what is recommended."""
    if cell is None or cell.problem is not None:
        return "no answer"
    return f"{cell.maximum} ({cell.recommended or '-'})" if cell.maximum else "-"


def _grid_title(result: FrontierResult) -> str:
    """Return what stands in the grid."""
    return f"largest {_counted(result)}, and in brackets the recommended one"


def _grid_lines(result: FrontierResult, terminal: Terminal) -> list[str]:
    """Return the grid for a terminal, an empty line behind it; nothing where there is none."""
    if (found := _grid(result)) is None:
        return []
    headings, rows = found
    columns = [gpus.Column(heading, [row[place] for row in rows], right=True) for place, heading in enumerate(headings)]
    return [f"{_grid_title(result)}:", *gpus.table(columns, terminal), ""]


def _bar_lines(result: FrontierResult, width: int, *, unicode: bool) -> list[str]:
    """Return a line for each cell, as long as what fits there; nothing where two cells have no answer above nothing.

    Args:
        result: The frontier.
        width: Columns that a line may have.
        unicode: Whether the output takes characters beyond ASCII.
    """
    cells = [cell for cell in result.cells if cell.problem is None]
    most = max((cell.maximum for cell in cells), default=0)
    if sum(cell.maximum > 0 for cell in cells) <= 1:
        return []
    names = [clean(", ".join(str(axis.size) for axis in cell.sizes))[:_LONGEST_NAME] for cell in cells]
    heading = clean(", ".join(result.axes))[:_LONGEST_NAME]
    beside = max(map(len, (heading, *names)))
    length = min(_LONGEST_BAR, width - beside - len(f"    {most}"))
    full, rest = _UNICODE_BAR if unicode else _ASCII_BAR
    if length < _SHORTEST_BAR:
        return []
    shown = list(zip(names, cells, strict=True))[:_MOST_BARS]
    lines = [f"{heading.rjust(beside)}  {_counted(result)}: {full} recommended {rest} largest"]
    lines += [f"{name.rjust(beside)}  {_bar(cell, most, length, full, rest)}  {cell.maximum}" for name, cell in shown]
    return [*lines, *([f"... and {len(cells) - len(shown)} more"] if len(cells) > len(shown) else [])]


def _bar(cell: FrontierCell, most: int, length: int, full: str, rest: str) -> str:
    largest = max(0, cell.maximum) * length // most
    recommended = min(largest, max(0, cell.recommended) * length // most)
    return full * recommended + rest * (largest - recommended)
