"""A probe's answer as an annotation of GitHub Actions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from oomdoctor.report.github import Annotation, Level, commands
from oomdoctor.report.plain_text import sentence
from oomdoctor.report.probe import issues, sentences

if TYPE_CHECKING:
    from oomdoctor.output import Terminal
    from oomdoctor.results import ProbeDocument


_TITLE = "oomdoctor probe"


def render(document: ProbeDocument, terminal: Terminal) -> str:
    """Render an error where nothing fits, else a notice with the answer; what to know before relying on it warns."""
    del terminal
    result = document.result
    level: Level = "error" if document.status == "nothing_fits" else "notice"
    path = issues.path(result)
    about = Annotation(level, f"{_TITLE} {result.target}", issues.lines(result), path)
    doubts = [Annotation("warning", _TITLE, (sentence(text),), path) for text in sentences.warnings(result)]
    return "\n".join([*commands([about, *doubts]), sentence(sentences.headline(result))]) + "\n"
