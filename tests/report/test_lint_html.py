"""The page of what lint found: what it says, and that nobody's code becomes markup, style or a request in it."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
from clock import within
from hostile_documents import HOSTILE
from html_page import HtmlPage
from hypothesis import given, settings
from hypothesis import strategies as st
from lint_documents import LOSS, UNDECODABLE, any_lint, clean, filled_with, many, mistakes

from oomdoctor.report.lint import MOST_ON_PAGE as MOST_FINDINGS
from oomdoctor.report.lint import html as render
from oomdoctor.report.plain_text import visible
from oomdoctor.results import LintDocument


def page(document: LintDocument) -> HtmlPage:
    """The page of a document."""
    return HtmlPage(render(document))


def test_everything_is_there() -> None:
    """The page has the sum, each file with its findings, the line, what to write, and the files that were not read."""
    text = page(mistakes()).text
    for expected in [
        "3 findings (1 error, 1 warning, 1 note) in 12 files",
        "1 can be fixed with --fix . 2 are suppressed. 1 file could not be linted.",
        "notebooks/fine tune.ipynb 1 note",
        "train/loop.py 1 error, 1 warning",
        "losses keeps the graph of every step alive.",
        "error OOM102 loss-keeps-graph · in Trainer.train",
        "42:9 losses.append(loss)",
        "Append loss.item() .",
        "cell 7, 3:5 loss.backward(",
        "· --fix puts it right",
        "Not linted file why train/old.py:3:7 Python 2: print without parentheses.",
        "12 files, 3410 lines, 3 rules; 30 files without torch were skipped.",
        "oomdoctor 0.1.0, python 3.11.9",
    ]:
        assert expected in text


def test_what_is_meant_is_marked() -> None:
    """In the line, the part that a finding is about is marked, and the line keeps its spaces."""
    assert "</span>        <mark>losses.append(loss)</mark></code></pre>" in render(mistakes())
    text = render(mistakes(replace(LOSS, column=10, end_column=12)))
    assert "        l<mark>os</mark>ses.append(loss)</code>" in text


def test_clean() -> None:
    """Where nothing was found the page says so and has no section."""
    found = page(clean())
    assert "No findings in 12 files" in found.text
    assert not any(tag in ("section", "table") for tag, _ in found.tags)


def test_finding_without_its_line() -> None:
    """Without the line its number is there still."""
    assert "42:9 Append loss.item() ." in page(mistakes(replace(LOSS, source=""))).text
    assert "notebooks/empty.ipynb:cell 2 Is no notebook." in page(clean(unreadable=(UNDECODABLE,))).text


def test_page_is_alone() -> None:
    """There is no script, link, form, frame, picture or address in the page."""
    tags = {tag for tag, _ in page(mistakes()).tags}
    assert tags.isdisjoint({"script", "link", "img", "iframe", "form", "a", "object", "base"})


@cache
def benign_tags() -> list[tuple[str, tuple[tuple[str, str | None], ...]]]:
    """What the page is made of where no text is hostile."""
    return page(filled_with("benign")).tags


@pytest.mark.parametrize("text", HOSTILE, ids=lambda text: text[:20])
def test_hostile_text_is_shown_and_changes_nothing(text: str) -> None:
    """Tags and attributes are the same whatever the code says, and the text is there to read."""
    found = page(filled_with(text))
    assert found.tags == benign_tags()
    assert " ".join(visible(text)[:100].split()) in found.text


@settings(max_examples=60)
@given(st.text(alphabet="<>&\"'/{}%#!-=a \n\x00\x1b\u202e", max_size=20) | st.text(max_size=20))
def test_any_text_changes_nothing(text: str) -> None:
    """No text at all adds a tag or an attribute, save that pairs of backticks are code."""
    shown = text.replace("`", "'")
    assert page(filled_with(shown if shown.strip() else "benign")).tags == benign_tags()


@given(any_lint)
def test_never_raises(document: LintDocument) -> None:
    """Whatever a document holds, it makes a page whose tags are closed in order."""
    page(document)
    render(document).encode("utf-8")


def test_ten_thousand_findings() -> None:
    """Of ten thousand findings the first thousand are shown and the others counted, in seconds and megabytes."""
    document = many(10_000)
    with within(10):
        text = render(document)
    assert len(text) < 2_000_000
    assert text.count("<mark>") == MOST_FINDINGS
    assert "... and 9000 more." in text
    assert "10000 findings" in text
