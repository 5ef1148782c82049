"""The document of a finished probe, the same for whoever asked."""

from __future__ import annotations

from typing import TYPE_CHECKING

from oomdoctor import __version__
from oomdoctor.errors import EXIT_GATE, EXIT_OK
from oomdoctor.results import ProbeDocument

if TYPE_CHECKING:
    from oomdoctor.probing.found import Probe


def document_of(found: Probe) -> ProbeDocument:
    """What `oomdoctor probe` writes about it, and exits with."""
    answer = found.result.micro_batch
    return ProbeDocument(
        command="probe",
        status="nothing_fits" if not answer.maximum else "limited" if answer.limited_by == "limit" else "fits",
        exit_code=EXIT_OK if answer.maximum else EXIT_GATE,
        versions={"oomdoctor": __version__, **found.versions},
        result=found.result,
    )
