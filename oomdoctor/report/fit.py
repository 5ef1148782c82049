"""The report of `oomdoctor gpus --fit`: a card a row, with a column for each size where sizes are varied.

Text, Markdown and the page show one table; `issues` gives a note for each card and size, of which none fails anything.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from oomdoctor.report import gpus
from oomdoctor.report.inference import mode_words
from oomdoctor.report.issues import Case, Group, Issue, IssueKind, Issues, Location, repository_path, target_file
from oomdoctor.report.plain_text import capitalised, count, sentence, visible
from oomdoctor.units import format_size

if TYPE_CHECKING:
    from collections.abc import Iterator

    from oomdoctor.output import Terminal
    from oomdoctor.results import FitDocument, FitResult, FittedCard, SearchedSize

_COLUMNS: Final = ("--gpu", ">memory", ">largest", ">recommended", ">steps", "limited by")
_LIMITS: Final = {
    "memory": "memory",
    "target": "target batch",
    "limit": "a limit that is not memory",
    "model": "the model alone does not fit",
    "unknown": "no answer",
}
_HOW: Final = {
    "trace": "traced: what a step allocates was placed on a simulated allocator of each card's size",
    "null": "probed: the step ran on a null GPU of each card's size, with PyTorch's own allocator",
}


def text(document: FitDocument, terminal: Terminal) -> str:
    """Render what fits each card for a terminal, with a newline at its end."""
    result = document.result
    rows = list(_rows(result))
    columns = [
        gpus.Column(heading.removeprefix(">"), [row[place] for row in rows], right=heading.startswith(">"))
        for place, heading in enumerate(_columns(result))
    ]
    return "\n".join([*gpus.table(columns, terminal), "", *map(visible, [*_legend(result), *_warnings(result)]), ""])


# A comment on GitHub holds 65,536 characters; each part has its share of them.
_ROOM_FOR_TABLE: Final = 30_000
_ROOM_FOR_WARNINGS: Final = 10_000
_LONGEST_CELL: Final = 300


def markdown(document: FitDocument) -> str:
    """Render what fits each card as GitHub-flavoured Markdown, with a newline at its end."""
    return "\n\n".join(_blocks(document)) + "\n"


def _blocks(document: FitDocument) -> Iterator[str]:
    from oomdoctor.report.markdown import code, fitting, prose, table, warning_block

    result = document.result
    yield f"### {prose(capitalised(_cut(_headline(result))))}"
    warnings = list(_warnings(result))
    yield from warning_block((prose(sentence(_cut(text))) for text in warnings), len(warnings), _ROOM_FOR_WARNINGS)
    every = list(_rows(result))
    rows = list(fitting(((code(_cut(row[0])), *row[1:]) for row in every), _ROOM_FOR_TABLE))
    headings = ((">" if heading[0] == ">" else "", heading.removeprefix(">")) for heading in _columns(result)[1:])
    yield table(("card", *(mark + prose(_cut(heading)) for mark, heading in headings)), rows)
    if more := len(every) - len(rows):
        yield f"... and {more} more."
    yield "\n".join(f"- {prose(sentence(_cut(text)))}" for text in _legend(result))
    yield ", ".join(code(_cut(f"{name} {version}")) for name, version in document.versions.items())


def _cut(text: str) -> str:
    return visible(text, _LONGEST_CELL)


_MOST_ROWS: Final = 1000


def html(document: FitDocument) -> str:
    """Render what fits each card as one self-contained HTML page."""
    from oomdoctor.report.html import render_page

    result = document.result
    rows = list(_rows(result))
    values = {
        "document": document,
        "headline": _headline(result),
        "warnings": list(_warnings(result))[:_MOST_ROWS],
        "columns": [heading.removeprefix(">") for heading in _columns(result)],
        "rows": rows[:_MOST_ROWS],
        "more": max(0, len(rows) - _MOST_ROWS),
        "legend": list(_legend(result)),
    }
    return render_page("fit.html", values)


# --- issues ----------------------------------------------------------------------------------------------------------

_TITLE: Final = "oomdoctor gpus --fit"
_DOES_NOT_FIT: Final = IssueKind(
    "card-too-small",
    "No micro-batch fits the card",
    "Train on a card with more memory, or lower the weights' share: a smaller model, bf16, or sharding.",
    "note",
)
_FITS: Final = IssueKind(
    "card-micro-batch",
    "The largest micro-batch that fits the card",
    "Set the micro-batch and the accumulation steps as the result says.",
    "note",
)


def issues(document: FitDocument) -> Issues:
    """Return a card's answer each, and a warning for each thing to know before relying on them."""
    result = document.result
    path = target_file(result.target)
    found = [_issue(result, card) for card in result.cards]
    warnings = [Issue("warning", _TITLE, (sentence(text),), Location(path)) for text in _warnings(result)]
    about = {
        "status": document.status,
        "target_batch": result.target_batch,
        "world_size": result.world_size,
        "precision": result.precision,
        "engine": result.engine,
        **document.versions,
    }
    return Issues(
        headline=sentence(_headline(result)),
        groups=[Group(result.target, [*found, *warnings], about)],
        rules=[rule for rule in (_DOES_NOT_FIT, _FITS) if any(issue.rule == rule.id for issue in found)],
        properties={"cards": len(result.cards), "weights_bytes": result.weights_bytes},
    )


def _issue(result: FitResult, card: FittedCard) -> Issue:
    rule = _FITS if card.micro_batch.maximum else _DOES_NOT_FIT
    path, text = target_file(result.target), sentence(_answer(result, card))
    return Issue(
        level=rule.level,
        title=f"{_TITLE} {result.target}",
        lines=(text, f"limited by {_LIMITS[card.micro_batch.limited_by]}"),
        location=Location(path, name=result.target),
        subject=_named(card),
        rule=rule.id,
        identity=("" if path is None else repository_path(path), result.target, _named(card)),
        case=Case(name=_named(card), group=result.target, kind=card.micro_batch.limited_by, message=text, body=text),
    )


# --- sentences -------------------------------------------------------------------------------------------------------


def _headline(result: FitResult) -> str:
    fitting = sum(card.micro_batch.maximum > 0 for card in result.cards)
    what = "combination of card and size" if result.varied_sizes else "card"
    several = "combinations of card and size" if result.varied_sizes else "cards"
    return f"{result.target} fits {fitting} of {count(len(result.cards), what, several)}"


def _columns(result: FitResult) -> tuple[str, ...]:
    if not result.varied_sizes:
        searched = _searched(result)
        return _COLUMNS if searched is None else tuple(column for column in _COLUMNS if column != ">steps")
    return (*_COLUMNS[:2], *(f">{named}" for named in dict.fromkeys(_sizes(card) for card in result.cards)))


def _rows(result: FitResult) -> Iterator[tuple[str, ...]]:
    """Yield a card's cells, one for each column."""
    if not result.varied_sizes:
        yield from (_row(result, card) for card in result.cards)
        return
    columns = _columns(result)[2:]
    by_card: dict[str, dict[str, FittedCard]] = {}
    for card in result.cards:
        by_card.setdefault(card.gpu, {})[f">{_sizes(card)}"] = card
    for gpu, found in by_card.items():
        cells = (found.get(column) for column in columns)
        size = format_size(next(iter(found.values())).total_bytes)
        yield gpu, size, *("" if card is None else _both(card) for card in cells)


def _both(card: FittedCard) -> str:
    """Return the largest size, and the recommended one in brackets."""
    sizes = card.micro_batch
    if sizes.limited_by == "unknown":
        return "no answer"
    return f"{sizes.maximum} ({sizes.recommended or '-'})" if sizes.maximum else "-"


def _sizes(card: FittedCard) -> str:
    return ", ".join(f"{axis.name} {axis.size}" for axis in card.at_sizes)


def _named(card: FittedCard) -> str:
    return f"{card.gpu} at {_sizes(card)}" if card.at_sizes else card.gpu


def _row(result: FitResult, card: FittedCard) -> tuple[str, ...]:
    """Return a card's cells, one for each of the columns."""
    sizes, plan = card.micro_batch, card.accumulation
    maximum, recommended = (str(size) if size else "-" for size in (sizes.maximum, sizes.recommended))
    is_plan = result.target_batch is not None and _searched(result) is None
    limit = _LIMITS[sizes.limited_by] if is_plan or sizes.limited_by != "target" else "nothing above is tried"
    steps = [] if _searched(result) else ["-" if plan is None else str(plan.steps)]
    return card.gpu, format_size(card.total_bytes), maximum, recommended, *steps, limit


def _searched(result: FitResult) -> SearchedSize | None:
    """Return the size that is searched; None where that is the micro-batch."""
    return None if result.variant is None else result.variant.searched


def _searched_words(result: FitResult) -> str:
    """Return what the largest is of, such as `micro-batch` or `context at micro-batch 8`."""
    searched = _searched(result)
    return "micro-batch" if searched is None else f"{searched.name} at micro-batch {searched.micro_batch}"


def _answer(result: FitResult, card: FittedCard) -> str:
    sizes, plan = card.micro_batch, card.accumulation
    if sizes.limited_by == "unknown":
        return f"there is no answer for {_named(card)}: {'; '.join(card.notes)}"
    if not sizes.maximum:
        why = "the model alone does not fit" if sizes.limited_by == "model" else "not even the smallest size"
        return f"nothing fits {_named(card)}: {why}"
    steps = "" if plan is None else f", {count(plan.steps, 'accumulation step')}"
    searched = _searched(result)
    what, beside = (
        ("micro-batch", "") if searched is None else (searched.name, f" at micro-batch {searched.micro_batch}")
    )
    largest = f"{what} {sizes.maximum} is the largest that fits {_named(card)}{beside}"
    return f"{largest}, {sizes.recommended} is recommended{steps}"


def _legend(result: FitResult) -> Iterator[str]:
    """Yield what the columns say, and where the answers were had from."""
    devices = "" if result.world_size == 1 else f" on {result.world_size} devices"
    searched = _searched(result)
    varied = [*result.varied_sizes, *([searched.name] if searched else [])]
    done = ", ".join(mode_words(result.variant, varied)) if result.variant else ""
    trained = result.variant is None or result.variant.mode == "train"
    steps = "plain steps" if result.target_batch is None else f"a target batch of {result.target_batch}{devices}"
    at = "".join(f", {axis.name} {axis.size}" for axis in result.given_sizes)
    parts = [f"{result.target}{at}", result.precision, *([done] if done else []), *([steps] if trained else [])]
    asked, cards = ", ".join(parts), len({card.gpu for card in result.cards})
    most = "at most " if result.varied_sizes else ""
    yield f"{asked}; {count(cards, 'card')}, {most}{format_size(result.weights_bytes)} of weights"
    recommended = f"one that leaves {result.headroom:.0%} of the capacity free"
    if result.varied_sizes:
        yield f"each size has the largest {_searched_words(result)}, and in brackets the recommended one: {recommended}"
    else:
        yield f"largest: the largest {_searched_words(result)}; recommended: {recommended}"
    if searched is not None and searched.multiple_of > 1:
        yield f"`{searched.name}` was searched in multiples of {searched.multiple_of}"
    if result.target_batch is not None and not result.varied_sizes and searched is None:
        yield "steps: accumulation steps that reach the target batch"
    yield _HOW[result.engine]
    yield from (f"{reason.subject}: {reason.text}" for reason in result.reasons)


def _warnings(result: FitResult) -> Iterator[str]:
    if result.questions:
        asked = ", ".join(f"`{question}`" for question in result.questions)
        told = f"the target asks about its GPU ({asked}), and was answered for one card"
        yield f"note: {told}; `probe --gpu` asks for each"
    every = len({card.gpu for card in result.cards})
    cards_of: dict[tuple[str, str], list[str]] = {}
    for card in result.cards:
        for note in card.notes:
            cards_of.setdefault((_sizes(card), note), []).append(card.gpu)
    for (sizes, note), cards in cards_of.items():
        # What a size has no answer for, it has none for on every card.
        if sizes and len(cards) == every:
            yield f"{sizes}: {note}"
        else:
            yield from (f"{card} at {sizes}: {note}" if sizes else f"{card}: {note}" for card in cards)
