"""The report of a prescription on a terminal."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from prescribe_documents import not_enough, prescribed, row

from oomdoctor.output import Terminal
from oomdoctor.report import prescribe
from oomdoctor.results import Accumulation, MeasuredRemedies, PrescribeDocument, UniformPlan


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


def test_rows_that_stop_at_the_target_batch_are_told_with_what_to_do() -> None:
    """They look alike because nothing larger is tried; one row alone says so by itself."""
    capped = row("checkpoint", maximum=256, limited_by="target")
    both = (capped, row("bf16", maximum=256, limited_by="target"), row("fp16", maximum=200))
    (line,) = [line for line in shown(prescribed(alone=both, combined=())) if "above which nothing is tried" in line]
    assert line == (
        "2 of 4 rows stop at the target batch of 256, above which nothing is tried: a larger `--target-batch`, or "
        "none, tells them apart."
    )
    every = prescribed(alone=both[:2], combined=(), plain=row(maximum=256, limited_by="target"), world_size=2)
    (line,) = [line for line in shown(every) if "above which nothing is tried" in line]
    assert line.startswith("Every row stops at 256 samples on each device, its share of the target batch of 256, ")
    assert not [line for line in shown(prescribed(alone=both[::2], combined=())) if "nothing is tried" in line]


def test_rows_at_the_largest_size_of_all_are_told_apart_by_less_memory() -> None:
    """Without a target batch a size is bounded all the same."""
    both = tuple(row(name, maximum=1048576, limited_by="target") for name in ("checkpoint", "bf16"))
    document = prescribed(alone=both, combined=(), target_batch=None)
    assert any("rows stop at 1048576, the largest size that is tried: a smaller" in line for line in shown(document))


def test_a_larger_maximum_without_a_larger_recommended_size_is_named() -> None:
    """In the legend for each row, and with what is prescribed: who takes the recommended size gains nothing."""
    chosen = row("expandable-segments", maximum=20, recommended=15)
    lines = shown(prescribed(prescribed=chosen, alone=(chosen, row("checkpoint", maximum=27)), combined=()))
    assert (
        "expandable-segments raises the maximum and not the recommended size, which leaves 5% free and is 15 as it is."
        in lines
    )
    assert (
        "The recommended size, which leaves 5% free, is 15 as it is too: nothing is gained for whoever takes it."
        in lines
    )
    assert not [line for line in shown(prescribed()) if "raises the maximum and not" in line]


def test_the_recommended_size_of_what_is_prescribed_is_told() -> None:
    """Beside that of the target as it is; without headroom it is the maximum, and nothing is said."""
    assert "Recommended is 19, which leaves 5% free; as it is, that is 15." in shown(prescribed())
    assert not [line for line in shown(prescribed(headroom=0.0)) if "ecommended" in line and "free" in line]
    none = prescribed(prescribed=row("checkpoint", maximum=20, recommended=0))
    assert "No size that was tried leaves 5% free, so that none is recommended." in shown(none)


def test_an_interrupted_prescription_says_so_first() -> None:
    """With what reaches the most of what was measured; nothing of that where nothing gains."""
    changes: dict[str, Any] = {"prescribed": None, "patch": None, "code": (), "interrupted": "1 of 9 probes done"}
    said = "Interrupted with 1 of 9 probes done; `train.py` fits micro-batch 16 as it is"
    assert f"{said}, and micro-batch 27 with `checkpoint`, the most of what was measured." in shown(
        prescribed(**changes)
    )
    assert f"{said}." in shown(prescribed(alone=(), combined=(), **changes))


def test_a_command_that_is_told_no_accumulation_steps_does_not_reach_the_target_batch() -> None:
    """Its step has one micro-batch, and the report promises no more."""
    plan = Accumulation(256, 1, 1, (20,), 20, None, UniformPlan(20, 1, 20))
    lines = shown(prescribed(accumulation=plan))
    assert "1 accumulation step reaches 20 samples, and not the target batch of 256." in lines
    assert "13 accumulation steps reach the target batch of 256." in shown(prescribed())


def test_the_steps_of_the_recommended_size_are_told_before_those_of_the_maximum() -> None:
    """Once where both are as many."""
    careful = Accumulation(256, 1, 14, (19,) * 4 + (18,) * 10, 256, None, UniformPlan(19, 14, 266))
    lines = shown(prescribed(recommended_accumulation=careful))
    first = lines.index(
        "14 accumulation steps of up to 19 samples reach the target batch of 256 with the recommended size."
    )
    assert lines[first + 1] == "13 of up to 20 reach it too, with less memory free."
    as_many = replace(careful, steps=13, micro_batches=(20,) * 9 + (19,) * 4)
    assert "13 accumulation steps reach the target batch of 256." in shown(prescribed(recommended_accumulation=as_many))


def test_a_narrow_terminal_has_two_tables_with_a_remedy_a_line() -> None:
    """What each row gains and what it takes, in which every cell of the one table of a wide terminal stands."""
    both = row("fused-cross-entropy", "checkpoint-keep-attention", maximum=214)
    document = prescribed(combined=(both,), alone=())

    wide = prescribe.text(document, Terminal(width=200)).splitlines()
    narrow = prescribe.text(document, Terminal(width=80)).splitlines()

    tables, second = (narrow[:5], narrow[6:11]), " + checkpoint-keep-attention"
    assert max(map(len, narrow[:11])) <= 80
    assert narrow[11:] == wide[4:]
    for lines in tables:
        assert lines[0].startswith("remedies  ")
        assert lines[3].startswith("fused-cross-entropy  ")
        assert lines[4] == second
    for place, name in ((0, "remedies"), (2, "as it is"), (3, "fused-cross-entropy")):
        cells = " ".join(lines[place].removeprefix(name) for lines in tables).split()
        assert sorted(cells) == sorted(wide[place].replace(second, "").removeprefix(name).split())
