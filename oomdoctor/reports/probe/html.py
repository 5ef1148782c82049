"""What a probe found as one HTML page."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from oomdoctor.reports.page import render_page
from oomdoctor.reports.probe import wording
from oomdoctor.reports.probe.page import sections

if TYPE_CHECKING:
    from collections.abc import Mapping

    from oomdoctor.output import Terminal
    from oomdoctor.results import ProbeDocument

_STATUS_WORDS: Final[Mapping[str, str]] = MappingProxyType(
    {"fits": "fits", "limited": "fits, up to a size limit", "nothing_fits": "nothing fits"}
)


def render(document: ProbeDocument, terminal: Terminal) -> str:
    """Render a probe's document as one self-contained HTML page."""
    del terminal
    result = document.result
    values = {
        "document": document,
        "status": _STATUS_WORDS[document.status],
        "headline": wording.headline(result),
        "summary": wording.shortfall(result),
        "probe": sections(result),
    }
    return render_page("probe.html", values)
