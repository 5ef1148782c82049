"""Decide whether an error is an OOM, by the table of errors, the chain of causes and the evidence.

An OOM arrives as many types and texts, often wrapped in another exception; some texts mean it only when memory was
nearly exhausted, and many errors that mention memory are no OOM at all. Taking one of those for an OOM would hide a
bug behind a smaller batch, so nothing counts that the table does not know. Types go by name: torch is not imported.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from oomdoctor.agent.oom_errors import error_text, find_row, lowered, table, type_names, walk_chain
from oomdoctor.results import Outcome
from oomdoctor.units import GIB, format_size

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from collections.abc import Set as AbstractSet

    from oomdoctor.agent.oom_errors import Row

OUTCOMES: Final[Mapping[str, Outcome]] = MappingProxyType(
    {"oom": Outcome.OOM, "limit": Outcome.LIMIT, "host_oom": Outcome.FAILED, "other": Outcome.FAILED}
)
"""The outcome of a trial by what the row of its error means."""

_SHORTEST_WORDING: Final = 4  # characters
_ORDINARY_WORDS: Final = frozenset({"cuda", "device", "error", "failed", "memory"})

# Libraries want a few hundred MiB at once for a context, handles and loaded kernels, so less than this is a full card.
_PRESSURE_BYTES: Final = GIB
_PRESSURE_SHARE: Final = 20  # one part in so many, where that is more
_PRESSURE_CEILING_SHARE: Final = 4  # and never more than one part in so many, for small cards


@dataclass(frozen=True, slots=True)
class Evidence:
    """State of memory when the error was caught.

    Attributes:
        free_bytes: Bytes free on the device, as `torch.cuda.mem_get_info` says, before anything is cleaned up.
        capacity_bytes: Bytes of the device that could be free.
        allocator_ooms: OOMs that PyTorch's allocator counted during the trial, whether the code caught them or not:
            `num_ooms` of `torch.cuda.memory_stats` after the trial less before it.
    """

    free_bytes: int | None = None
    capacity_bytes: int | None = None
    allocator_ooms: int = 0

    @property
    def nearly_exhausted(self) -> bool:
        """Return whether memory was so scarce that an ambiguous error counts as an OOM."""
        if self.allocator_ooms > 0:
            return True
        if self.free_bytes is None:
            return False
        limit = _PRESSURE_BYTES
        if self.capacity_bytes is not None:
            limit = max(limit, self.capacity_bytes // _PRESSURE_SHARE)
            limit = min(limit, self.capacity_bytes // _PRESSURE_CEILING_SHARE)
        return self.free_bytes <= limit

    @property
    def ample(self) -> bool:
        """Return whether at least half of the device is known to have been free, and the allocator never ran out."""
        if self.allocator_ooms > 0 or self.free_bytes is None or self.capacity_bytes is None:
            return False
        return 2 * self.free_bytes >= self.capacity_bytes

    def __str__(self) -> str:
        if self.allocator_ooms > 0:
            times = "once" if self.allocator_ooms == 1 else f"{self.allocator_ooms} times"
            return f"PyTorch's allocator ran out of memory {times} during the trial"
        if self.free_bytes is None:
            return "how much memory was free is not known"
        of_capacity = "" if self.capacity_bytes is None else f" of {format_size(self.capacity_bytes)}"
        return f"{format_size(self.free_bytes)}{of_capacity} were free"


@dataclass(frozen=True, slots=True)
class Classification:
    """Verdict of the classifier on an error.

    Attributes:
        outcome: `OOM`, `LIMIT` or `FAILED`.
        row: The row that decided; None where none matched.
        reason: Why, in one sentence without a trailing period.
    """

    outcome: Outcome
    row: Row | None
    reason: str


NO_EVIDENCE: Final = Evidence()


def classify(
    error: BaseException, evidence: Evidence = NO_EVIDENCE, *, rows: Sequence[Row] | None = None
) -> Classification:
    """Decide what an error means: it, its causes and contexts, and the members of exception groups.

    An OOM anywhere in the chain is an OOM: what was raised on top of it would not have been at a smaller size. Where
    there is none, a size limit counts before an error that is known to be something else, and that before one that
    only may be an OOM. `raise ... from None` hides what came before, as in a traceback. An interrupt is never an OOM.

    Args:
        error: What the trial raised, with its traceback or without.
        evidence: What was known about memory when it was caught.
        rows: Rows in order of precedence; None for the table's.
    """
    if isinstance(error, KeyboardInterrupt):
        return Classification(Outcome.FAILED, None, "the trial was interrupted")
    links = [(type_names(type(link)), error_text(link)) for link in walk_chain(error)]
    verdicts = [_classify_one(names, text, evidence, rows) for names, text in links]
    return _decide(verdicts, type(error).__name__, evidence)


def classify_recorded(links: Sequence[tuple[Sequence[str], str]], evidence: Evidence = NO_EVIDENCE) -> Classification:
    """Decide about an error that was raised in another process, from what that process said of it.

    Args:
        links: The error and all that it was raised from or while handling, outermost first. Of each the qualified names
            of the classes that it is an instance of, its own first, and its text.
        evidence: What was known about memory.
    """
    verdicts = [_classify_one(frozenset(names), text, evidence) for names, text in links]
    return _decide(verdicts, links[0][0][0], evidence)


def is_oom_wording(text: str) -> bool:
    """Return whether a program that looks for `text` in an error's message looks for that of an OOM.

    Args:
        text: A part of a message, such as `CUBLAS_STATUS_ALLOC_FAILED` or `CUDA error`, or a whole one.
    """
    wanted = lowered(text.strip())
    if len(wanted) < _SHORTEST_WORDING or wanted in _ORDINARY_WORDS:
        return False
    rows, patterns = _oom_rows()
    return wanted in patterns or any(row.match(wanted) for row in rows)


@cache
def _oom_rows() -> tuple[tuple[Row, ...], str]:
    """Return the rows of OOMs, and all their patterns in lower case as one text."""
    rows = tuple(row for row in table().rows if row.means == "oom")
    return rows, "\0".join(lowered(pattern) for row in rows for pattern in row.patterns)


def _classify_one(
    names: AbstractSet[str], text: str, evidence: Evidence, rows: Sequence[Row] | None = None
) -> Classification | None:
    """Judge one error by itself; None where no row fits it."""
    row = find_row(names, text, table().rows if rows is None else rows)
    if row is None:
        return None
    if row.not_when_ample and evidence.ample:
        return Classification(Outcome.FAILED, row, f"{row.reason}; {evidence}, so it is taken for the host's")
    if not row.needs_pressure:
        return Classification(OUTCOMES[row.means], row, row.reason)
    if evidence.nearly_exhausted:
        return Classification(OUTCOMES[row.means], row, f"{row.reason}; {evidence}")
    return Classification(Outcome.FAILED, row, f"{row.reason}; {evidence}, so it is not taken for an OOM")


def _decide(verdicts: Sequence[Classification | None], type_name: str, evidence: Evidence) -> Classification:
    known = [verdict for verdict in verdicts if verdict is not None]
    best = min(known, key=_precedence, default=None)
    if best is not None:
        return best
    if evidence.allocator_ooms > 0:
        # The code caught an OOM and went on; a size at which that happens does not fit, whatever it met next.
        return Classification(Outcome.OOM, None, f"{evidence}; what the code raised later is taken for the consequence")
    return Classification(Outcome.FAILED, None, f"`{type_name}` is no error that a lack of memory is known to cause")


def _precedence(verdict: Classification) -> tuple[int, bool]:
    """Order the verdicts on a chain: lower is more telling; a row that the evidence left open comes last."""
    order = (Outcome.OOM, Outcome.LIMIT, Outcome.FAILED)
    return order.index(verdict.outcome), verdict.row is not None and OUTCOMES[verdict.row.means] is not verdict.outcome
