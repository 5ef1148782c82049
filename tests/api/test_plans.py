"""Each document says what plan it has, or why it has none."""

from __future__ import annotations

from dataclasses import replace

import pytest
from check_documents import check, passed, without_answer
from documents import gpt2, nothing_fits

from oomdoctor.errors import NoAnswerError, UsageError


def test_a_probe_has_its_plan() -> None:
    """The plan of a probe is its accumulation, of the document as of the result."""
    document = gpt2()
    assert document.result.accumulation is not None
    assert document.plan is document.result.plan is document.result.accumulation


def test_without_a_plan_the_reason_is_said() -> None:
    """Where nothing fits, no size that ran reaches the target, or there is no target, the error says which."""
    with pytest.raises(NoAnswerError, match="nothing fits") as refusal:
        _ = nothing_fits().plan
    assert refusal.value.exit_code == 3
    with pytest.raises(NoAnswerError, match="no sizes that ran reach the target batch"):
        _ = replace(gpt2().result, accumulation=None, target_samples=256).plan
    with pytest.raises(NoAnswerError, match="no target batch was given"):
        _ = replace(gpt2().result, accumulation=None, target_samples=None).plan


def test_a_check_of_one_entry_has_its_plan() -> None:
    """A check's plan is that of its one entry."""
    document = check(passed())
    probe = document.result.entries[0].probe
    assert probe is not None
    assert document.plan is probe.accumulation


def test_a_check_of_several_entries_has_none_of_its_own() -> None:
    """With several entries it says how to take one's; an entry without an answer has no plan."""
    with pytest.raises(UsageError, match="2 entries, each with a plan") as refusal:
        _ = check(passed(), passed(name="other")).plan
    assert "result.entries[0].probe.plan" in str(refusal.value.hint)
    with pytest.raises(UsageError, match="has no answer"):
        _ = check(without_answer()).plan
