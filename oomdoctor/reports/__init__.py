"""One file a format; each takes a result and returns text."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from oomdoctor.output import Terminal
    from oomdoctor.results import Document

Renderer: TypeAlias = "Callable[[Document, Terminal], str]"


# Each import waits for its first use: rich costs 40 ms that JSON does not need.


def _text(document: Document, terminal: Terminal) -> str:
    from oomdoctor.reports.text import render  # noqa: PLC0415

    return render(document, width=terminal.width, color=terminal.color, unicode=terminal.unicode)


def _json(document: Document, terminal: Terminal) -> str:
    from oomdoctor.reports.json_document import render  # noqa: PLC0415

    del terminal
    return render(document)


def _markdown(document: Document, terminal: Terminal) -> str:
    from oomdoctor.reports.markdown import render  # noqa: PLC0415

    del terminal
    return render(document)


FORMATS: Mapping[str, Renderer] = MappingProxyType({"text": _text, "json": _json, "markdown": _markdown})
"""Renderer by the name of its format."""
