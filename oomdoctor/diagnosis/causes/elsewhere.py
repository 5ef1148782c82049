"""Causes that are not the device's allocator: the host, shared memory, size limits, a budget, and other errors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from oomdoctor.diagnosis.causes.phrases import quoted
from oomdoctor.results import Cause, CauseId, Confidence, Outcome
from oomdoctor.units import format_size

if TYPE_CHECKING:
    from oomdoctor.diagnosis.situation import Situation
    from oomdoctor.oom.table import Row

SHARED_MEMORY_KINDS: Final = frozenset({"host-shared-memory"})
"""Messages about `/dev/shm`, which the workers of a data loader share."""

_PINNED_KINDS: Final = frozenset({"cuda-runtime", "hip-runtime"})
_CERTAIN_WORDS: Final = (
    "cannot allocate memory",
    "can't allocate memory",
    "not enough memory",
    "unable to allocate",
    "oom-kill",
    "oom_kill",
    "oomkilled",
    "out of memory",
    "out-of-memory",
    "low on memory",
    "bad_alloc",
    "memoryerror",
)


def host_oom(situation: Situation) -> Cause | None:
    """The host's memory ran out, or may have."""
    if situation.event is None:
        return None
    if situation.kind in _PINNED_KINDS and situation.facts.total_bytes is None and situation.phase is None:
        confidence = Confidence.LIKELY if situation.mentions_pinned_memory else Confidence.POSSIBLE
        text = "The runtime says the same when the host's pinned memory runs out, and the message has no numbers"
        return Cause(CauseId.HOST_OOM, confidence, text)
    if not situation.is_oom or situation.device != "cpu" or situation.kind in SHARED_MEMORY_KINDS:
        return None
    words, tried = situation.message, situation.facts.tried_bytes
    if tried is not None:
        text = f"The host refused {format_size(tried)}; no device's memory is involved"
        return Cause(CauseId.HOST_OOM, Confidence.CERTAIN, text)
    if situation.kind == "killed" and not any(word in words.lower() for word in _CERTAIN_WORDS):
        text = f"A process was killed, as the kernel does when the host runs out of memory: {quoted(words)}"
        return Cause(CauseId.HOST_OOM, Confidence.LIKELY, text)
    return Cause(CauseId.HOST_OOM, Confidence.CERTAIN, f"The host ran out of memory: {quoted(words)}")


def shm(situation: Situation) -> Cause | None:
    """`/dev/shm` is full."""
    if situation.kind not in SHARED_MEMORY_KINDS:
        return None
    text = "A worker of the data loader died of a bus error, as it does when `/dev/shm` is full"
    return Cause(CauseId.SHM, Confidence.LIKELY, text)


def size_limit(situation: Situation) -> Cause | None:
    """A limit on sizes that is not memory."""
    row = situation.row
    if situation.is_oom or row is None or row.outcome is not Outcome.LIMIT:
        return None
    return Cause(CauseId.SIZE_LIMIT, Confidence.CERTAIN, f"{row.reason[:1].upper()}{row.reason[1:]}")


def kv_cache_no_room(situation: Situation) -> Cause | None:
    """A server's cache finds no room beside the weights."""
    if situation.kind != "kv-cache":
        return None
    text = "Beside the weights, the memory that vLLM may use has no room for a single block of its cache"
    return Cause(CauseId.KV_CACHE_NO_ROOM, Confidence.CERTAIN, text)


def not_oom(situation: Situation) -> Cause | None:
    """An error, and not one of memory."""
    if situation.event is None or situation.is_oom or size_limit(situation) is not None:
        return None
    row = situation.row
    why = "no lack of memory is known to cause it" if row is None else row.reason
    text = f"{quoted(situation.message)}: {why}"
    return Cause(CauseId.NOT_OOM, _confidence(row), text)


def _confidence(row: Row | None) -> Confidence:
    if row is None:
        return Confidence.LIKELY
    # Of some statuses only the memory that was free at that moment could tell, and the text does not hold it.
    return Confidence.POSSIBLE if row.needs_pressure else Confidence.CERTAIN
