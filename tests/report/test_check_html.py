"""The page of a check: every entry in a table, the worst first in full, and nobody's text as markup."""

from __future__ import annotations

import re
from functools import cache

import pytest
from check_documents import LOST, any_check, broken, check, endless, filled_with, many, passed, without_answer
from hostile_documents import HOSTILE
from html_page import HtmlPage
from hypothesis import given, settings
from memory_documents import profiled

from oomdoctor.report.check import html as render
from oomdoctor.report.plain_text import clean
from oomdoctor.results import CheckDocument, Problem


class Page(HtmlPage):
    """The page of a check."""

    def __init__(self, document: CheckDocument) -> None:
        super().__init__(render(document))

    def classes(self, tag: str) -> list[str]:
        """The classes of each element of this kind."""
        return [dict(attrs).get("class") or "" for name, attrs in self.tags if name == tag]


def test_everything_is_there() -> None:
    """The page says how each entry ended, which limits are broken, what moved, and what to do."""
    text = Page(check(passed(), broken(probe=profiled().result), without_answer())).text
    for expected in [
        "2 of 3 entries did not pass: 1 in error, 1 failed",
        "entry card micro-batch steps verdict",
        "pretrain on rtx-4090 rtx-4090 19 14 failed",
        "vision local GPU - - error",
        "If these changes are intended, oomdoctor check --update writes them to the baseline",
        "failed train/model.py:build_model(depth=24) \u00b7 rtx-4090 pretrain on rtx-4090",
        "broken min-micro-batch micro-batch 6 fits, and at least 8 is asked for",
        "kept max-accumulation-steps 43 accumulation steps, of at most 64",
        "What changed since the baseline",
        "worse activations +412.00 MiB at micro-batch 8, +61 % in encoder.layers.*",
        "675.00 MiB 1.06 GiB +412.00 MiB",
        "worse maximum micro-batch 9 -> 6 9 6 -3",
        "Memory, trials and plan",
        "Memory over two optimizer steps at micro-batch 19",
        "Checked oomdoctor.toml against oomdoctor-baseline.json",
    ]:
        assert expected in text
    assert "--format html" not in text


def test_worst_first() -> None:
    """Problems come before broken limits, and these before what passed."""
    text = Page(check()).text
    positions = [
        text.index(f"{verdict} {target}")
        for verdict, target in (
            ("error", "train/vision.py"),
            ("failed", "train/model.py"),
            ("passed", "train.finetune"),
        )
    ]
    assert positions == sorted(positions)


def test_bars_have_the_colour_of_their_category() -> None:
    """A movement of a category is drawn in its colour, before and after; one of samples is not drawn."""
    parts = [name for name in Page(check(broken(probe=None))).classes("rect") if name.startswith("part")]
    assert parts == ["part activations"] * 2 + ["part weights"] * 2


def test_problem_keeps_its_lines() -> None:
    """A hint with lines to add and a traceback are shown as they were written; what cannot be seen is not hidden."""
    page = render(check(without_answer(Problem("no", LOST.hint, "a\n  b\x1b[31m\u202e<i>", 2))))
    assert "<pre>add these lines:\n\n    def make_batch(batch_size):\n        ...</pre>" in page
    assert "a\n  b\\x1b[31m\\u202e&lt;i&gt;</pre>" in page


def test_all_is_well() -> None:
    """A check that passed is a short page without advice."""
    page = Page(check(passed()))
    assert "1 entry passed" in page.text
    assert "What moved" not in page.text
    assert "broken" not in page.text


def test_endless_checks_are_cut() -> None:
    """Of ten thousand entries a thousand are in the table and sixty in full, and the page says how many are not."""
    page = Page(many(10_000))
    assert sum(tag == "h2" for tag, _ in page.tags) == 60
    assert len([name for name in page.classes("td") if name == "place strong"]) == 1000
    assert "... and 9000 more." in page.text
    assert "9940 more entries are in the table alone." in page.text
    text = Page(endless(10_000)).text
    assert text.count("... and 9960 more.") == 2
    assert len(render(endless(10_000))) < 250_000


def test_no_entry() -> None:
    """A document without an entry has a page."""
    assert "nothing to check" in Page(check_without_entries()).text


def check_without_entries() -> CheckDocument:
    """A check of nothing."""
    return check(passed(), entries=())


@cache
def benign_tags() -> list[tuple[str, tuple[tuple[str, str | None], ...]]]:
    """What the page is made of where no text is hostile."""
    return Page(filled_with("benign")).tags


@pytest.mark.parametrize("text", HOSTILE, ids=lambda text: text[:20])
def test_hostile_text_is_shown_and_changes_nothing(text: str) -> None:
    """Tags and attributes are the same whatever the document's text says, and the text is there to read."""
    page = Page(filled_with(text))
    assert page.tags == benign_tags()
    assert clean(text)[:150].strip() in page.text
    shown = render(filled_with(text))
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", shown)


@settings(max_examples=50)
@given(any_check)
def test_never_raises(document: CheckDocument) -> None:
    """Whatever a document holds, it makes a page whose tags are closed in order."""
    render(document).encode("utf-8")
    Page(document)
