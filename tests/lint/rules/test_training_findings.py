"""What the rules about training loops say of what they find, and how sure they are of it."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import lint_cases
import pytest

from oomdoctor.lint.engine import check_module
from oomdoctor.lint.module import parse
from oomdoctor.lint.rule import Hit
from oomdoctor.lint.rules import ALL
from oomdoctor.results import Severity

RULES = {rule.code: rule for rule in ALL}


def hit_in(code: str, text: str) -> Hit:
    """The only finding of one rule in a script."""
    ((_, hit),) = check_module(parse(dedent(text), Path("script.py")), [RULES[code]])
    return hit


def hit_of(code: str, name: str) -> Hit:
    """The only finding of one rule in a case."""
    return hit_in(code, lint_cases.case(f"{code}/{name}").text)


def severity_of(code: str, hit: Hit) -> Severity:
    """How bad a finding is."""
    return hit.severity or RULES[code].severity


@pytest.mark.parametrize(("name", "severity"), [("bad_top_level", Severity.WARNING), ("bad_attributes", Severity.NOTE)])
def test_a_model_that_is_not_seen_may_need_its_graph(name: str, severity: Severity) -> None:
    """A retained graph is a warning with a fix where the model is seen, a note without one where it may remember."""
    hit = hit_of("OOM104", name)
    assert severity_of("OOM104", hit) is severity
    assert bool(hit.edits) is (severity is Severity.WARNING)
    assert ("detach" in hit.help) is (severity is Severity.NOTE)


def test_a_helper_is_not_edited_for_one_caller() -> None:
    """A helper's `retain_graph` is found, and left for people to change: others may call it."""
    assert hit_of("OOM104", "bad_helper").edits == ()


@pytest.mark.parametrize(
    ("name", "severity", "word"),
    [
        ("bad_plain", Severity.NOTE, "every one of"),
        ("bad_no_sync_around_backward", Severity.WARNING, "no effect"),
        ("bad_always_no_sync", Severity.ERROR, "no pass"),
        ("bad_no_sync_off_by_one", Severity.ERROR, "before the step"),
    ],
)
def test_lost_time_is_milder_than_replicas_that_part(name: str, severity: Severity, word: str) -> None:
    """Missing `no_sync` is a note, a useless one a warning, and one that hides the last pass an error."""
    hit = hit_of("OOM208", name)
    assert severity_of("OOM208", hit) is severity
    assert word in hit.message


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("bad_plain", "nothing calls `zero_grad`"),
        ("bad_only_before_the_loop", "before the loop"),
        ("bad_once_an_epoch", "outside the loop over batches"),
        ("bad_other_branch", "in another branch"),
    ],
)
def test_why_gradients_are_not_zeroed_is_said(name: str, reason: str) -> None:
    """The message tells where the `zero_grad` stands that does not help, if there is one."""
    assert hit_of("OOM210", name).message.endswith(reason)


def test_a_zero_grad_that_is_commented_out_does_not_count() -> None:
    """Gradients are not zeroed by a comment."""
    text = RULES["OOM210"].bad + "        # optimizer.zero_grad()\n"
    assert "nothing calls" in hit_in("OOM210", text).message


def test_a_loop_that_ends_after_one_iteration_is_left_alone() -> None:
    """With `break` at the end of the body there is no second step."""
    assert not check_module(parse(RULES["OOM210"].bad + "        break\n", Path("script.py")), [RULES["OOM210"]])


def test_a_scaler_is_not_given_a_call_that_it_would_refuse() -> None:
    """`unscale_` is added where it runs once before each step, and not where a second one would raise."""
    assert hit_of("OOM212", "bad_plain").edits
    assert hit_of("OOM212", "bad_one_of_two").edits == ()
    assert hit_of("OOM212", "bad_unscaled_after").edits == ()


def test_unscaling_is_not_added_to_each_micro_step() -> None:
    """Where the step waits for a boundary and the clipping does not, `unscale_` would come twice: there is no fix."""
    text = lint_cases.case("OOM212/bad_at_the_boundary").text
    boundary = "        if (i + 1) % k == 0 or i + 1 == len(loader):\n"
    clip = "torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # expect: OOM212\n"
    moved = text.replace(boundary + "            " + clip, "        " + clip + boundary)
    assert moved != text
    assert hit_in("OOM212", moved).edits == ()


def test_a_second_step_is_told_from_a_wrong_one() -> None:
    """After `scaler.step` the gradients are right, and it is the step itself that is one too many."""
    assert "second time" in hit_of("OOM214", "bad_after_the_scaler").message
    assert "has scaled up" in hit_of("OOM214", "bad_plain").message


def test_what_makes_the_mean_is_named() -> None:
    """The message names what the loss is divided by, the loss function, or the model whose own loss it is."""
    assert "`mask[:, 1:].sum()`" in hit_of("OOM207", "bad_masked_mean").message
    assert "`F.cross_entropy`" in hit_of("OOM207", "bad_functional").message
    assert "`model`" in hit_of("OOM207", "bad_seq2seq_model").message


def test_which_layer_sees_micro_batches_is_named() -> None:
    """The message names the layer where the file has it."""
    assert "`BatchNorm2d`" in hit_of("OOM209", "bad_own_module").message
    assert "BatchNorm" in hit_of("OOM209", "bad_torchvision").message


def test_what_holds_the_graphs_is_named() -> None:
    """The message names the sum or the list."""
    assert "`summed`" in hit_of("OOM107", "bad_in_place").message
    assert "`losses`" in hit_of("OOM107", "bad_mean_of_list").message
