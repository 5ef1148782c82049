"""The documentation's site: built strictly, complete, and read without any other server."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from chromium import BROWSER, Browser, browser
from running import ROOT
from sharing import directory_of, shared

# Attributes that make a browser fetch something by itself; links that a reader follows are not among them.
_FETCHED = re.compile(
    r"<(?:script|img|iframe|source|video|audio|embed|object|use|image)\b[^>]*?\s(?:src|srcset|data|href|xlink:href)=[\"']?(?:https?:)?//"
    r"|<link\b(?![^>]*rel=[\"']?canonical)[^>]*?\shref=[\"']?(?:https?:)?//"
    r"|@import\s+[\"']?(?:url\()?(?:https?:)?//|url\([\"']?(?:https?:)?//",
    re.IGNORECASE,
)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site as `make docs` builds it."""
    folder = directory_of(tmp_path_factory) / "site"
    shared(folder.with_name("site.log"), lambda: _build(folder))
    return folder


def _build(folder: Path) -> str:
    ended = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stderr


def _page(site: Path, name: str) -> str:
    return (site / f"{name}.html").read_text(encoding="utf-8")


def test_each_page_is_built(site: Path) -> None:
    """Each page of `docs/` is in the site, the two that are made from elsewhere too, and no script of ours is."""
    expected = {str(path.relative_to(ROOT / "docs").with_suffix(".html")) for path in (ROOT / "docs").rglob("*.md")}
    built = {str(path.relative_to(site)) for path in site.rglob("*.html")}
    assert built == expected | {"rules.html", "contributing.html", "404.html"}
    assert not list(site.rglob("*.py"))


def test_the_rules_are_those_of_lint(site: Path) -> None:
    """The page of rules has each rule with its code, its name, what is bad about it and the code after it."""
    from oomdoctor.lint.rules import ALL

    page = _page(site, "rules")
    assert re.findall(r'<h2 id="(oom\d+)"', page) == [rule.code.lower() for rule in ALL]
    assert all(rule.name in page for rule in ALL)
    assert page.count(">Why that is bad<") == len(ALL)


def test_the_commands_options_are_on_their_pages(site: Path) -> None:
    """The page of each command ends with what its `--help` prints."""
    from oomdoctor.cli import app

    names = [str(command.callback.__name__) for command in app.registered_commands if command.callback]
    assert {path.stem for path in (site / "commands").glob("*.html")} == set(names)
    assert all(f"Usage: oomdoctor {name}" in _page(site, f"commands/{name}") for name in names)


def test_the_functions_docstrings_are_on_the_python_page(site: Path) -> None:
    """The page of the Python API has the signature and the arguments of each public name."""
    import oomdoctor

    page = _page(site, "python")
    assert set(re.findall(r'id="oomdoctor\.(\w+)"', page)) == set(oomdoctor.__all__)
    assert page.count("<th>") > len(oomdoctor.__all__)  # tables of parameters
    assert "target_batch" in page


def test_nothing_is_fetched_from_elsewhere(site: Path) -> None:
    """No page, style or drawing names a resource of another server."""
    files = [path for kind in ("html", "css", "svg") for path in site.rglob(f"*.{kind}")]
    assert len(files) > 20
    assert [str(path) for path in files if _FETCHED.search(path.read_text(encoding="utf-8"))] == []


def test_a_foreign_resource_is_seen() -> None:
    """What the test above looks for is found: styles, fonts, scripts and pictures of another server, and no links."""
    fetched = (
        '<link href="https://fonts.gstatic.com" rel="preconnect">',
        '<script async src="//unpkg.com/mermaid.js"></script>',
        "<img alt=x src=https://example.com/x.png>",
        "@import url(https://fonts.googleapis.com/css)",
        "src: url('https://example.com/font.woff2')",
    )
    assert all(map(_FETCHED.search, fetched))
    assert not _FETCHED.search('<a href="https://pytorch.org">PyTorch</a>')


@pytest.mark.skipif(BROWSER is None, reason="no Chromium")
def test_a_browser_asks_for_nothing_but_the_sites_own_files(site: Path, tmp_path: Path) -> None:
    """Opened from the file system, pages ask for files of the site alone, all of which are there, and search finds."""
    with browser(tmp_path / "profile") as page:
        for name in ("index", "how-it-works", "commands/probe", "python", "rules"):
            page.show(site / f"{name}.html", 1200)
        found = _searched(page, "fragmentation")
        requests, complaints = page.requests, page.complaints
    assert len(requests) > 10
    assert [url for url in requests if not url.startswith((site.as_uri(), "data:", "blob:"))] == []
    assert complaints == []
    assert any("how-it-works.html" in link for link in found)


def _searched(page: Browser, word: str) -> list[str]:
    """Return where the results of the site's search for a word lead."""
    page.value('document.querySelector(".md-search__input").focus()')
    page.value(f'Object.assign(document.querySelector(".md-search__input"), {{value: "{word}"}})')
    page.value('document.querySelector(".md-search__input").dispatchEvent(new Event("keyup"))')
    links = "[...document.querySelectorAll('.md-search-result__link')].map(link => link.href)"
    deadline = time.monotonic() + 30
    while not (found := page.value(links)):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    return list(found)
