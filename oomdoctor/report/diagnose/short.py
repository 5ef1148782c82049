"""One line for each file that was diagnosed, for logs in a loop."""

from __future__ import annotations

from typing import TYPE_CHECKING

from oomdoctor.report.diagnose import sentences
from oomdoctor.report.plain_text import clean

if TYPE_CHECKING:
    from oomdoctor.results import DiagnosisDocument


def line(document: DiagnosisDocument) -> str:
    """Return a diagnosis in one line, such as `a.log: GPU 0 ran out of memory in backward: fragmentation (likely)`."""
    result = document.result
    parts = [f"{clean(sentences.sources(result))}: {sentences.headline(document)}"]
    if result.is_oom and result.causes:
        parts[0] += f": {sentences.CAUSE_WORDS[result.causes[0].id]} ({result.causes[0].confidence})"
    elif result.causes:
        parts.append(clean(result.causes[0].evidence))
    if result.is_oom and (numbers := sentences.summary(result)) is not None:
        parts.append(numbers)
    return "; ".join(parts)
