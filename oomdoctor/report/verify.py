"""The report of `oomdoctor verify`, in every format: the verdict, its causes, what to do, and the errors."""

from __future__ import annotations

from itertools import groupby
from textwrap import indent
from typing import TYPE_CHECKING, Any, Final

from oomdoctor.report import gpus
from oomdoctor.report.issues import Case, Group, Issue, IssueKind, Issues, Location, repository_path, target_file
from oomdoctor.report.plain_text import capitalised, sentence, visible

if TYPE_CHECKING:
    from collections.abc import Iterator

    from oomdoctor.output import Terminal
    from oomdoctor.results import VerifyDocument, VerifyResult
    from oomdoctor.results.verify import GradientError, VerifyCause, VerifyRemedy, VerifyVerdict

_HEADLINES: Final[dict[VerifyVerdict, str]] = {
    "equal": "accumulating equals the whole batch",
    "equal_if_weighted": "accumulating equals the whole batch if each micro-batch is weighted",
    "random_only": "accumulating equals the whole batch but for random draws",
    "different": "accumulating does not train what the whole batch would",
    "cannot_tell": "cannot tell whether accumulating equals the whole batch",
}
_COLUMNS: Final = ("micro-batches", "weighted", "error of the gradient")
_WEIGHTINGS: Final = {
    "mean": "by their samples (1/k for equal ones)",
    "sum": "not at all: losses are added",
    "count": "by the count below",
    "fitted": "by a least-squares fit",
    "as_run": "as the command does",
}


def text(document: VerifyDocument, terminal: Terminal) -> str:
    """Render a verification for a terminal, with a newline at its end."""
    return "\n".join(_lines(document, terminal)) + "\n"


def _lines(document: VerifyDocument, terminal: Terminal) -> Iterator[str]:
    result = document.result
    yield visible(sentence(f"{_named(result)}: {_headline(result)}"))
    for cause in result.causes:
        yield ""
        yield visible(sentence(f"cause: {_cause(cause)}"))
    for remedy in result.remedies:
        yield ""
        yield visible(sentence(f"remedy: {_remedy(remedy)}"))
        if remedy.code:
            yield ""
            yield indent("\n".join(map(visible, remedy.code.splitlines())), "    ")
    for note in result.notes:
        yield ""
        yield visible(sentence(f"note: {note}"))
    yield ""
    cells = list(zip(*_rows(result), strict=True))
    if cells:
        yield from gpus.table(
            [gpus.Column(name, list(column)) for name, column in zip(_COLUMNS, cells, strict=True)], terminal
        )
        yield ""
    yield from (visible(sentence(fact)) for fact in _facts(result))


# A comment on GitHub holds 65,536 characters; each part has its share of them.
_ROOM_FOR_TABLE: Final = 10_000
_ROOM_FOR_TEXT: Final = 30_000
_LONGEST: Final = 2_000


def markdown(document: VerifyDocument) -> str:
    """Render a verification as GitHub-flavoured Markdown, with a newline at its end."""
    return "\n\n".join(_blocks(document)) + "\n"


def _blocks(document: VerifyDocument) -> Iterator[str]:
    from oomdoctor.report.markdown import code, code_lines, fitting, prose, table

    result = document.result
    yield f"### {prose(capitalised(_cut(f'{_named(result)}: {_headline(result)}')))}"
    texts = [(f"**Cause.** {prose(sentence(_cut(_cause(cause))))}",) for cause in result.causes]
    texts += [(f"**Note.** {prose(sentence(_cut(note)))}",) for note in result.notes]
    yield from (text for (text,) in fitting(texts, _ROOM_FOR_TEXT))
    for remedy in result.remedies[:10]:
        yield f"**Remedy.** {prose(sentence(_cut(_remedy(remedy))))}"
        if remedy.code:
            yield code_lines(map(_cut, remedy.code.splitlines()))
    rows = list(fitting(_rows(result), _ROOM_FOR_TABLE))
    if rows:
        yield table(_COLUMNS, rows)
    yield "\n".join(f"- {prose(sentence(_cut(fact)))}" for fact in _facts(result))
    yield ", ".join(code(_cut(f"{name} {version}")) for name, version in document.versions.items())


def _cut(text: str) -> str:
    return visible(text, _LONGEST)


def html(document: VerifyDocument) -> str:
    """Render a verification as one self-contained HTML page."""
    from oomdoctor.report.html import render_page

    result = document.result
    values: dict[str, Any] = {
        "document": document,
        "headline": f"{_named(result)}: {_headline(result)}",
        "causes": [_cause(cause) for cause in result.causes],
        "remedies": [{"change": _remedy(remedy), "code": remedy.code} for remedy in result.remedies],
        "notes": result.notes,
        "columns": _COLUMNS,
        "rows": list(_rows(result)),
        "facts": list(_facts(result)),
    }
    return render_page("verify.html", values)


# --- issues ----------------------------------------------------------------------------------------------------------

_TITLE: Final = "oomdoctor verify"
_HELP: Final = "Change what the report names, or keep the whole batch as one micro-batch."
_DIFFERENT: Final = IssueKind(
    "accumulation-differs", "Accumulated micro-batches do not train what the whole batch would", _HELP, "error"
)
_WEIGHTED: Final = IssueKind(
    "accumulation-weights",
    "Accumulated micro-batches have to be weighted",
    "Weigh the loss of each micro-batch as the report says.",
    "warning",
)


def issues(document: VerifyDocument) -> Issues:
    """Return the causes, what has to be weighted, and the notes."""
    result = document.result
    found = [*_causes(result), *_weighting(result)] or [_passed(result)]
    path = target_file(result.target)
    notes = [Issue("note", _TITLE, (sentence(note),), Location(path)) for note in result.notes]
    rules = [rule for rule in (_DIFFERENT, _WEIGHTED) if any(issue.rule == rule.id for issue in found)]
    properties: dict[str, object] = {
        "status": document.status,
        "precision": result.precision,
        "gradient_error": result.gradient_error,
        **document.versions,
    }
    return Issues(
        headline=sentence(f"{_named(result)}: {_headline(result)}"),
        groups=[Group(result.target, [*found, *notes], properties)],
        rules=rules,
        properties={"verdict": result.verdict, "gradient_error": result.gradient_error},
    )


def _causes(result: VerifyResult) -> Iterator[Issue]:
    if result.verdict not in ("different", "cannot_tell"):
        return
    for cause, remedy in zip(result.causes, result.remedies, strict=False):  # a remedy a cause, then the weights
        lines = (sentence(_cause(cause)), sentence(remedy.change))
        yield _issue(result, _DIFFERENT, lines, _location(result, cause), cause.id)


def _weighting(result: VerifyResult) -> Iterator[Issue]:
    if result.verdict == "equal_if_weighted":
        remedy = result.remedies[-1]
        lines = (sentence(_remedy(remedy)), *remedy.code.splitlines())
        yield _issue(result, _WEIGHTED, lines, Location(target_file(result.target), name=result.target), "weights")


def _passed(result: VerifyResult) -> Issue:
    text = sentence(_headline(result))
    case = Case(name="verify", group=result.target, message=text)
    return Issue("passed", _TITLE, (text,), Location(target_file(result.target), name=result.target), case=case)


def _issue(result: VerifyResult, rule: IssueKind, lines: tuple[str, ...], location: Location, kind: str) -> Issue:
    path = location.path
    return Issue(
        level=rule.level,
        title=f"{_TITLE} {result.target}",
        lines=lines,
        location=location,
        subject=result.target,
        rule=rule.id,
        identity=("" if path is None else repository_path(path), result.target, kind),
        case=Case(name=kind, group=result.target, kind=rule.id, message=lines[0], body="\n".join(lines)),
    )


def _location(result: VerifyResult, cause: VerifyCause) -> Location:
    path, _, line = (cause.location or "").rpartition(":")
    if path and line.isdigit():
        return Location(path, int(line), name=cause.module or result.target)
    return Location(target_file(result.target), name=cause.module or result.target)


# --- sentences -------------------------------------------------------------------------------------------------------


def summary(result: VerifyResult) -> str:
    """Return the verdict in a sentence, with its first cause."""
    return "; ".join((_headline(result), *map(_cause, result.causes[:1])))


def _named(result: VerifyResult) -> str:
    """Return the target, a command as code."""
    return f"`{result.target}`" if result.precision == "as_run" else result.target


def _headline(result: VerifyResult) -> str:
    """Return the verdict with its figure."""
    if result.verdict in ("equal", "random_only", "cannot_tell"):
        return _HEADLINES[result.verdict]
    figure = _command_figure(result) if result.precision == "as_run" else _figure(result)
    return f"{_HEADLINES[result.verdict]}{f': {figure}' if figure else ''}"


def _command_figure(result: VerifyResult) -> str:
    """Return how wrong a command's own gradient is; empty where something else is wrong."""
    wrong = [error.error for error in result.errors if error.error > result.tolerance]
    if not wrong:
        return ""
    which = "first" if result.gradient_error > result.tolerance else "last"
    return f"the gradient of the {which} step is {_percent(wrong[0])} wrong"


def _figure(result: VerifyResult) -> str:
    """Return how wrong the usual loop is."""
    if result.gradient_error > result.tolerance:
        return f"divided by the steps, the gradient is {_percent(result.gradient_error)} wrong"
    if (result.weights_error or 0.0) > result.tolerance:
        return f"the weights' step is {_percent(result.weights_error or 0.0)} wrong"
    return "what the model keeps beside its weights is updated too often"


def _percent(error: float) -> str:
    """Return a relative error as people read it, such as `37 %`."""
    shown = error * 100
    return f"{shown:.0f} %" if shown >= 10 else f"{shown:.2g} %"  # noqa: PLR2004 - two digits are enough


def _rows(result: VerifyResult) -> Iterator[tuple[str, str, str]]:
    """Yield the cells of each row of errors."""
    for error in result.errors:
        yield _sizes(error), _WEIGHTINGS[error.weighting], _shown(error.error, result.tolerance)


def _shown(error: float, tolerance: float) -> str:
    return "equal" if error <= tolerance else _percent(error)


def _sizes(error: GradientError) -> str:
    """Return the sizes of micro-batches, such as `3+3+2`; of many, how often each comes: `42x3+2`."""
    if len(error.sizes) <= _MOST_SIZES:
        return "+".join(map(str, error.sizes))
    alike = [(size, len(list(run))) for size, run in groupby(error.sizes)]
    return "+".join(f"{number}x{size}" if number > 1 else str(size) for size, number in alike)


_MOST_SIZES: Final = 8


def _cause(item: VerifyCause) -> str:
    """Return a cause with its line."""
    return item.evidence + (f" ({item.location})" if item.location else "")


def _remedy(item: VerifyRemedy) -> str:
    rule = f" (`oomdoctor rule {item.rule}` has more)" if item.rule else ""
    return item.change.removesuffix(".") + rule


def _facts(result: VerifyResult) -> Iterator[str]:
    """Yield what was compared, and how."""
    if result.precision == "as_run":
        yield (
            f"optimizer steps of {result.samples} samples, run twice: with one micro-batch and as above; errors are "
            f"relative, and up to {result.tolerance:.0e} counts as equal"
        )
        yield (
            "both runs had one seed, an epoch cut to a few steps of whole micro-batches, and no dropout, autocast or "
            "clipping; each step left the weights as they were"
        )
        return
    yield (
        f"{result.samples} samples of {result.target} in {result.precision} on the CPU; errors are relative, and up to "
        f"{result.tolerance:.0e} counts as equal"
    )
    difference = _shown(result.weights_error or 0.0, result.tolerance)
    yield f"the weights after a step of SGD: {difference}"
    if result.random_error is not None and result.random_error > result.tolerance:
        drawn = ", ".join(f"`{name}`" for name in result.random_operators)
        by = f" ({drawn})" if drawn else ""
        yield (
            f"random draws{by} change the gradient by {_percent(result.random_error)} from run to run; they were "
            "replaced by their expected values"
        )
    if result.reversed_error is not None and result.reversed_error > result.tolerance:
        yield f"the order of the samples changes the gradient by {_percent(result.reversed_error)}"
    if result.changed_buffers:
        names = ", ".join(f"`{name}`" for name in result.changed_buffers[:6])
        more = len(result.changed_buffers) - 6
        yield f"buffers that end differently: {names}" + (f" and {more} more" if more > 0 else "")
