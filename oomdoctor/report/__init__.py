"""Reports: a folder or a file a document, and beside them what they share.

A document's folder has the name of its line in `oomdoctor.results.document.DOCUMENTS` and these files:

- `text.py` with `render(document, terminal)`, `markdown.py` and `html.py` with `render(document)`;
- `issues.py` with `issues(document)`, which `github.py`, `junit.py` and `sarif.py` beside the folders write;
- `sentences.py`, the words that they share.

A document with little to say has a file of that name instead, with the functions `text`, `markdown`, `html` and
`issues`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from oomdoctor.results.document import DOCUMENTS

if TYPE_CHECKING:
    from oomdoctor.output import Terminal
    from oomdoctor.results.document import Document

_ISSUES: Final = ("github", "junit", "sarif")

FORMATS: Final = ("text", "markdown", "html", "json", *_ISSUES)
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
    room = _module(f"report.{next(name for name, kind in DOCUMENTS.items() if isinstance(document, kind))}")
    if form in _ISSUES:
        return str(_module(f"report.{form}").render(document, _writer(room, "issues")(document)))
    return str(_writer(room, form)(document, *([terminal] if form == "text" else [])))


def _writer(room: Any, name: str) -> Any:  # noqa: ANN401 - a module and its function
    """Return what a document's folder or file writes a format with."""
    if not hasattr(room, "__path__"):
        return getattr(room, name)
    module = _module(f"report.{room.__name__.rpartition('.')[2]}.{name}")
    return module.issues if name == "issues" else module.render


def _module(name: str) -> Any:  # noqa: ANN401 - a module
    return import_module(f"oomdoctor.{name}")
