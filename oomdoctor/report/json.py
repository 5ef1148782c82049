"""A document as JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING

from oomdoctor.results.saved import to_json

if TYPE_CHECKING:
    from oomdoctor.output import Terminal
    from oomdoctor.results import Document


def render(document: Document, terminal: Terminal) -> str:
    """The document as indented JSON with a newline at its end; `oomdoctor/schemas` describes it."""
    del terminal
    return to_json(document)
