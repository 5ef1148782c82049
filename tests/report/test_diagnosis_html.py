"""The page of a diagnosis: what it says, and that nobody's text becomes markup, style or a request in it."""

from __future__ import annotations

import base64
import hashlib
import re
from dataclasses import replace
from functools import cache

import pytest
from diagnosis_documents import (
    FACTS,
    GIB,
    MIB,
    any_diagnosis,
    comparison,
    not_memory,
    nothing_found,
    occurrence,
    out_of_memory,
)
from hostile_documents import HOSTILE, filled_with
from html_page import HtmlPage
from hypothesis import given, settings
from hypothesis import strategies as st

from oomdoctor.report.diagnose.html import render
from oomdoctor.report.plain_text import clean
from oomdoctor.results import DiagnosisDocument, Facts


class Page(HtmlPage):
    """The page of a diagnosis."""

    def __init__(self, document: DiagnosisDocument) -> None:
        super().__init__(render(document))


def test_everything_is_there() -> None:
    """The page says what happened, why, what to change, and shows every table of the snapshots."""
    text = Page(out_of_memory(comparison=comparison())).text
    for expected in [
        "GPU 0 ran out of memory in backward, step 412",
        "1.92 GiB asked for, 1.41 GiB of 23.64 GiB free, 18.76 GiB in tensors",
        "Your line, train/loop.py:112 in train_one_epoch",
        "loss.backward()",
        "Tried to allocate 1.92 GiB.",
        "The batch is too large",
        "likely Activations are 10.67 GiB",
        "A leak across steps",
        "frees up to 5.33 GiB",
        "model.gradient_checkpointing_enable()",
        "process 4711 1.70 GiB 7%",
        "reserved by PyTorch 20.04 GiB",
        "Memory rose steadily",
        "Its history has 4440 events, older ones are lost.",
        "capacity 23.64 GiB",
        "peak 18.76 GiB",
        "activations 10.67 GiB 57%",
        "weights = torch.softmax(scores, dim=-1)",
        "softmax (torch/nn/functional.py:2140)",
        "2.00 MiB in 10 blocks to 80.00 MiB in 412 blocks",
        "37 of 214 segments hold live and free blocks at once",
        "before before.pickle after after.pickle",
        "activations 8.00 GiB 10.67 GiB +2.67 GiB",
        "oomdoctor run -- train.py",
        "In a container the process ids are the host's.",
        "NCCL error: remote process exited",
        "Read train.log, snapshot-rank0.pickle",
        "oomdoctor 0.1.0, python 3.11.9",
    ]:
        assert expected in text


@pytest.mark.parametrize("document", [nothing_found(), not_memory()], ids=lambda document: document.status)
def test_what_is_not_there_has_no_section(document: DiagnosisDocument) -> None:
    """A page about little is a short page."""
    page = Page(document)
    assert "What to change" not in page.text
    assert not any(tag == "table" for tag, _ in page.tags)


def test_backticks_are_code() -> None:
    """What is code in a sentence is code on the page, and nobody's markup comes with it."""
    document = out_of_memory()
    remedy = replace(document.result.remedies[0], change="write `<b>x</b>` and `y`", cost="a single ` stays")
    page = render(replace(document, result=replace(document.result, remedies=(remedy,))))
    assert "<code>&lt;b&gt;x&lt;/b&gt;</code> and <code>y</code>" in page
    assert "a single ` stays" in page


def test_the_page_needs_nothing_else() -> None:
    """There is no script, link, form, frame, picture or address in the page, and its policy forbids all of them."""
    page = Page(out_of_memory(comparison=comparison()))
    assert {tag for tag, _ in page.tags}.isdisjoint({"script", "link", "img", "iframe", "form", "a", "object", "base"})
    attributes = {name for _, attrs in page.tags for name, _ in attrs}
    assert attributes.isdisjoint({"src", "href", "style", "xlink:href"})
    assert not any(name.startswith("on") for name in attributes)
    policies = [dict(attrs) for tag, attrs in page.tags if tag == "meta"]
    policy = next(meta["content"] for meta in policies if meta.get("http-equiv") == "Content-Security-Policy")
    digest = base64.b64encode(hashlib.sha256(page.style.encode()).digest()).decode()
    assert policy == f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"


def test_style_asks_for_nothing() -> None:
    """The style sheet imports nothing and draws no picture from elsewhere."""
    style = Page(nothing_found()).style
    assert not re.search(r"url\(|@import|@font-face|expression", style)
    assert "prefers-color-scheme: dark" in style
    assert "@media print" in style


@cache
def benign_tags() -> list[tuple[str, tuple[tuple[str, str | None], ...]]]:
    """What the page is made of where no text is hostile."""
    return Page(filled_with("benign")).tags


@pytest.mark.parametrize("text", HOSTILE, ids=lambda text: text[:20])
def test_hostile_text_is_shown_and_changes_nothing(text: str) -> None:
    """Tags and attributes are the same whatever the document's text says, and the text is there to read."""
    page = Page(filled_with(text))
    assert page.tags == benign_tags()
    assert clean(text)[:500].strip() in page.text
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", render(filled_with(text)))


@settings(max_examples=40)
@given(st.text(alphabet="<>&\"'/{}%#!-=a \n\x00\x1b\u202e", max_size=20) | st.text(max_size=20))
def test_any_text_changes_nothing(text: str) -> None:
    """No text at all adds a tag or an attribute, save that pairs of backticks are code."""
    plain = text.replace("`", "'")
    shown = plain if clean(plain) else "benign"
    assert Page(filled_with(shown)).tags == benign_tags()


@given(any_diagnosis)
def test_never_raises(document: DiagnosisDocument) -> None:
    """Whatever a document holds, it makes a page whose tags are closed in order."""
    render(document).encode("utf-8")
    Page(document)


def test_endless_lines_are_cut() -> None:
    """A message of a megabyte does not make a page of one."""
    assert len(render(out_of_memory(occurrences=(occurrence(message="x" * MIB),)))) < 250_000


def test_facts_without_a_whole_make_no_bar() -> None:
    """Numbers that add up to nothing are listed."""
    facts = Facts(tried_bytes=2 * GIB, user_line=FACTS.user_line)
    text = Page(out_of_memory(facts=facts, snapshots=())).text
    assert "What the error tells asked for 2.00 GiB" in text
