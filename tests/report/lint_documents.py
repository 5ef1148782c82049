"""What lint found, for the tests of reports: realistic documents, hostile ones, and any that the types allow."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from documents import texts
from hypothesis import strategies as st

from oomdoctor.results import Concern, Finding, LintDocument, LintResult, Severity, Unreadable

LOSS = Finding(
    code="OOM102",
    name="loss-keeps-graph",
    path="train/loop.py",
    line=42,
    column=9,
    end_line=42,
    end_column=28,
    severity=Severity.ERROR,
    concern=Concern.MEMORY,
    message="`losses` keeps the graph of every step alive",
    help="append `loss.item()`",
    function="Trainer.train",
    source="        losses.append(loss)",
)
EVALUATION = Finding(
    code="OOM101",
    name="evaluation-without-no-grad",
    path="train/loop.py",
    line=61,
    column=13,
    end_line=61,
    end_column=25,
    severity=Severity.WARNING,
    concern=Concern.MEMORY,
    message="`model` runs in `evaluate` without `torch.no_grad()`",
    help="decorate `evaluate` with `@torch.no_grad()`",
    function="evaluate",
    source="\t\toutputs = model(batch)",
    fixable=True,
)
DIVISION = Finding(
    code="OOM202",
    name="loss-not-divided",
    path="notebooks/fine tune.ipynb",
    line=3,
    column=5,
    end_line=5,
    end_column=2,
    severity=Severity.NOTE,
    concern=Concern.CORRECTNESS,
    message="`loss` is not divided by `accumulation_steps`, so its gradient is too large",
    help="divide it before `backward`",
    function=None,
    source="    loss.backward(",
    cell=7,
)
BROKEN = Unreadable("train/old.py", 3, 7, "python 2: `print` without parentheses")
UNDECODABLE = Unreadable("notebooks/empty.ipynb", None, None, "is no notebook", 2)


def mistakes(*findings: Finding, **changes: Any) -> LintDocument:
    """Three findings in two files and a file that is no Python; `changes` replace fields of the result."""
    result = LintResult(
        findings=findings or (DIVISION, LOSS, EVALUATION),
        unreadable=(BROKEN,),
        files=12,
        skipped_files=30,
        lines=3410,
        suppressed=2,
        fixed=0,
        rules=("OOM101", "OOM102", "OOM202"),
    )
    versions = {"oomdoctor": "0.1.0", "python": "3.11.9"}
    return LintDocument("lint", "findings", 1, versions, replace(result, **changes))


def clean(**changes: Any) -> LintDocument:
    """Nothing found."""
    document = mistakes(**{"unreadable": (), "suppressed": 0, **changes})
    return replace(document, status="clean", exit_code=0, result=replace(document.result, findings=()))


def many(count: int) -> LintDocument:
    """So many findings over a hundred files, of all severities."""
    severities = tuple(Severity)
    findings = tuple(
        replace(
            LOSS, path=f"train/file_{number * 100 // count:03}.py", line=number + 1, severity=severities[number % 3]
        )
        for number in range(count)
    )
    return mistakes(*findings, files=100, unreadable=())


def filled_with(text: str) -> LintDocument:
    """The sample with `text` in each place that a source file, a path or a saved document controls."""
    found = [
        replace(finding, code=text, name=text, path=text, message=text, help=text, function=text, source=text, column=2)
        for finding in (LOSS, EVALUATION, DIVISION)
    ]
    unread = replace(BROKEN, path=text, problem=text)
    document = mistakes(*found, unreadable=(unread,), rules=(text,))
    return replace(document, versions={text: text})


_numbers = st.integers(0, 10**6)
_findings = st.builds(
    Finding,
    code=texts,
    name=texts,
    path=texts,
    line=_numbers,
    column=_numbers,
    end_line=_numbers,
    end_column=_numbers,
    severity=st.sampled_from(Severity),
    concern=st.sampled_from(Concern),
    message=texts,
    help=texts,
    function=st.none() | texts,
    source=texts,
    cell=st.none() | _numbers,
    fixable=st.booleans(),
)
_unreadable = st.builds(Unreadable, texts, st.none() | _numbers, st.none() | _numbers, texts, st.none() | _numbers)
_results = st.builds(
    LintResult,
    findings=st.lists(_findings, max_size=4).map(tuple),
    unreadable=st.lists(_unreadable, max_size=2).map(tuple),
    files=_numbers,
    skipped_files=_numbers,
    lines=_numbers,
    suppressed=_numbers,
    fixed=_numbers,
    rules=st.lists(texts, max_size=2).map(tuple),
)
any_lint = st.builds(
    LintDocument,
    command=st.just("lint"),
    status=st.sampled_from(["clean", "findings", "unreadable"]),
    exit_code=st.integers(0, 255),
    versions=st.dictionaries(texts, texts, max_size=2),
    result=_results,
)
