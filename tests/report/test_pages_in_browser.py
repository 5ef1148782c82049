"""Pages in a real browser: nothing overflows, nothing runs, nothing is asked for, and both schemes can be read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from check_documents import broken, check, passed, without_answer
from check_documents import many as many_entries
from chromium import BROWSER, Browser, browser
from diagnosis_documents import comparison, not_memory, nothing_found, out_of_memory, snapshot
from documents import MIB, gpt2, nothing_fits, trial
from every_format import rendered, wicked
from hostile_documents import HOSTILE
from lint_documents import clean, many, mistakes
from memory_documents import many_modules, profiled, step_memory

from oomdoctor.results import Accumulation, Document, MicroBatch, Outcome, UniformPlan

pytestmark = pytest.mark.skipif(BROWSER is None, reason="needs Chromium")

WIDTHS = [400, 1280]
THREE_STEPS = Accumulation(256, 1, 3, (86, 85, 85), 256, None, UniformPlan(86, 3, 258))
DOCUMENTS: dict[str, Document] = {
    "oom": out_of_memory(comparison=comparison()),
    "no history": out_of_memory(snapshots=(snapshot(has_history=False, timeline=()),)),
    "not memory": not_memory(),
    "nothing": nothing_found(),
    "findings": mistakes(),
    "clean": clean(),
    "many findings": many(10_000),
    "probe": profiled(),
    "probe, nothing fits": nothing_fits(),
    "probe, one trial": gpt2(trials=(trial(1),), accumulation=THREE_STEPS),
    "probe, doublings": gpt2(
        trials=(
            *(trial(2**power, peak_reserved_bytes=(900 + 20 * 2**power) * MIB) for power in range(11)),
            trial(1025, Outcome.OOM),
            trial(1100, Outcome.LIMIT),
            trial(1300, Outcome.FAILED),
        ),
        micro_batch=MicroBatch(1024, 1024, "memory"),
    ),
    "probe, small on a large card": replace(profiled(), result=replace(profiled().result, capacity_bytes=2**37)),
    "probe, 500 trials": gpt2(trials=tuple(trial(size) for size in range(1, 501))),
    "probe, 10,000 modules": gpt2(memory=many_modules()),
    "check": check(passed(), broken(probe=profiled().result), without_answer()),
    "check, many entries": many_entries(300),
}
CHARTS = [name for name in DOCUMENTS if name.startswith("probe")] + ["oom", "check"]
OVERFLOW = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
CONTRAST = """
(() => {
  const light = colour => {
    const [r, g, b] = colour.match(/[\\d.]+/g).slice(0, 3).map(part => part / 255)
      .map(part => part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = element => {
    for (; element; element = element.parentElement) {
      const colour = getComputedStyle(element).backgroundColor;
      if (colour !== "rgba(0, 0, 0, 0)") return colour;
    }
    return "rgb(255, 255, 255)";
  };
  // A label in a chart has a halo of its own or stands on a block.
  const halo = element => element.matches(".count")
    ? getComputedStyle(element.closest("svg").querySelector("rect")).fill : getComputedStyle(element).stroke;
  let least = 21;
  for (const element of document.querySelectorAll("body *")) {
    if (![...element.childNodes].some(node => node.nodeType === 3 && node.data.trim())) continue;
    if (element.matches("title, desc, tspan")) continue;
    const [own, under] = element.closest("svg")
      ? [getComputedStyle(element).fill, halo(element)] : [getComputedStyle(element).color, behind(element)];
    const [a, b] = [light(own), light(under)].sort((x, y) => x - y);
    least = Math.min(least, (b + 0.05) / (a + 0.05));
  }
  return least;
})()
"""
LABELS = """
(() => {
  const problems = [];
  for (const chart of document.querySelectorAll(".chart, .plan")) {
    const box = chart.getBoundingClientRect();
    const labels = [...chart.querySelectorAll("text")]
      .map(label => ({words: label.textContent, box: label.getBoundingClientRect()}))
      .filter(label => label.box.width);
    for (const [index, {words, box: own}] of labels.entries()) {
      // A number under the axis may reach over the end of the line that it is centred under.
      if (own.left < box.left - 8 || own.right > box.right + 9) problems.push(words + " leaves the chart");
      for (const {words: other, box: its} of labels.slice(index + 1)) {
        const across = Math.min(own.right, its.right) - Math.max(own.left, its.left);
        // Letters are lower than their box.
        const down = Math.min(own.bottom, its.bottom) - Math.max(own.top, its.top);
        if (across > 1 && down > 4) problems.push(words + " lies on " + other);
      }
    }
  }
  return problems;
})()
"""


@pytest.fixture(scope="module")
def window(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """One browser for all tests."""
    with browser(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


def opened(window: Browser, document: Document, path: Path, width: int, *, dark: bool = False) -> None:
    """Show a document's page, having forgotten what came before."""
    path.write_text(rendered(document, "html"), encoding="utf-8")
    window.requests.clear()
    window.complaints.clear()
    window.show(path, width, dark=dark)


@pytest.mark.parametrize("name", DOCUMENTS)
def test_page_fits_and_stays_alone(window: Browser, tmp_path: Path, name: str) -> None:
    """No page is wider than its window, asks for anything but itself, or makes the browser complain."""
    page = tmp_path / "report.html"
    opened(window, DOCUMENTS[name], page, WIDTHS[0])
    for width in WIDTHS:
        window.resize(width)
        assert window.value(OVERFLOW) <= 0
    assert window.requests == [page.as_uri()]
    assert window.complaints == []
    assert window.value("getComputedStyle(document.body).margin") == "0px"  # its policy lets its own style through


@pytest.mark.parametrize("command", ["diagnose", "lint", "probe", "check"])
@pytest.mark.parametrize("text", HOSTILE, ids=lambda text: text[:20])
def test_hostile_text_is_harmless(window: Browser, tmp_path: Path, text: str, command: str) -> None:
    """Hostile text runs nothing, loads nothing, hides nothing and widens nothing."""
    page = tmp_path / "report.html"
    opened(window, wicked(command, text), page, WIDTHS[0])
    for width in WIDTHS:
        window.resize(width)
        assert window.value("innerWidth") == width
        assert window.value(OVERFLOW) <= 0
    assert window.value("document.title").endswith("oomdoctor")
    assert window.value("document.scripts.length + document.images.length + document.links.length") == 0
    assert window.value("getComputedStyle(document.body).display") == "block"
    assert window.requests == [page.as_uri()]


@pytest.mark.parametrize("name", ["oom", "findings", "probe", "probe, nothing fits", "check"])
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_words_can_be_read_in_both_schemes(window: Browser, tmp_path: Path, name: str, dark: bool) -> None:
    """Every word has the contrast that WCAG asks of small text, and the scheme is the reader's."""
    opened(window, DOCUMENTS[name], tmp_path / "report.html", 1280, dark=dark)
    assert window.value(CONTRAST) >= 4.5
    background = window.value("getComputedStyle(document.body).backgroundColor")
    assert background == ("rgb(16, 21, 28)" if dark else "rgb(246, 247, 249)")


@pytest.mark.parametrize("name", CHARTS)
def test_labels_lie_in_their_chart_and_on_nothing(window: Browser, tmp_path: Path, name: str) -> None:
    """No label leaves its chart or lies on another one, however narrow or wide the page is, folded or not."""
    opened(window, DOCUMENTS[name], tmp_path / "report.html", WIDTHS[0])
    window.value("document.querySelectorAll('details').forEach(folded => { folded.open = true })")
    # Above and below the widths at which the page changes its layout, too.
    for width in (*WIDTHS, 320, 640, 641, 900, 901):
        window.resize(width)
        assert (width, window.value(LABELS)) == (width, [])
        assert window.value(OVERFLOW) <= 0


def test_areas_are_drawn(window: Browser, tmp_path: Path) -> None:
    """Every category's area has a surface."""
    opened(window, DOCUMENTS["oom"], tmp_path / "report.html", 400)
    areas = window.value("[...document.querySelectorAll('.chart polygon')].map(area => area.getBBox().height)")
    assert len(areas) == 7
    assert min(areas) > 0


def test_dots_lie_where_their_trials_are(window: Browser, tmp_path: Path) -> None:
    """The dots of a probe are round and whole on every page, and lie in their chart from left to right."""
    opened(window, DOCUMENTS["probe"], tmp_path / "report.html", 400)
    dots = window.value(
        "[...document.querySelectorAll('.trials .place > .mark')].map(mark => mark.getBoundingClientRect())"
        ".map(box => [box.left, box.width, box.height])"
    )
    assert [round(width) for _, width, _ in dots] == [round(height) for _, _, height in dots]
    topmost = window.value(
        "(mark => { mark.scrollIntoView(); const box = mark.getBoundingClientRect();"
        " return document.elementFromPoint(box.left + 2.5, box.top + 2.5) === mark; })"
        "(document.querySelector('.trials .place > .mark'))"
    )
    assert topmost
    left, right = window.value(
        "(box => [box.left, box.right])(document.querySelector('.trials .chart[role=img]').getBoundingClientRect())"
    )
    one, nineteen, twenty, eighteen = (left_edge for left_edge, _, _ in dots)
    assert left < one < eighteen < nineteen < twenty < right


@pytest.mark.parametrize("text", HOSTILE[-6:], ids=lambda text: text[:20])
def test_hostile_modules_are_harmless(window: Browser, tmp_path: Path, text: str) -> None:
    """Modules of any name leave the page as wide as its window."""
    modules = tuple(replace(part, module=text) for part in step_memory().modules)
    opened(window, gpt2(memory=step_memory(modules=modules)), tmp_path / "report.html", WIDTHS[0])
    for width in WIDTHS:
        window.resize(width)
        assert window.value(OVERFLOW) <= 0


def test_print_shows_what_is_folded(window: Browser, tmp_path: Path) -> None:
    """A printed page has what a reader would have unfolded, and no chart is cut in two."""
    page = tmp_path / "report.html"
    page.write_text(rendered(DOCUMENTS["check"], "html"), encoding="utf-8")
    folded = "[...document.querySelectorAll('details table')].map(table => table.getClientRects().length)"
    shown = (
        "[...document.querySelectorAll('details table, details figure')]"
        ".map(part => part.checkVisibility({contentVisibilityAuto: true}))"
    )
    window.show(page, 1280)
    assert set(window.value(shown)) == {False}
    window.show(page, 1280, media="print")
    assert set(window.value(shown)) == {True}
    assert 0 not in window.value(folded)
    assert window.value(
        "[...document.querySelectorAll('figure')].every(part => getComputedStyle(part).breakInside === 'avoid')"
    )


@pytest.mark.parametrize("name", ["oom", "probe"])
def test_prints_in_black_on_white(window: Browser, tmp_path: Path, name: str) -> None:
    """A page that is printed from a dark screen is light, and makes a PDF of a few pages."""
    page = tmp_path / "report.html"
    page.write_text(rendered(DOCUMENTS[name], "html"), encoding="utf-8")
    window.show(page, 1280, dark=True, media="print")
    assert window.value("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert window.value("getComputedStyle(document.body).color") == "rgb(0, 0, 0)"
    printed = window.pdf()
    assert printed.startswith(b"%PDF")
    assert printed.count(b"/Type /Page\n") + printed.count(b"/Type /Page ") <= 12


def test_screenshot_has_a_picture(window: Browser, tmp_path: Path) -> None:
    """The browser draws the page: what is looked at by eye comes from the same call."""
    opened(window, DOCUMENTS["oom"], tmp_path / "report.html", 1280)
    window.screenshot(tmp_path / "report.png")
    assert (tmp_path / "report.png").stat().st_size > 50_000
