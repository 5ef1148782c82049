"""The fidelity bench: the published runs as they are read, and the rules by which estimates are scored."""

from __future__ import annotations

import json
from typing import Any

import fidelity
import pytest
from fidelity_scores import caps, decisions, errors, family, is_scored, spread, summary
from zoo.published import IMAGES, TEXTS

from oomdoctor.engines.catalogue import find_card

Row = dict[str, Any]


def row(measured: int, ours: int | None, **more: Any) -> Row:
    """Return a run that ended, and what we say of it."""
    found = {"reserved_bytes": ours, "oom": int(ours is None), "caps": {}}
    return {
        "model": "VGG16",
        "optimizer": "SGD",
        "batch": 4,
        "card": "rtx-4060",
        "input": "3x86x86",
        "real_oom": 0,
        "measured_nvml_delta_bytes": measured,
        "xmem_bytes": measured,
        "xmem_predicts_oom": 0,
        "xmem_cap_outcome": None,
        "dnnmem_bytes": None,
        "dnnmem_predicts_oom": None,
        "dnnmem_cap_outcome": None,
        "ours": found,
        **more,
    }


def test_every_published_run_can_be_asked_about() -> None:
    """Each has a name of its own, a model that is built here, a card of the catalogue, and bytes as integers."""
    rows = fidelity.read_truth()

    assert len({fidelity.key(each) for each in rows}) == len(rows) == 76
    assert {each["model"] for each in rows} == {*IMAGES, *TEXTS}
    assert all(find_card(each["card"]).total_bytes == each["card_total_bytes"] for each in rows)
    assert all(each["xmem_cap_outcome"] in ("passed", "oom", None) for each in rows)
    assert all(isinstance(each["measured_nvml_delta_bytes"], int) for each in rows if not each["real_oom"])


@pytest.mark.parametrize(
    ("changed", "scored"),
    [
        ({}, True),
        ({"real_oom": 1}, False),
        ({"input": "wikitext, at most 128 tokens", "batch": 10}, False),
        ({"input": "wikitext, at most 128 tokens", "batch": 11}, True),
    ],
)
def test_a_peak_is_scored_by_rule(changed: Row, scored: bool) -> None:
    """A run that ran out has no peak, and a small batch of texts no length that is known."""
    assert is_scored(row(100, 90, **changed)) is scored


def test_errors_are_signed_and_of_rows_that_a_tool_has() -> None:
    """Too much is positive; a row that a tool says nothing of, or that failed here, has none."""
    rows = [row(100, 110), row(100, None), row(100, 95, dnnmem_bytes=50)]
    rows[1]["ours"]["problem"] = "NoAnswerError"

    assert errors(rows, "oomdoctor") == {0: pytest.approx(0.1), 2: pytest.approx(-0.05)}
    assert errors(rows, "dnnmem") == {2: -0.5}


def test_a_spread_passes_over_signs() -> None:
    """Median, 90th percentile and the share within 5 % are of magnitudes."""
    said = spread([-0.01, 0.02, 0.03, -0.5])

    assert (said["rows"], said["median"], said["within"]) == (4, 0.025, 0.75)
    assert said["p90"] == pytest.approx(0.359)
    assert spread([])["median"] is None


def test_decisions_and_caps_name_what_is_wrong() -> None:
    """A run and each cap on it are counted once, and a wrong answer is named with what was seen."""
    passed = row(100, 90, xmem_cap_outcome="passed")
    passed["ours"]["caps"] = {"xmem": 1}
    failed = row(100, None)

    assert decisions([passed, failed], "oomdoctor") == {
        "rows": 2,
        "right": 1,
        "wrong": ["VGG16 b4 SGD on rtx-4060"],
    }
    held = caps([passed, failed])
    assert (held["rows"], held["right"]) == (1, 0)
    assert held["wrong"][0].endswith("passed")


def test_models_are_grouped_by_family() -> None:
    """Sizes of one model are one family; others stand for themselves."""
    assert [family({"model": name}) for name in ("VGG19", "distilgpt2", "opt-350m", "MnasNet")] == [
        "VGG",
        "GPT",
        "OPT",
        "MnasNet",
    ]


def test_what_is_published_is_of_these_rows() -> None:
    """The scores in the results follow from the answers beside them."""
    found = json.loads(fidelity.FILE.read_text(encoding="utf-8"))
    scored = [each | {"ours": found["answers"][fidelity.key(each)]} for each in fidelity.read_truth()
              if fidelity.key(each) in found["answers"]]  # fmt: skip

    assert found["summary"] == summary(scored)
    assert not found["summary"]["problems"]


@pytest.mark.null_gpu
@pytest.mark.usefixtures("forked_workers")
def test_a_row_is_run_with_its_own_settings() -> None:
    """A published run of a language model takes on the null GPU what it took on its card, and fits its cap."""
    (published,) = [each for each in fidelity.read_truth() if fidelity.key(each) == "distilgpt2 AdamW 22 rtx-4060"]

    said = fidelity.answer(published)

    assert "problem" not in said
    assert (said["oom"], said["caps"]) == (0, {"xmem": 0})
    assert said["reserved_bytes"] == pytest.approx(published["measured_nvml_delta_bytes"], rel=0.05)
