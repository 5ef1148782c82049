"""The page of a probe: what it says and draws, and that nobody's text becomes markup, style or a request in it."""

from __future__ import annotations

import base64
import hashlib
import re
from dataclasses import replace
from functools import cache

import pytest
from documents import any_probe_document, gpt2, nothing_fits, trial
from every_format import wicked_probe
from hostile_documents import HOSTILE
from html_page import HtmlPage
from hypothesis import given, settings
from hypothesis import strategies as st
from memory_documents import many_modules, profiled, step_memory

from oomdoctor.report.plain_text import clean
from oomdoctor.report.probe.html import render
from oomdoctor.results import Accumulation, ModuleBytes, ProbeDocument, StepMemory, UniformPlan


class Page(HtmlPage):
    """The page of a probe."""

    def __init__(self, document: ProbeDocument) -> None:
        super().__init__(render(document))

    def count(self, tag: str, class_name: str) -> int:
        """How many elements have this class."""
        return sum(name == tag and class_name in (dict(attrs).get("class") or "").split() for name, attrs in self.tags)


def test_everything_is_there() -> None:
    """The page says the answer, the plan, what memory is made of, every trial, and where each number is from."""
    text = Page(profiled()).text
    for expected in [
        "micro-batch 19 fits; 20 runs out in backward, iteration 2",
        "18, which leaves at least 5% of the capacity free",
        "NVIDIA GeForce RTX 4090, compute capability 8.9",
        "run on a null GPU",
        "To reach a target batch of 256",
        "exact accumulation_steps=14 14 micro-batches: 4 of 19, 10 of 18",
        "19 is above the recommended 18",
        "Memory over two optimizer steps at micro-batch 19",
        "The peak is 20.47 GiB, in the backward of iteration 2.",
        "capacity 23.14 GiB",
        "peak 20.47 GiB, backward of iteration 2",
        "From left to right, allocations and frees in their order; not time.",
        "activations 15.01 GiB 73%",
        "transformer.h.*.mlp activations 9.00 GiB, optimizer state 434.00 MiB, weights 217.00 MiB, other 217.00 MiB",
        "9.85 GiB 48%",
        "the model itself activations 12.00 MiB",
        "outside the modules input 3.00 MiB",
        "maximum 19",
        "recommended 18",
        "capacity less 5%",
        "micro-batch 20: 23.14 GiB reserved at the peak, up to the failure",
        "4 trials in 1.2 s",
        "fits, recommended",
        "Memory by phase at micro-batch 19",
        "2 backward 1.87 GiB 22.62 GiB 98%",
        "The error at micro-batch 20 torch.OutOfMemoryError: CUDA out of memory.",
        "A null GPU, since --gpu rtx-4090 names a card that is not here.",
        "oomdoctor 0.1.0, python 3.11.9, torch 2.15.0+cu132, cuda 13.2",
    ]:
        assert expected in text


def test_charts_say_what_they_show() -> None:
    """Each chart has a title and a description for those who cannot see it, and a table with the same figures."""
    page = Page(profiled())
    charts = [dict(attrs) for tag, attrs in page.tags if tag == "svg" and dict(attrs).get("role") == "img"]
    named = sum(1 for tag, _ in page.tags if tag == "desc")
    assert named == 3
    assert all("aria-label" in chart or chart["class"] in ("chart", "plan") for chart in charts)
    assert "At the peak 20.47 GiB are allocated. Made of activations 15.01 GiB, workspace 3.61 GiB" in page.text
    header = "iteration micro-step phase in all weights gradients optimizer state activations input workspace"
    assert f"The figures: the peak of each phase by category {header}" in page.text
    assert "2 2 backward 20.47 GiB 472.00 MiB 472.00 MiB 944.00 MiB 15.01 GiB" in page.text


def test_dots_have_a_shape_an_outcome() -> None:
    """Trials are told apart by shape, and the legend has each shape that is there."""
    page = Page(profiled())
    assert (page.count("circle", "mark"), page.count("path", "oom")) == (3 + 2, 1 + 1)
    assert page.count("circle", "lowered") == 1 + 1
    assert "fits with 5% withheld" in page.text
    assert "out of memory, at what it had reached" in page.text
    assert "size limit" not in page.text


def test_without_memory_the_rest_is_there() -> None:
    """A probe that could not record its memory has no chart of it, and everything else."""
    page = Page(gpt2())
    assert "What the peak is for" not in page.text
    assert "Memory by phase at micro-batch 19" in page.text
    assert page.count("figure", "timeline") == 0
    assert page.count("figure", "trials") == 1


def test_memory_of_a_size_that_does_not_fit() -> None:
    """Memory that was recorded beyond the capacity is drawn through its line, and the page says by how much."""
    document = profiled()
    page = Page(replace(document, result=replace(document.result, capacity_bytes=16 * 1024**3)))
    assert "The peak is 20.47 GiB, in the backward of iteration 2, 4.47 GiB above the capacity." in page.text
    assert page.count("line", "capacity") == 2
    assert "above the capacity" not in Page(document).text


def test_nothing_fits() -> None:
    """Where nothing fits, the page says by how much, shows the error first, and has no plan and no maximum."""
    page = Page(nothing_fits())
    assert "The weights alone exceed the capacity by 3.00 GiB (26.14 GiB into 23.14 GiB)." in page.text
    assert page.text.index("The error while loading the model") < page.text.index("Peak memory against micro-batch")
    assert "To reach a target batch" not in page.text
    assert not re.search(r"maximum \d", page.text)
    assert page.count("polyline", "fitted") == 0


@pytest.mark.parametrize(
    "trials", [(trial(1),), (trial(1, peak_reserved_bytes=None),), ()], ids=["one", "bare", "none"]
)
def test_few_trials(trials: tuple[object, ...]) -> None:
    """One trial is a dot without a line; without figures there is no chart, and without trials no section."""
    page = Page(gpt2(trials=trials))
    assert page.count("polyline", "fitted") == 0
    assert ("Peak memory against micro-batch" in page.text) == bool(trials)


def test_much_is_cut() -> None:
    """Of five hundred trials the table has two hundred and says so; of ten thousand modules twelve and their rest."""
    page = Page(gpt2(trials=tuple(trial(size) for size in range(1, 501)), memory=many_modules()))
    assert "... and 300 more." in page.text
    assert "9988 smaller modules" in page.text
    assert len(render(gpt2(memory=many_modules()))) < 250_000


def test_plan_of_many_steps() -> None:
    """A plan of more steps than have room is a block a size."""
    plan = Accumulation(1000, 1, 400, (3,) * 200 + (2,) * 200, 1000, None, UniformPlan(3, 334, 1002))
    page = Page(gpt2(accumulation=plan))
    assert page.count("rect", "block") == 2
    assert "200 \u00d7 3" in page.text


def test_figures_that_disagree_are_shown() -> None:
    """A document from elsewhere, whose phases have fewer categories than others, has a page all the same."""
    found = step_memory()
    short = replace(found.phases[0], peak_categories=found.phases[0].peak_categories[:2])
    assert "1 1 forward 472.00 MiB" in Page(gpt2(memory=replace(found, phases=(short, *found.phases[1:])))).text


def test_the_page_needs_nothing_else() -> None:
    """There is no script, link, form, frame, picture or address in the page, and its policy forbids all of them."""
    page = Page(profiled())
    assert {tag for tag, _ in page.tags}.isdisjoint({"script", "link", "img", "iframe", "form", "a", "object", "base"})
    attributes = {name for _, attrs in page.tags for name, _ in attrs}
    assert attributes.isdisjoint({"src", "href", "style", "xlink:href", "id"})
    assert not any(name.startswith("on") for name in attributes)
    policies = [dict(attrs) for tag, attrs in page.tags if tag == "meta"]
    policy = next(meta["content"] for meta in policies if meta.get("http-equiv") == "Content-Security-Policy")
    digest = base64.b64encode(hashlib.sha256(page.style.encode()).digest()).decode()
    assert policy == f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"


# --- hostile text ----------------------------------------------------------------------------------------------------


def filled_with(text: str) -> ProbeDocument:
    """The sample with `text` in each place that a target or a saved document controls, modules included."""
    sample = profiled().result
    assert sample.memory is not None
    modules = tuple(ModuleBytes(text, part.category, part.allocated_bytes, 1) for part in sample.memory.modules)
    memory: StepMemory = replace(sample.memory, modules=modules, category_peaks=modules)
    wicked = wicked_probe(text)
    return replace(wicked, result=replace(wicked.result, memory=memory, accumulation=sample.accumulation))


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
    shown = render(filled_with(text))
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", shown)


@settings(max_examples=30)
@given(st.text(alphabet="<>&\"'/{}%#!-=a \n\x00\x1b\u202e", max_size=20) | st.text(max_size=20))
def test_any_text_changes_nothing(text: str) -> None:
    """No text at all adds a tag or an attribute, save that pairs of backticks are code."""
    plain = text.replace("`", "'")
    shown = plain if clean(plain) else "benign"
    assert Page(filled_with(shown)).tags == benign_tags()


@settings(max_examples=60)
@given(any_probe_document)
def test_never_raises(document: ProbeDocument) -> None:
    """Whatever a document holds, it makes a page whose tags are closed in order."""
    render(document).encode("utf-8")
    Page(document)
