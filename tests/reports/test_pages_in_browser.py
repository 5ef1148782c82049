"""Pages in a real browser: nothing overflows, nothing runs, nothing is asked for, and both schemes can be read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from chromium import BROWSER, Browser, browser
from diagnosis_documents import comparison, not_memory, nothing_found, out_of_memory, snapshot
from every_format import rendered, wicked
from hostile_documents import HOSTILE
from lint_documents import clean, many, mistakes

from oomdoctor.results import Document

pytestmark = pytest.mark.skipif(BROWSER is None, reason="needs Chromium")

WIDTHS = [400, 1280]
DOCUMENTS: dict[str, Document] = {
    "oom": out_of_memory(comparison=comparison()),
    "no history": out_of_memory(snapshots=(snapshot(has_history=False, timeline=()),)),
    "not memory": not_memory(),
    "nothing": nothing_found(),
    "findings": mistakes(),
    "clean": clean(),
    "many findings": many(10_000),
}
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
  let least = 21;
  for (const element of document.querySelectorAll("body *")) {
    if (![...element.childNodes].some(node => node.nodeType === 3 && node.data.trim())) continue;
    if (element.closest("svg")) continue;
    const [a, b] = [light(getComputedStyle(element).color), light(behind(element))].sort((x, y) => x - y);
    least = Math.min(least, (b + 0.05) / (a + 0.05));
  }
  return least;
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


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", DOCUMENTS)
def test_page_fits_and_stays_alone(window: Browser, tmp_path: Path, name: str, width: int) -> None:
    """No page is wider than its window, asks for anything but itself, or makes the browser complain."""
    page = tmp_path / "report.html"
    opened(window, DOCUMENTS[name], page, width)
    assert window.value(OVERFLOW) <= 0
    assert window.requests == [page.as_uri()]
    assert window.complaints == []
    assert window.value("getComputedStyle(document.body).margin") == "0px"  # its policy lets its own style through


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("command", ["diagnose", "lint"])
@pytest.mark.parametrize("text", HOSTILE, ids=lambda text: text[:20])
def test_hostile_text_is_harmless(window: Browser, tmp_path: Path, text: str, command: str, width: int) -> None:
    """Hostile text runs nothing, loads nothing, hides nothing and widens nothing."""
    page = tmp_path / "report.html"
    opened(window, wicked(command, text), page, width)
    assert window.value("document.title").endswith("oomdoctor")
    assert window.value("document.scripts.length + document.images.length + document.links.length") == 0
    assert window.value(OVERFLOW) <= 0
    assert window.value("getComputedStyle(document.body).display") == "block"
    assert window.requests == [page.as_uri()]


@pytest.mark.parametrize("name", ["oom", "findings"])
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_words_can_be_read_in_both_schemes(window: Browser, tmp_path: Path, name: str, dark: bool) -> None:
    """Every word has the contrast that WCAG asks of small text, and the scheme is the reader's."""
    opened(window, DOCUMENTS[name], tmp_path / "report.html", 1280, dark=dark)
    assert window.value(CONTRAST) >= 4.5
    background = window.value("getComputedStyle(document.body).backgroundColor")
    assert background == ("rgb(16, 21, 28)" if dark else "rgb(246, 247, 249)")


def test_chart_is_drawn_and_its_labels_are_in_it(window: Browser, tmp_path: Path) -> None:
    """Every category's area has a surface, and no label leaves the chart's edges even on a narrow screen."""
    opened(window, DOCUMENTS["oom"], tmp_path / "report.html", 400)
    areas = window.value("[...document.querySelectorAll('.chart polygon')].map(area => area.getBBox().height)")
    assert len(areas) == 7
    assert min(areas) > 0
    outside = window.value(
        "(() => { const box = document.querySelector('.chart').getBoundingClientRect();"
        " return [...document.querySelectorAll('.chart text')].filter(text => {"
        " const own = text.getBoundingClientRect(); return own.left < box.left - 3 || own.right > box.right + 3; })"
        ".map(text => text.textContent) })()"
    )
    assert outside == []


def test_prints_in_black_on_white(window: Browser, tmp_path: Path) -> None:
    """A page that is printed from a dark screen is light, and makes a PDF of a few pages."""
    page = tmp_path / "report.html"
    page.write_text(rendered(DOCUMENTS["oom"], "html"), encoding="utf-8")
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
