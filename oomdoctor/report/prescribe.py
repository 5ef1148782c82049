"""The report of `oomdoctor prescribe`, in every format: each remedy's row, what is prescribed, and the patch."""

from __future__ import annotations

from textwrap import indent
from typing import TYPE_CHECKING, Any, Final

from oomdoctor.report import gpus
from oomdoctor.report.issues import Case, Group, Issue, IssueKind, Issues, Location, repository_path, target_file
from oomdoctor.report.plain_text import capitalised, count, optional_size, percent, sentence, visible
from oomdoctor.units import format_size

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from oomdoctor.output import Terminal
    from oomdoctor.results import Accumulation, MeasuredRemedies, PrescribeDocument, PrescribeResult

_COLUMNS: Final = (
    *("remedies", ">largest", ">recommended", ">saved", ">a sample", ">fixed"),
    *(">FLOPs", ">touched", ">to host", "keeps", ""),
)
_COSTS: Final = (">a sample", ">fixed", ">FLOPs", ">touched", ">to host")
"""What stands in a table of its own where a terminal is narrow; the other columns are what a row gains."""
_AND: Final = " + "
_KEEPS: Final = {"same": "the same numbers", "rounding": "all but rounding", "other": "trains otherwise"}
_MOST_BEYOND: Final = 3
_LEAST_ALIKE: Final = 2
_FRONT: Final = "*"
_MARKS: Final = (
    *(("same", True, "the same numbers"), ("rounding", True, "all but rounding"), ("other", True, "trains otherwise")),
    ("same", False, "hollow: something that costs less reaches as much"),
)
_PLURALS: Final = {"does not apply": "do not apply", "its step raises an error": "their step raises an error"}
_ADVICE: Final = "What only you can change, and was not measured:"


def text(document: PrescribeDocument, terminal: Terminal) -> str:
    """Render a prescription for a terminal, with a newline at its end."""
    return "\n".join(_lines(document, terminal)) + "\n"


def _lines(document: PrescribeDocument, terminal: Terminal) -> Iterator[str]:
    result = document.result
    yield from _tables([_row(row, result) for row in _measured(result)], terminal)
    yield ""
    yield from (visible(sentence(line)) for line in _legend(result))
    if left := list(_left(result)):
        yield ""
        yield from (visible(sentence(line)) for line in left)
    if result.advice:
        yield ""
        yield _ADVICE
        yield from (f"  {visible(sentence(line))}" for line in result.advice)
    yield ""
    yield visible(sentence(_headline(result)))
    yield from (visible(sentence(line)) for line in _prescribed(result))
    for code in result.code:
        yield ""
        yield visible(f"{capitalised(code.place)}:")
        yield ""
        yield indent("\n".join(map(visible, code.lines)), "    ")
    if result.patch is not None:
        yield ""
        yield visible(sentence(_proof(result)))
        yield ""
        yield from map(visible, result.patch.diff.splitlines())
    elif result.patch_problem is not None:
        yield ""
        yield visible(sentence(f"no patch: {result.patch_problem}"))
    for warning in result.warnings:
        yield ""
        yield visible(sentence(warning))


def _tables(rows: Sequence[Sequence[str]], terminal: Terminal) -> Iterator[str]:
    """Yield one table, or two where a terminal is too narrow: what each row gains, and what it takes."""
    _, rule, *_ = whole = gpus.table(_columns(_COLUMNS, rows), terminal)
    if len(rule) <= terminal.width:
        yield from whole
        return
    folded = [line for row in rows for line in _folded(row)]
    yield from gpus.table(_columns([name for name in _COLUMNS if name not in _COSTS], folded), terminal)
    yield ""
    yield from gpus.table(_columns((_COLUMNS[0], *_COSTS), folded), terminal)


def _columns(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> list[gpus.Column]:
    """Return some of `_COLUMNS`, with their cells of rows that have all of them."""
    return [
        gpus.Column(
            heading.removeprefix(">"), [row[_COLUMNS.index(heading)] for row in rows], right=heading.startswith(">")
        )
        for heading in headings
    ]


def _folded(row: Sequence[str]) -> Iterator[Sequence[str]]:
    """Yield a row whose name has one remedy a line."""
    first, *others = row[0].split(_AND)
    yield (first, *row[1:])
    yield from ((f" {_AND.lstrip()}{name}", *("" for _ in row[1:])) for name in others)


# A comment on GitHub holds 65,536 characters; each part has its share of them.
_ROOM_FOR_TABLE: Final = 30_000
_ROOM_FOR_TEXT: Final = 10_000
_LONGEST: Final = 500
_MOST_LINES: Final = 200


def markdown(document: PrescribeDocument) -> str:
    """Render a prescription as GitHub-flavoured Markdown, with a newline at its end."""
    return "\n\n".join(_blocks(document)) + "\n"


def _blocks(document: PrescribeDocument) -> Iterator[str]:
    from oomdoctor.report.markdown import code, code_lines, fitting, prose, table, warning_block

    result = document.result
    yield f"### {prose(capitalised(_cut(_headline(result))))}"
    warnings = (prose(sentence(_cut(warning))) for warning in result.warnings)
    yield from warning_block(warnings, len(result.warnings), _ROOM_FOR_TEXT)
    yield from (prose(sentence(_cut(line))) for line in _prescribed(result))
    rows = ((code(_cut(row[0])), *map(_cut, row[1:])) for row in (_row(row, result) for row in _measured(result)))
    headings = [heading.removeprefix(">") or "front" for heading in _COLUMNS]
    yield table(headings, list(fitting(rows, _ROOM_FOR_TABLE)))
    lines = [(f"- {prose(sentence(_cut(line)))}",) for line in (*_legend(result), *_left(result))]
    yield "\n".join(line for (line,) in fitting(lines, _ROOM_FOR_TEXT))
    if result.advice:
        advised = [(f"- {prose(sentence(_cut(line)))}",) for line in result.advice]
        yield "\n".join([f"{_ADVICE}\n", *(line for (line,) in fitting(advised, _ROOM_FOR_TEXT))])
    for part in result.code[:10]:
        yield f"**{prose(capitalised(_cut(part.place)))}**"
        yield code_lines(map(_cut, part.lines[:_MOST_LINES]))
    if result.patch is not None:
        yield prose(sentence(_cut(_proof(result))))
        yield code_lines(map(_cut, result.patch.diff.splitlines()[:_MOST_LINES]))
    elif result.patch_problem is not None:
        yield prose(sentence(_cut(f"no patch: {result.patch_problem}")))
    yield ", ".join(code(_cut(f"{name} {version}")) for name, version in document.versions.items())


def _cut(text: str) -> str:
    return visible(text, _LONGEST)


def html(document: PrescribeDocument) -> str:
    """Render a prescription as one self-contained HTML page, with a bar for each row's maximum."""
    from oomdoctor.report.charts import front
    from oomdoctor.report.html import render_page

    result = document.result
    rows = _measured(result)
    most = max((row.maximum for row in rows), default=0) or 1
    values: dict[str, Any] = {
        "document": document,
        "headline": _headline(result),
        "chart": front.chart(result),
        "described": f"{len(rows)} rows; the table below has the same numbers",
        "marks": _MARKS,
        "prescribed": list(_prescribed(result)),
        "columns": [heading.removeprefix(">") or "front" for heading in _COLUMNS],
        "rows": [(_row(row, result), round(100 * row.maximum / most, 1), row.on_front) for row in rows],
        "left": list(_left(result)),
        "advised": result.advice,
        "code": result.code,
        "proof": "" if result.patch is None else _proof(result),
        "patch": result.patch,
        "patch_problem": result.patch_problem,
        "warnings": result.warnings,
        "legend": [*_legend(result), *(f"{reason.subject}: {reason.text}" for reason in result.reasons)],
    }
    return render_page("prescribe.html", values)


# --- issues ----------------------------------------------------------------------------------------------------------

_TITLE: Final = "oomdoctor prescribe"
_HELP: Final = "Apply the code of the report."
_NOT_REACHED: Final = IssueKind("need-not-reached", "No remedies reach the micro-batch that is needed", _HELP, "error")
_NOT_WRITTEN: Final = IssueKind("patch-not-written", "The patched file could not be written", _HELP, "error")
_INTERRUPTED: Final = IssueKind("prescribe-interrupted", "Not every remedy was measured", "Run it again.", "error")
_PRESCRIBED: Final = IssueKind("remedies-prescribed", "Remedies make a larger micro-batch fit", _HELP, "note")

_RULES: Final = {
    "nothing_fits": _NOT_REACHED,
    "not_reached": _NOT_REACHED,
    "not_written": _NOT_WRITTEN,
    "interrupted": _INTERRUPTED,
}
"""Rules by status; where nothing fits, none reaches what is needed either."""


def issues(document: PrescribeDocument) -> Issues:
    """Return what is prescribed, or that it is not enough, and the warnings."""
    result = document.result
    path = target_file(result.target)
    lines = (sentence(_headline(result)), *map(sentence, _prescribed(result)))
    rule = _RULES.get(document.status, _PRESCRIBED)
    found = Issue(
        level=rule.level,
        title=f"{_TITLE} {result.target}",
        lines=lines,
        location=Location(path, name=result.target),
        subject=result.target,
        rule=rule.id,
        identity=("" if path is None else repository_path(path), result.target, rule.id),
        case=Case(name="prescribe", group=result.target, kind=rule.id, message=lines[0], body="\n".join(lines)),
    )
    warnings = [Issue("warning", _TITLE, (sentence(warning),), Location(path)) for warning in result.warnings]
    about = {"status": document.status, "precision": result.precision, **document.versions}
    return Issues(
        headline=lines[0],
        groups=[Group(result.target, [found, *warnings], about)],
        rules=[rule],
        properties={"need": result.need, "plain_maximum": result.plain.maximum, "probes": result.probes},
    )


# --- sentences -------------------------------------------------------------------------------------------------------


def _measured(result: PrescribeResult) -> list[MeasuredRemedies]:
    """Return the rows of the table: combinations and remedies alone, the largest first, and then what saves nothing."""
    rows = [row for row in (*result.combined, *result.alone) if row.outcome == "measured"]
    ordered = sorted(
        rows, key=lambda row: (-row.maximum, -row.recommended, row.compared_peak_bytes or 0, len(row.remedies))
    )
    return [result.plain, *ordered]


def _row(row: MeasuredRemedies, result: PrescribeResult) -> tuple[str, ...]:
    """Return a row's cells, one for each of `_COLUMNS`."""
    sizes = (str(size) if size else "-" for size in (row.maximum, row.recommended))
    saved = _saved(row, result.plain) if row.remedies else ""
    return (
        _AND.join(row.remedies) or "as it is",
        *sizes,
        saved,
        optional_size(row.bytes_per_sample),
        optional_size(row.fixed_bytes),
        *_cost(row),
        row.exactness if row.remedies else "",
        _FRONT if row.on_front else "",
    )


def _cost(row: MeasuredRemedies) -> tuple[str, str, str]:
    """Return recomputed FLOPs, extra bytes touched and bytes to the host; nothing of the target as it is."""
    if not row.remedies:
        return "", "", ""
    counts = (row.recomputed_flops_percent, row.extra_bytes_percent)
    unknown = "unknown" if row.unknown_operators else "-"
    flops, touched = (unknown if count is None else f"{count:.1f} %" if count else "0" for count in counts)
    return flops, touched, format_size(row.host_bytes) if row.host_bytes else "0"


def _saved(row: MeasuredRemedies, plain: MeasuredRemedies) -> str:
    """Return bytes that the peak is lower; with a minus where it is higher."""
    if row.compared_peak_bytes is None or plain.peak_bytes is None:
        return "-"
    saved_bytes = plain.peak_bytes - row.compared_peak_bytes
    return f"{'-' if saved_bytes < 0 else ''}{format_size(abs(saved_bytes))}" if saved_bytes else "0"


def _headline(result: PrescribeResult) -> str:
    plain, chosen, need = result.plain.maximum, result.prescribed, result.need
    best = max(plain, chosen.maximum if chosen else 0)
    target, before = f"`{result.target}`", _before(result)
    if result.interrupted is not None:
        return f"interrupted with {result.interrupted}; {target} fits {before} as it is{_most_so_far(result)}"
    if need is not None and plain >= need:
        return f"{target} as it is fits micro-batch {plain}, and {need} is needed"
    if need is not None and best < need:
        most = (
            f"{before}, at most {best} with what was measured"
            if best
            else "at no micro-batch, with none of what was measured either"
        )
        return f"{target} fits {most}, and {need} is needed"
    if chosen is not None:
        return f"{target} fits {before}, and micro-batch {chosen.maximum} with {_named(chosen.remedies)}"
    if result.plain.limited_by == "target":
        return f"{target} as it is fits the whole target batch of {plain}"
    return f"{target} fits {before}, and no remedy that may be combined makes it larger"


def _before(result: PrescribeResult) -> str:
    return f"micro-batch {result.plain.maximum}" if result.plain.maximum else "nothing"


def _most_so_far(result: PrescribeResult) -> str:
    """Return what reaches the most of what was measured until the interrupt; nothing where nothing gains."""
    row = _measured(result)[1:2]
    if not row or row[0].maximum <= result.plain.maximum:
        return ""
    return f", and micro-batch {row[0].maximum} with {_named(row[0].remedies)}, the most of what was measured"


def _named(names: Sequence[str]) -> str:
    return " and ".join(f"`{name}`" for name in names)


def _prescribed(result: PrescribeResult) -> Iterator[str]:
    """Yield what each of the prescribed remedies is, acts on and costs."""
    row = result.prescribed
    yield from _beyond(result)
    if row is None:
        return
    yield from _recommended(row, result)
    yield f"{row.title}"
    if row.acts_on:
        yield f"it acts on {', and '.join(row.acts_on)}"
    yield f"it keeps {_KEEPS[row.exactness]}" if row.exactness != "other" else "it trains otherwise"
    yield f"it costs: {'; '.join(row.cost)}"
    if row.host_bytes:
        yield f"{format_size(row.host_bytes)} a micro-batch go to the host, and back"
    yield from row.notes
    if result.accumulation is not None:
        yield from _planned(result.accumulation, result.recommended_accumulation)


def _planned(plan: Accumulation, careful: Accumulation | None) -> Iterator[str]:
    """Yield the steps to the target batch: of the recommended size first, and of the maximum where those are fewer."""
    verb = "reaches" if plan.steps == 1 else "reach"
    steps = count(plan.steps, "accumulation step")
    if plan.effective_batch < plan.target_batch:
        samples = count(plan.effective_batch, "sample")
        yield f"{steps} {verb} {samples}, and not the target batch of {plan.target_batch}"
    elif careful is None or careful.steps == plan.steps:
        yield f"{steps} {verb} the target batch of {plan.target_batch}"
    else:
        more = f"{careful.steps} accumulation steps of up to {count(max(careful.micro_batches), 'sample')}"
        yield f"{more} reach the target batch of {plan.target_batch} with the recommended size"
        yield f"{plan.steps} of up to {max(plan.micro_batches)} {verb} it too, with less memory free"


def _recommended(row: MeasuredRemedies, result: PrescribeResult) -> Iterator[str]:
    """Yield the size that leaves the headroom free: a larger maximum alone is nothing for whoever takes that."""
    if not result.headroom:
        return
    free, before = f"leaves {percent(result.headroom)} free", result.plain.recommended
    if not row.recommended:
        yield f"no size that was tried {free}, so that none is recommended"
    elif row.recommended > before:
        yield f"recommended is {row.recommended}, which {free}; as it is, that is {before or 'none'}"
    else:
        yield f"the recommended size, which {free}, is {before} as it is too: nothing is gained for whoever takes it"


def _left(result: PrescribeResult) -> Iterator[str]:
    """Yield why rows were not measured."""
    words = {"not_applicable": "does not apply", "raises": "its step raises an error", "not_measured": "not measured"}
    alike: dict[tuple[str, str], list[str]] = {}
    for row in (*result.alone, *result.combined):
        if row.outcome != "measured":
            alike.setdefault((words[row.outcome], row.problem or "-"), []).append(_AND.join(row.remedies))
    for (how, why), names in alike.items():
        verb = _PLURALS.get(how, how) if len(names) > 1 else how
        yield f"{', '.join(names)}: {verb}: {why}"


def _beyond(result: PrescribeResult) -> Iterator[str]:
    """Yield which options let in what reaches the need, where nothing that was combined does."""
    need, plain, chosen = result.need, result.plain, result.prescribed
    if max(plain.maximum, chosen.maximum if chosen else 0) >= (need or 0) and (need is not None or chosen is not None):
        return
    enough = plain.maximum + 1 if need is None else need
    kept = ("same", "rounding", "other")[: ("same", "rounding", "any").index(result.keep) + 1]
    rows = [row for row in result.alone if row.host_bytes > 0 or row.exactness not in kept]
    rows = [row for row in rows if row.outcome == "measured" and row.maximum >= enough and row != chosen]
    for row in rows[:_MOST_BEYOND]:
        option = f"--with {row.remedies[0]}" if row.host_bytes else "--keep any"
        yield f"{_named(row.remedies)} alone reaches {row.maximum}, which `{option}` lets in"


def _legend(result: PrescribeResult) -> Iterator[str]:
    batch = "plain steps" if result.target_batch is None else f"a target batch of {result.target_batch}"
    target = f"`{result.target}`" if " " in result.target else result.target
    yield (
        f"{target}, {result.precision}, {batch}; {result.device.name}, {format_size(result.capacity_bytes)} for "
        f"PyTorch; {result.probes} probes"
    )
    at = f"at micro-batch {result.plain.maximum}" if result.plain.maximum else "where sizes can be compared"
    yield f"saved: bytes that the peak {at} is lower; a sample: what one more takes; fixed: what stays at any size"
    if any("-" in _row(row, result) for row in _measured(result)):
        yield "-: none, or not known from the trials that were run"
    kept = {"same": "the same numbers", "rounding": "all but rounding", "any": "anything"}[result.keep]
    yield f"combined was what keeps {kept} (`--keep`); what goes to the host only where `--with` names it"
    yield (
        f"FLOPs: recomputed; touched: bytes that operators read and write more, both of a step {at} as PyTorch "
        "dispatches it and no measure of time; to host: bytes of a forward at the row's own maximum"
    )
    if unknown := sorted({name for row in (*result.alone, *result.combined) for name in row.unknown_operators}):
        yield f"operators without a known count: {', '.join(f'`{name}`' for name in unknown[:5])}"
    yield from _times(result)
    yield "keeps: the same numbers, all but rounding, or other training"
    yield f"{_FRONT}: nothing that costs less reaches as much"
    yield from _capped(result)
    yield from _same_recommended(result)


def _capped(result: PrescribeResult) -> Iterator[str]:
    """Yield that rows stop where nothing larger is tried, which makes them look alike."""
    rows = _measured(result)
    capped = [row for row in rows if row.limited_by == "target"]
    if len(capped) < _LEAST_ALIKE:
        return
    stop = "every row stops" if len(capped) == len(rows) else f"{len(capped)} of {len(rows)} rows stop"
    if result.target_batch is None:
        yield f"{stop} at {capped[0].maximum}, the largest size that is tried: a smaller `--capacity` tells them apart"
        return
    share = f"{capped[0].maximum} samples on each device, its share of " if result.world_size > 1 else ""
    yield (
        f"{stop} at {share}the target batch of {result.target_batch}, above which nothing is tried: a larger "
        "`--target-batch`, or none, tells them apart"
    )


def _same_recommended(result: PrescribeResult) -> Iterator[str]:
    """Yield which remedies raise the maximum alone, and nothing for whoever takes the recommended size."""
    plain = result.plain
    names = [
        _AND.join(row.remedies)
        for row in _measured(result)
        if row.maximum > plain.maximum and row.recommended <= plain.recommended
    ]
    if names and result.headroom:
        verb = "raises" if len(names) == 1 else "raise"
        yield (
            f"{', '.join(names)} {verb} the maximum and not the recommended size, which leaves "
            f"{percent(result.headroom)} free and is {plain.recommended or 'none'} as it is"
        )


def _times(result: PrescribeResult) -> Iterator[str]:
    """Yield measured step times, where a real GPU ran them."""
    timed = [row for row in _measured(result) if row.step_seconds is not None]
    if timed and not timed[0].remedies:
        times = (f"{' + '.join(row.remedies) or 'as it is'} {1000 * (row.step_seconds or 0):.1f} ms" for row in timed)
        yield f"time of a forward and backward at micro-batch {result.plain.maximum}, measured: {', '.join(times)}"


def _proof(result: PrescribeResult) -> str:
    patch = result.patch
    if patch is None:
        return ""
    where = f", written to `{patch.written}`," if patch.written else ""
    return f"the patched file{where} was probed, and fits micro-batch {patch.maximum}"
