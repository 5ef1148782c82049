"""The report of `oomdoctor check` in every format: entries, broken limits, figures that moved.

The words that the formats share are in `oomdoctor.report.verdicts`. Colour on the terminal only repeats them.
"""

from __future__ import annotations

from pathlib import PurePath
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from rich.cells import cell_len
from rich.padding import Padding
from rich.text import Text

from oomdoctor.report import buckets, frontier
from oomdoctor.report import verdicts as words
from oomdoctor.report.issues import Case, Group, Issue, IssueKind, Issues, Location, repository_path, target_file
from oomdoctor.report.markdown import code, code_lines, fitting, folded, prose, table, warning_block
from oomdoctor.report.plain_text import CATEGORY_WORDS, capitalised, sentence, visible
from oomdoctor.report.terminal import aligned, printed
from oomdoctor.results import FigureKind, LimitName, Verdict
from oomdoctor.units import format_signed_size

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from rich.console import RenderableType

    from oomdoctor.output import Terminal
    from oomdoctor.results import CheckDocument, CheckedEntry, CheckResult, Limit, Movement, Problem

_MOST_BEYOND: Final = 12
_MOST_WITHIN: Final = 8
_FEWEST: Final = 3  # beside figures that fail, others are worth little
_MOST_DETAILS: Final = 30
_WIDEST_CELL: Final = 32
_HEADINGS: Final = ("verdict", "entry", "card", "micro-batch", "steps")
_NUMBERS: Final = ("micro-batch", "steps")
_GAP: Final = "  "
_INDENT: Final = 4
_STYLES: Final[Mapping[Verdict, str]] = MappingProxyType(
    {
        Verdict.PASSED: "green",
        Verdict.FAILED: "bold red",
        Verdict.ERROR: "bold red",
        Verdict.NO_ANSWER: "bold yellow",
    }
)


def text(document: CheckDocument, terminal: Terminal) -> str:
    """Render a check's document for a terminal: lines, each with a newline."""
    return printed(_parts(document), terminal)


def _parts(document: CheckDocument) -> Iterator[RenderableType]:
    result = document.result
    entries = words.ordered(result)
    if entries:
        yield from _text_table(entries)
        yield Text()
    yield Text(sentence(words.headline(result)), _STYLES[Verdict(document.status)])
    if (written := words.updated(result)) is not None:
        yield Text(sentence(written))
    hints = aligned(1)
    for advice in words.advice(result):
        hints.add_row(Text("hint:", "bold cyan"), Text(advice))
    yield from [hints] if hints.row_count else []


def _text_table(entries: Sequence[CheckedEntry]) -> Iterator[RenderableType]:
    about = [(words.name(each), words.card(each), words.largest(each), words.steps(each)) for each in entries]
    rows = [(words.VERDICT_WORDS[each.verdict], *cells) for each, cells in zip(entries, about, strict=True)]
    widths = [min(max(map(cell_len, column)), _WIDEST_CELL) for column in zip(_HEADINGS, *rows, strict=True)]
    yield Text(_text_row(_HEADINGS, widths), "dim")
    for entry, row in zip(entries, rows, strict=True):
        line = Text(_text_row(row, widths))
        line.stylize(_STYLES[entry.verdict], 0, len(row[0]))
        yield line
        yield from _below(entry)


def _text_row(cells: Iterable[str], widths: Iterable[int]) -> str:
    padded = []
    for heading, cell, width in zip(_HEADINGS, cells, widths, strict=True):
        space = " " * (width - cell_len(cell))
        padded.append(f"{space}{cell}" if heading in _NUMBERS else f"{cell}{space}")
    return _GAP.join(padded).rstrip()


def _below(entry: CheckedEntry) -> Iterator[RenderableType]:
    """Yield the parts below an entry's line; none for one that passed and did not change."""
    if entry.problem is not None:
        yield from _text_problem(entry.problem)
    # The baseline comes last of those that broke, so that what moved stands below it.
    for limit in sorted(words.broken(entry), key=lambda limit: limit.name is LimitName.BASELINE):
        yield _indented(Text.assemble((limit.name.value, "bold red"), f": {visible(limit.text)}"))
    beyond = words.beyond(entry)
    yield from _text_moved(words.beyond_title(entry), beyond, _MOST_BEYOND)
    yield from _text_moved(words.within_title(entry), words.within(entry), _FEWEST if beyond else _MOST_WITHIN)
    for text in words.warnings(entry):
        yield _indented(Text.assemble(("warning", "bold yellow"), f": {visible(text)}"))
    if (reason := words.asked_anew(entry)) is not None:
        yield _indented(Text(reason, "dim"))


def _text_problem(problem: Problem) -> Iterator[RenderableType]:
    yield from (_indented(Text(line, "bold")) for line in _visible_lines(problem.message))
    if problem.details:
        lines = _visible_lines(problem.details)
        # Of a traceback the end says the most.
        if len(lines) > _MOST_DETAILS:
            yield _indented(Text(f"({len(lines) - _MOST_DETAILS} lines before these)", "dim"))
        yield from (_indented(Text(f"| {line}", "dim")) for line in lines[-_MOST_DETAILS:])
    if problem.hint:
        first, *rest = _visible_lines(problem.hint)
        yield _indented(Text.assemble(("hint: ", "bold cyan"), first))
        yield from (_indented(Text(line)) for line in rest)


def _text_moved(title: str, movements: Sequence[Movement], most: int) -> Iterator[RenderableType]:
    if not movements:
        return
    if title:
        yield _indented(Text(f"{title}:", "dim"))
    shown, more = words.first(movements, most)
    for movement in shown:
        yield _indented(Text(visible(movement.text), "bold" if movement.is_beyond else ""), 2 * _INDENT - 2)
    if more:
        yield _indented(Text(more, "dim"), 2 * _INDENT - 2)


def _visible_lines(text: str) -> list[str]:
    return [visible(line) for line in text.splitlines()] or [""]


def _indented(text: Text, by: int = _INDENT) -> RenderableType:
    return Padding(text, (0, 0, 0, by))


# --- Markdown ---------------------------------------------------------------------------------------------------------

# A comment on GitHub holds 65,536 characters, and nobody reads on; each part has its share of them.
_ROOM_FOR_TABLE: Final = 15_000
_ROOM_FOR_SECTIONS: Final = 25_000
_ROOM_FOR_MOVED: Final = 8_000
_ROOM_FOR_WARNINGS: Final = 5_000
_MOST_IN_TABLE: Final = 20
_MOST_LINES: Final = 20
_LONGEST_CELL: Final = 300


def markdown(document: CheckDocument) -> str:
    """Render what a check found as GitHub-flavoured Markdown, with a newline at its end."""
    return "\n\n".join(_blocks(document)) + "\n"


def _blocks(document: CheckDocument) -> Iterator[str]:
    result = document.result
    headline = words.headline(result)
    yield f"### {headline[:1].upper()}{headline[1:]}"
    found = [(entry, text) for entry in words.ordered(result) for text in words.warnings(entry)]
    warnings = (f"{_cell(entry.name)}: {_prose(text)}" for entry, text in found)
    yield from warning_block(warnings, len(found), _ROOM_FOR_WARNINGS)
    yield from _table(result)
    yield from _sections(result)
    yield from _moved_elsewhere(result)
    said = [*filter(None, (words.updated(result),)), *words.advice(result)]
    if said:
        yield "\n".join(f"- {prose(sentence(text))}" for text in said)
    versions = (code(visible(f"{name} {version}", _LONGEST_CELL)) for name, version in document.versions.items())
    yield ", ".join(filter(None, (_cell(result.configuration), *versions)))


def _table(result: CheckResult) -> Iterator[str]:
    entries = words.ordered(result)
    rows = list(fitting(map(_row, entries), _ROOM_FOR_TABLE))
    if rows:
        yield table(("entry", "card", ">largest micro-batch", ">accumulation steps", "verdict"), rows)
    if more := len(entries) - len(rows):
        yield f"... and {more} more."


def _row(entry: CheckedEntry) -> tuple[str, ...]:
    word = words.VERDICT_WORDS[entry.verdict]
    verdict = word if entry.verdict is Verdict.PASSED else f"**{word}**"
    card = words.card(entry) if entry.gpu is None else _cell(entry.gpu)
    largest = words.largest(entry) if entry.searched is None else _prose(words.largest(entry))
    return _cell(entry.name), card, largest, words.steps(entry), verdict


def _sections(result: CheckResult) -> Iterator[str]:
    entries = [entry for entry in words.ordered(result) if entry.verdict is not Verdict.PASSED]
    room = _ROOM_FOR_SECTIONS
    for number, entry in enumerate(entries):
        section = "\n\n".join(_section(entry))
        room -= len(section)
        if room < 0:
            yield f"... and {len(entries) - number} more that did not pass."
            return
        yield section


def _section(entry: CheckedEntry) -> Iterator[str]:
    yield f"#### {_cell(entry.name) or '-'}"
    if entry.problem is not None:
        yield from _problem(entry.problem)
    if limits := list(words.broken(entry)):
        yield "\n".join(f"- **{limit.name.value}**: {_prose(limit.text)}" for limit in limits[:_MOST_LINES])
    yield from _figures(words.beyond(entry))
    if others := "\n\n".join(_figures(words.within(entry))):
        yield folded(capitalised(words.within_title(entry)), others)


def _figures(movements: Sequence[Movement]) -> Iterator[str]:
    rows = list(fitting(map(_moved, movements[:_MOST_IN_TABLE]), _ROOM_FOR_MOVED))
    if rows:
        yield table(("changed", ">baseline", ">now"), rows)
    if more := len(movements) - len(rows):
        yield f"... and {more} more."


def _problem(problem: Problem) -> Iterator[str]:
    yield _prose(problem.message)
    if problem.details:
        yield code_lines(_cut_lines(problem.details)[-_MOST_LINES:])
    if problem.hint:
        first, *rest = _cut_lines(problem.hint)
        yield f"hint: {_prose(first)}"
        # Lines to add have empty ones around them.
        if block := "\n".join(rest[:_MOST_LINES]).strip("\n"):
            yield code_lines(block.split("\n"))


def _moved(movement: Movement) -> tuple[str, str, str]:
    text = _prose(movement.text)
    shown = f"**{text}**" if movement.is_beyond and text else text
    return shown, words.figure(movement, movement.before), words.figure(movement, movement.after)


def _moved_elsewhere(result: CheckResult) -> Iterator[str]:
    """Yield the figures that changed in entries that passed, folded."""
    passed = [entry for entry in result.entries if entry.verdict is Verdict.PASSED]
    found = [(entry, movement) for entry in passed for movement in entry.movements]
    rows = ((_cell(entry.name), *_moved(movement)) for entry, movement in found)
    shown = list(fitting(rows, _ROOM_FOR_MOVED))
    if shown:
        more = f"\n\n... and {len(found) - len(shown)} more." if len(shown) < len(found) else ""
        body = table(("entry", "changed", ">baseline", ">now"), shown) + more
        yield folded("What changed in entries that passed", body)


def _cell(text: str) -> str:
    return code(visible(text, _LONGEST_CELL))


def _prose(text: str) -> str:
    return prose(visible(text, _LONGEST_CELL))


def _cut_lines(text: str) -> Sequence[str]:
    return [visible(line, _LONGEST_CELL) for line in text.splitlines()] or [""]


# --- the page ---------------------------------------------------------------------------------------------------------

_MOST_LISTED: Final = 1000
_MOST_IN_FULL: Final = 60
"""Entries with their charts; a browser shows more only slowly."""

_MOST_ROWS: Final = 40


def html(document: CheckDocument) -> str:
    """Render what a check found as one self-contained HTML page."""
    from oomdoctor.report.html import render_page

    result = document.result
    entries = words.ordered(result)
    values: dict[str, Any] = {
        "document": document,
        "result": result,
        "status": words.VERDICT_WORDS[entries[0].verdict] if entries else "nothing to check",
        "headline": words.headline(result),
        "updated": words.updated(result),
        "advice": list(words.advice(result, is_page=True)),
        "listed": entries[:_MOST_LISTED],
        "unlisted": max(0, len(entries) - _MOST_LISTED),
        "entries": [_entry_section(entry) for entry in entries[:_MOST_IN_FULL]],
        "in_table_alone": max(0, len(entries) - _MOST_IN_FULL),
        "wording": words,
    }
    return render_page("check.html", values)


def _entry_section(entry: CheckedEntry) -> dict[str, Any]:
    from oomdoctor.report.probe.html import sections as probe_sections

    sizes = [size for found in entry.movements if _is_size(found) for size in (found.before, found.after) if size]
    return {
        "found": entry,
        "warnings": words.warnings(entry),
        "limits": sorted(entry.limits, key=lambda limit: limit.holds)[:_MOST_ROWS],
        "more_limits": max(0, len(entry.limits) - _MOST_ROWS),
        "movements": [_movement_row(found) for found in entry.movements[:_MOST_ROWS]],
        "more_movements": max(0, len(entry.movements) - _MOST_ROWS),
        "largest_bytes": max(sizes, default=1),
        "probe": None if entry.probe is None else probe_sections(entry.probe),
        "legend": [] if entry.searched is None else list(frontier.legend(entry.searched)),
        "buckets": None if entry.buckets is None else buckets.table(entry.buckets, _MOST_ROWS),
    }


def _movement_row(found: Movement) -> dict[str, Any]:
    return {
        "found": found,
        "is_size": _is_size(found),
        # A figure has the colour of the category that its name is or ends with; a peak and a phase have none.
        "category": next((each for each, name in CATEGORY_WORDS.items() if found.name.endswith(name)), None),
        "before": words.figure(found, found.before),
        "after": words.figure(found, found.after),
        "difference": _difference(found),
    }


def _is_size(found: Movement) -> bool:
    return found.kind is not FigureKind.MICRO_BATCH


def _difference(found: Movement) -> str:
    if found.before is None or found.after is None:
        return ""
    difference = found.after - found.before
    return format_signed_size(difference) if _is_size(found) else f"{difference:+}"


# --- issues -----------------------------------------------------------------------------------------------------------

_MOST_MOVEMENTS: Final = 10


def issues(document: CheckDocument) -> Issues:
    """Return each problem, each limit and each warning, the worst entry first."""
    result = document.result
    entries = words.ordered(result)
    broken = {limit.name for entry in entries for limit in words.broken(entry)}
    headline = words.headline(result)
    whole = Issue("passed", case=Case("all entries", "oomdoctor.check", message=headline))
    about = {"status": document.status, "configuration": result.configuration, **document.versions}
    return Issues(
        headline=sentence(headline),
        groups=[*(_group(result, entry) for entry in entries), Group("oomdoctor check", [whole], about)],
        rules=[
            IssueKind(it.value, words.LIMIT_WORDS[it], words.limit_help(result, it), "error")
            for it in LimitName
            if it in broken
        ],
        properties={"entries": len(entries), "headline": headline},
    )


def _group(result: CheckResult, entry: CheckedEntry) -> Group:
    shown = {
        "verdict": entry.verdict.value,
        "target": entry.target,
        "gpu": entry.gpu,
        "maximum": words.largest(entry),
        "steps": words.steps(entry),
        "profiled_micro_batch": entry.profiled_micro_batch,
        "baseline": entry.baseline,
        "tolerance": entry.tolerance,
    }
    properties = {name: value for name, value in shown.items() if value not in (None, "-")}
    return Group(entry.name, list(_issues(result, entry)), properties)


def _issues(result: CheckResult, entry: CheckedEntry) -> Iterator[Issue]:
    location, title = Location(_path(result, entry), name=entry.target), _title(entry)
    subject = words.name(entry)
    if entry.problem is not None:
        yield _problem_issue(entry, entry.problem, title, location)
    yield from (_limit_issue(result, entry, limit, location) for limit in entry.limits)
    for text in words.warnings(entry):
        yield Issue("warning", title, (sentence(text),), location, subject)
    if not words.beyond(entry) and (moved := tuple(_listed(words.within(entry)))):
        yield Issue("note", f"{title}: {words.within_title(entry)}", moved, location)


def _title(entry: CheckedEntry) -> str:
    return f"oomdoctor check {entry.name}"


def _path(result: CheckResult, entry: CheckedEntry) -> str | None:
    """Return the target's file from the working directory; the configuration for a module or an example."""
    file = target_file(entry.target)
    if file is None:
        return result.configuration or None
    # Targets are given from the folder of the configuration.
    return str(PurePath(result.configuration).parent / file)


def _problem_issue(entry: CheckedEntry, problem: Problem, title: str, location: Location) -> Issue:
    help_lines = (problem.hint or "").splitlines()
    lines = (sentence(problem.message), *(f"help: {line}" for line in help_lines[:1]), *help_lines[1:])
    body = _joined([*lines, *(problem.details or "").splitlines()])
    case = Case("answer", entry.name, entry.verdict.value, problem.message, body)
    return Issue("error", title, lines, location, words.name(entry), case=case)


def _limit_issue(result: CheckResult, entry: CheckedEntry, limit: Limit, location: Location) -> Issue:
    name = limit.name.value
    if limit.holds:
        return Issue("passed", case=Case(name, entry.name, message=visible(limit.text)))
    lines, path = tuple(_limit_lines(result, entry, limit)), location.path
    return Issue(
        level="error",
        title=f"{_title(entry)}: {name}",
        lines=lines,
        location=location,
        subject=words.name(entry),
        rule=name,
        identity=("" if path is None else repository_path(path), entry.name),
        case=Case(name, entry.name, name, limit.text, _joined(lines)),
    )


def _limit_lines(result: CheckResult, entry: CheckedEntry, limit: Limit) -> Iterator[str]:
    """Yield a broken limit's sentence, and the figures that moved where it is the baseline, else the probe's answer."""
    yield sentence(limit.text)
    if limit.name is LimitName.VERIFY:
        yield f"help: {words.limit_help(result, limit.name)}"
    elif limit.name is not LimitName.BASELINE:
        yield from (sentence(found) for found in [words.answer(entry)] if found)
    elif moved := list(_listed(words.beyond(entry))):
        yield from (
            *moved,
            f"help: `{words.update_command(result.configuration)}` writes it to the baseline, if it is intended",
        )


def _listed(movements: Sequence[Movement]) -> Iterator[str]:
    shown, more = words.first(movements, _MOST_MOVEMENTS)
    yield from (movement.text for movement in shown)
    if more:
        yield more


def _joined(lines: Iterable[str]) -> str:
    return "\n".join(visible(line) for line in lines if line)
