"""Documents of every command, plain and hostile, for the formats that all commands have."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import check_documents
import diagnosis_documents
import documents
import fit_documents
import frontier_documents
import hostile_documents
import lint_documents
import prescribe_documents
import verify_documents

from oomdoctor.output import Terminal
from oomdoctor.report import render
from oomdoctor.results import CheckDocument, CheckResult, Document, ProbeDocument, Reason

WICKED = (
    "<script>alert(1)</script>\x1b[31m\r\n::error::%0A%25\u202eevil\u2066|`x`\\]]>&amp;,a=1 [b](https://example.org)"
)
"""One text with something for every format."""

COMMANDS = ("lint", "diagnose", "probe", "check", "gpus", "verify", "prescribe", "frontier")
"""Commands whose documents have all formats."""

SAMPLES: dict[str, Document] = {
    "lint": lint_documents.mistakes(),
    "lint, clean": lint_documents.clean(),
    "lint, nothing read": lint_documents.clean(files=0, skipped_files=0, lines=0),
    "lint, endless": lint_documents.many(10_000),
    "diagnose": diagnosis_documents.out_of_memory(),
    "diagnose, not memory": diagnosis_documents.not_memory(),
    "diagnose, nothing": diagnosis_documents.nothing_found(),
    "probe": documents.gpt2(target="train/model.py:build(depth=2)"),
    "probe, timed": documents.timed(),
    "probe, not timed": documents.untimed(),
    "probe, a command": documents.command(),
    "probe, nothing fits": documents.nothing_fits(target="pkg.module"),
    "check": check_documents.check(),
    "check, other sizes": check_documents.check(check_documents.searched(), check_documents.turns()),
    "check, passed": check_documents.check(check_documents.passed()),
    "gpus": fit_documents.fitted(),
    "gpus, at sizes": fit_documents.fitted_at_sizes(),
    "gpus, a question": fit_documents.fitted(questions=("torch.cuda.mem_get_info",), engine="null", world_size=2),
    "verify": verify_documents.verified(),
    "verify, equal": verify_documents.equal(),
    "prescribe": prescribe_documents.prescribed(),
    "prescribe, not enough": prescribe_documents.not_enough(),
    "prescribe, interrupted": prescribe_documents.interrupted(),
    "frontier": frontier_documents.frontier(),
    "frontier, two sizes": frontier_documents.gridded(),
    "frontier, one size": frontier_documents.longest(),
    "frontier, buckets": frontier_documents.bucketed(),
    "check, no entry": CheckDocument("check", "passed", 0, {"oomdoctor": "0.1.0"}, CheckResult("x.toml", None, ())),
}


def wicked_probe(text: str) -> ProbeDocument:
    """A probe in which nothing fits, with `text` in each place that a target or a saved document controls."""
    sample = documents.nothing_fits()
    result = sample.result
    made = replace(
        result,
        target=text,
        precision=text,
        optimizer=text,
        device=replace(result.device, name=text, compute_capability=text),
        trials=tuple(replace(trial, error=text) for trial in result.trials),
        reasons=(Reason(text, text),),
        warnings=(text,),
    )
    return replace(sample, result=made, versions={text: text})


def wicked(command: str, text: str = WICKED) -> Document:
    """A command's document with a hostile text wherever one may be."""
    made: dict[str, Any] = {
        "lint": lint_documents.filled_with,
        "diagnose": hostile_documents.filled_with,
        "probe": wicked_probe,
        "check": check_documents.filled_with,
        "gpus": fit_documents.filled_with,
        "verify": verify_documents.filled_with,
        "prescribe": prescribe_documents.filled_with,
        "frontier": frontier_documents.filled_with,
    }
    document: Document = made[command](text)
    return document


def rendered(document: Document, form: str, terminal: Terminal | None = None) -> str:
    """A document in the format of this name."""
    return render(document, form, terminal or Terminal())
