"""The report of a prescription on a terminal."""

from __future__ import annotations

from typing import Any

import pytest
from prescribe_documents import not_enough, prescribed, row

from oomdoctor.output import Terminal
from oomdoctor.report import prescribe
from oomdoctor.results import MeasuredRemedies, PrescribeDocument


def shown(document: PrescribeDocument) -> list[str]:
    """Its lines."""
    return prescribe.text(document, Terminal(width=120)).splitlines()


def unmeasured(name: str, problem: str, **changes: Any) -> MeasuredRemedies:
    """A row that does not apply."""
    return MeasuredRemedies((name,), "", "same", changes.pop("outcome", "not_applicable"), problem=problem)


def test_what_does_not_apply_for_one_reason_is_one_line() -> None:
    """Rows are named together, and a row with a reason of its own alone."""
    rows = (
        unmeasured("checkpoint", "no blocks"),
        unmeasured("freeze-half", "no blocks"),
        unmeasured("lora", "no linear layers"),
        unmeasured("bf16", "no blocks", outcome="raises"),
    )
    lines = shown(prescribed(alone=rows))
    assert "checkpoint, freeze-half: do not apply: no blocks." in lines
    assert "lora: does not apply: no linear layers." in lines
    assert "bf16: its step raises an error: no blocks." in lines


@pytest.mark.parametrize(
    ("changes", "option"),
    [({"host_bytes": 5}, "--with offload-activations"), ({"exactness": "other"}, "--keep any")],
)
def test_what_reaches_the_need_and_is_not_let_in_is_named(changes: dict[str, Any], option: str) -> None:
    """With the option that lets it in; nothing is said of what does not reach it."""
    found = not_enough().result
    rows = (row("offload-activations", maximum=80, **changes), row("checkpoint", maximum=27))
    document = prescribed(alone=rows, combined=(), need=found.need, prescribed=None, patch=None, code=())
    said = [line for line in shown(document) if "lets in" in line]
    assert said == [f"`offload-activations` alone reaches 80, which `{option}` lets in."]
    assert not [line for line in shown(prescribed()) if "lets in" in line]


def test_what_makes_it_larger_and_is_not_let_in_is_named_where_nothing_is_prescribed() -> None:
    """Without a need it is what fits more than the target as it is, three at most."""
    rows = tuple(row(f"bf16-{number}", maximum=30 - number, exactness="other") for number in range(5))
    changes: dict[str, Any] = {"need": None, "prescribed": None, "patch": None, "code": (), "combined": ()}
    said = [
        line for line in shown(prescribed(alone=(*rows, row("adafactor", maximum=16)), **changes)) if "lets" in line
    ]
    assert said == [f"`bf16-{n}` alone reaches {30 - n}, which `--keep any` lets in." for n in range(3)]
    assert not [line for line in shown(prescribed(need=None, alone=rows)) if "lets in" in line]
