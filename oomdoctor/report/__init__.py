"""Reports: a folder a document, a file a format, and beside the folders what they share.

A document's folder has the name of its line in `oomdoctor.results.document.DOCUMENTS` and these files:

- `text.py`, `markdown.py` and `html.py` with `render(document, terminal)`;
- `issues.py` with `issues(document)`, which `github.py`, `junit.py` and `sarif.py` beside the folders write;
- `sentences.py`, the words that they share.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from oomdoctor.results.document import DOCUMENTS

if TYPE_CHECKING:
    from oomdoctor.output import Terminal
    from oomdoctor.results.document import Document

_PEOPLE: Final = ("text", "markdown", "html")
_ISSUES: Final = ("github", "junit", "sarif")

FORMATS: Final = (*_PEOPLE, "json", *_ISSUES)
"""Formats that every document has."""


def render(document: Document, form: str, terminal: Terminal) -> str:
    """Return a document in a format.

    Args:
        document: What a command found.
        form: One of `FORMATS`.
        terminal: Where text is shown; the other formats pass over it.
    """
    # What a format needs is imported with it: rich costs 40 ms, jinja2 more.
    if form == "json":
        return str(_module("results.saved").to_json(document))
    folder = next(name for name, kind in DOCUMENTS.items() if isinstance(document, kind))
    if form in _PEOPLE:
        return str(_module(f"report.{folder}.{form}").render(document, terminal))
    return str(_module(f"report.{form}").render(document, _module(f"report.{folder}.issues").issues(document)))


def _module(name: str) -> Any:  # noqa: ANN401 - a module
    return import_module(f"oomdoctor.{name}")
