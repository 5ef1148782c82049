"""How bad findings about accumulation are."""

from __future__ import annotations

from pathlib import Path

import pytest

from oomdoctor.lint.engine import check_module
from oomdoctor.lint.module import parse
from oomdoctor.lint.rules import ALL
from oomdoctor.results import Severity

RULES = {rule.code: rule for rule in ALL}


def severities(code: str, text: str) -> list[Severity]:
    """Severities of one rule's findings in a script."""
    return [hit.severity or rule.severity for rule, hit in check_module(parse(text, Path("train.py")), [RULES[code]])]


@pytest.mark.parametrize(
    ("optimizer", "clip", "expected"),
    [
        ("torch.optim.SGD", "", Severity.WARNING),
        ("torch.optim.AdamW", "", Severity.NOTE),
        (
            "torch.optim.AdamW",
            "torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n            ",
            Severity.WARNING,
        ),
        ("bitsandbytes.optim.AdamW8bit", "", Severity.NOTE),
    ],
)
def test_an_undivided_loss_is_mild_where_the_scale_does_not_matter(
    optimizer: str, clip: str, expected: Severity
) -> None:
    """Adam's steps hardly depend on the gradients' scale, unless they are clipped by their norm."""
    text = (
        RULES["OOM202"].bad.replace("torch.optim.SGD", optimizer).replace("optimizer.step()", clip + "optimizer.step()")
    )
    assert severities("OOM202", f"import bitsandbytes\n{text}") == [expected]


def test_a_schedule_that_is_made_elsewhere_is_a_note() -> None:
    """Nobody here can see what its length counts."""
    rule = RULES["OOM206"]
    given = rule.bad.replace("def train(loader,", "def train(scheduler, loader,")
    assert severities("OOM206", rule.bad) == [Severity.WARNING]
    assert severities("OOM206", given) == [Severity.NOTE]


def test_a_window_that_is_carried_on_is_a_note_and_a_lost_one_a_warning() -> None:
    """Gradients that reach the next epoch's first step are not lost; those that are zeroed before it are."""
    bad = RULES["OOM204"].bad
    lost = bad.replace("        for step", "        optimizer.zero_grad()\n        for step")
    assert severities("OOM204", bad) == [Severity.NOTE]
    assert severities("OOM204", lost) == [Severity.WARNING]
