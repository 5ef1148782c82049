"""GitHub-flavoured Markdown, for comments on pull requests and job summaries.

The text of a document may come from anyone whose pull request is being judged, so none of it can become markup: it is
shown in code spans, or with every character that could mean something escaped.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from oomdoctor.reports import plan, wording
from oomdoctor.reports.wording import clean
from oomdoctor.units import format_size

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from oomdoctor.results import Document, ProbeResult

_CODE_SPAN = re.compile(r"(?<!`)`( ?[^` ][^`]*)`(?!`)")
_INLINE_MARKUP = re.compile(r"[\\`*_\[\]()!~$#]")
_BLOCK_MARKUP = re.compile(r"^(?:[-+=>]|\d+(?=[.)](?:\s|$)))")
_BACKTICKS = re.compile(r"`+")

# GitHub makes links of these after no backslash protects them any longer; an invisible space inside does.
_AUTOLINKED = re.compile(r"@(?=\w)|#(?=\d)|gh-(?=\d)|:(?=//)|www(?=\.)", re.IGNORECASE)
_ZERO_WIDTH_SPACE = "\u200b"


def render(document: Document) -> str:
    """Render a probe's document as GitHub-flavoured Markdown, with a newline at its end."""
    return "\n\n".join(_blocks(document)) + "\n"


# --- untrusted text --------------------------------------------------------------------------------------------------


def code(text: str) -> str:
    """One code span that shows `text`, whatever it holds; empty where `text` shows nothing."""
    cleaned = clean(text)
    if not cleaned:
        return ""
    fence = _fence(cleaned, 1)
    padding = " " if "`" in (cleaned[0], cleaned[-1]) else ""
    return f"{fence}{padding}{cleaned}{padding}{fence}"


def prose(text: str) -> str:
    """`text` as it reads: its pairs of backticks stay code, everything else that could be markup is escaped."""
    outside_and_inside = _CODE_SPAN.split(clean(text))
    return "".join(code(part) if index % 2 else _escape(part) for index, part in enumerate(outside_and_inside))


def code_block(text: str) -> str:
    """A fenced block that shows one line of `text`."""
    cleaned = clean(text)
    fence = _fence(cleaned, 3)
    return f"{fence}text\n{cleaned}\n{fence}"


def _escape(text: str) -> str:
    text = _AUTOLINKED.sub(rf"\g<0>{_ZERO_WIDTH_SPACE}", text)
    text = _INLINE_MARKUP.sub(r"\\\g<0>", text)
    text = _BLOCK_MARKUP.sub(_escape_start, text)
    return text.replace("&", "&amp;").replace("<", "&lt;")


def _escape_start(match: re.Match[str]) -> str:
    start = match[0]
    return f"{start}\\" if start.isdecimal() else f"\\{start}"


def _fence(text: str, least: int) -> str:
    longest = max((len(run) for run in _BACKTICKS.findall(text)), default=0)
    return "`" * max(least, longest + 1)


# --- blocks ----------------------------------------------------------------------------------------------------------


def _blocks(document: Document) -> Iterator[str]:
    result = document.result
    yield f"### {wording.headline(result)}"
    if (shortfall := wording.shortfall(result)) is not None:
        yield f"{shortfall[:1].upper()}{shortfall[1:]}."
    if warnings := wording.warnings(result):
        yield "\n".join(["> [!WARNING]", *(f"> - {prose(text)}" for text in warnings)])
    yield _facts(result)
    yield from _plan(result)
    yield from _failure(result)
    if result.phases:
        yield _folded(wording.phases_title(result), _phases(result))
    if result.trials:
        yield _folded(wording.trials_title(result.trials), _trials(result))
    if result.reasons:
        reasons = "\n".join(f"- {code(reason.subject)}: {prose(reason.text)}" for reason in result.reasons)
        yield _folded("How each number was had", reasons)
    yield ", ".join(code(f"{name} {version}") for name, version in document.versions.items())


def _facts(result: ProbeResult) -> str:
    device = result.device
    rows = [
        *wording.answer_rows(result),
        ("target", ", ".join(filter(None, map(code, (result.target, result.precision, result.optimizer))))),
        ("device", f"{code(device.name)}, compute capability {code(device.compute_capability)}"),
        ("how known", wording.HOW_KNOWN[device.kind]),
        ("capacity", wording.capacity(result)),
    ]
    return _table(("", ""), rows)


def _plan(result: ProbeResult) -> Iterator[str]:
    if result.accumulation is None:
        return
    yield f"**{plan.title(result.accumulation)}**"
    rows = [(name, code(typed), effect) for name, typed, effect in plan.rows(result.accumulation)]
    yield _table(("plan", "set", "which makes"), rows)
    if notes := plan.notes(result):
        yield "\n".join(f"- {note}" for note in notes)


def _failure(result: ProbeResult) -> Iterator[str]:
    trial = wording.failing_trial(result)
    if trial is not None and (line := wording.first_line(trial.error or "")):
        yield f"**{wording.failure_title(trial)}**"
        yield code_block(line)


def _phases(result: ProbeResult) -> str:
    rows = [
        (
            str(phase.iteration or ""),
            wording.PHASE_WORDS[phase.phase],
            format_size(phase.end_allocated_bytes),
            format_size(phase.peak_allocated_bytes),
            wording.share(phase.peak_allocated_bytes, result.capacity_bytes),
        )
        for phase in result.phases
    ]
    return _table(("iteration", "phase", ">at end", ">peak", ">of capacity"), rows)


def _trials(result: ProbeResult) -> str:
    rows = [
        (
            str(trial.micro_batch),
            wording.outcome(result, trial),
            wording.optional_size(trial.peak_allocated_bytes),
            wording.optional_size(trial.peak_reserved_bytes),
            str(trial.alloc_retries),
            f"{trial.seconds:.2f}",
        )
        for trial in result.trials
    ]
    return _table((">size", "outcome", ">peak allocated", ">peak reserved", ">retries", ">seconds"), rows)


# --- layout ----------------------------------------------------------------------------------------------------------


def _table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table; a heading that begins with `>` is of a column of numbers."""
    rules = ["--:" if heading.startswith(">") else "---" for heading in headings]
    lines = [[heading.removeprefix(">") for heading in headings], rules, *rows]
    # Within a table a bar ends the cell, even inside a code span, unless it is escaped.
    return "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines)


def _folded(title: str, body: str) -> str:
    return f"<details>\n<summary>{title}</summary>\n\n{body}\n\n</details>"
