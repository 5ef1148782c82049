"""Causes on the device and the host: the request, other processes, caps, host memory, and libraries beside PyTorch."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from oomdoctor.diagnose.evidence import held_by_process, quoted
from oomdoctor.diagnose.text.numbers import SIZE, read_size
from oomdoctor.results import Cause, CauseId, Confidence
from oomdoctor.units import GIB, MIB, format_size

if TYPE_CHECKING:
    from oomdoctor.diagnose.evidence import Situation

# Displays and contexts outside the process are normal: 0.9 GiB in the median of public reports, 2.9 GiB in one of ten.
_OUTSIDE_SHARE: Final = 4  # one part in so many of the card
_OUTSIDE_BYTES: Final = 3 * GIB // 2

# Reserved memory in no tensor is the matter only where it is a good part of all, whatever the message's hint says.
_HOLES_SHARE: Final = 10
_HOLES_BYTES: Final = 256 * MIB

_LARGE_SHARE: Final = 4  # a request of one part in so many of the card is large
_MOST_SHARE: Final = 2  # and of one in so many is more than a batch is to blame for
_COMPILED: Final = re.compile(r"torchinductor_|empty_strided_(?:cuda|xpu|cpu)?\(")
_ABSURD_BYTES: Final = 1 << 50  # beyond all devices: a size that was computed wrongly
_FREE_BYTES: Final = 64 * MIB  # what the driver may call free and yet not hand out in one piece
_FREE_SHARE: Final = 50
_ROUNDED_AWAY_BYTES: Final = 16 * MIB  # three figures in GiB with two decimals


def single_huge_allocation(situation: Situation) -> Cause | None:
    """One request is larger than the device, or than any device."""
    tried = situation.facts.tried_bytes
    if situation.kind == "mps-buffer":
        asked = "" if tried is None else f" of {format_size(tried)}"
        return _huge(Confidence.CERTAIN, f"One buffer{asked} is more than any buffer of the Apple GPU can hold")
    if "more than 1EB memory" in situation.message:
        return _huge(Confidence.CERTAIN, "More than 1 EiB was asked for at once: a size that was computed wrongly")
    if tried is None or not situation.on_gpu:
        return None
    if tried >= _ABSURD_BYTES:
        return _huge(Confidence.CERTAIN, f"{format_size(tried)} were asked for at once: no device has that")
    whole = situation.facts.total_bytes or situation.facts.mps_max_bytes
    if whole is None or tried <= whole:
        return None
    held = situation.facts.allocated_bytes
    beside = "" if held is None else f"; {format_size(held)} were allocated"
    text = f"{format_size(tried)} were asked for at once, more than the {format_size(whole)} of the whole device"
    return _huge(Confidence.CERTAIN, text + beside)


def most_of_the_device(situation: Situation) -> Cause | None:
    """One request is most of the device, or more than all that is allocated, or a compiled program's large buffer."""
    large = large_allocation(situation)
    tried, allocated = situation.facts.tried_bytes or 0, situation.facts.allocated_bytes
    whole = situation.facts.total_bytes or situation.facts.mps_max_bytes or 0
    frames = () if situation.event is None else situation.event.frames
    compiled = bool(frames) and _COMPILED.search(f"{frames[-1].path} {frames[-1].code or ''}") is not None
    if large is None or not (compiled or tried * _MOST_SHARE > whole or (allocated is not None and tried > allocated)):
        return None
    return _huge(Confidence.LIKELY, f"{large.evidence}{', by one buffer of a compiled program' if compiled else ''}")


def large_allocation(situation: Situation) -> Cause | None:
    """One request is a good part of the device."""
    facts = situation.facts
    tried, whole = facts.tried_bytes, facts.total_bytes or facts.mps_max_bytes
    if tried is None or whole is None or not situation.on_gpu or has_free_memory(situation):
        return None
    if not whole < tried * _LARGE_SHARE <= whole * _LARGE_SHARE:
        return None
    percent = round(100 * tried / whole)
    text = f"{format_size(tried)} were asked for at once, {percent} % of the device's {format_size(whole)}"
    return _huge(Confidence.POSSIBLE, text)


def memory_fraction_cap(situation: Situation) -> Cause | None:
    """The process may not take more, although the device has free memory."""
    facts, held = situation.facts, situation.held_bytes
    if situation.kind == "cuda-allocator-rejected":
        return Cause(
            CauseId.MEMORY_FRACTION_CAP,
            Confidence.CERTAIN,
            "PyTorch refused the request before it asked the driver, because of the process's memory fraction",
        )
    if facts.allowed_bytes is None or facts.tried_bytes is None:
        return None
    needed = None if held is None else held + facts.tried_bytes + _ROUNDED_AWAY_BYTES
    if has_free_memory(situation) and (needed is None or needed <= facts.allowed_bytes):
        text = (
            f"This process is allowed {format_size(facts.allowed_bytes)}, and {format_size(facts.tried_bytes)} were "
            f"refused while the device has {format_size(facts.free_bytes or 0)} free"
        )
        return Cause(CauseId.MEMORY_FRACTION_CAP, Confidence.LIKELY, text)
    if held is None or needed is None or needed <= facts.allowed_bytes:
        return None
    if facts.free_bytes is not None and facts.free_bytes < facts.tried_bytes:
        return None  # without the cap the device would have been too full just the same
    free = "" if facts.free_bytes is None else f", while the device has {format_size(facts.free_bytes)} free"
    text = (
        f"This process is allowed {format_size(facts.allowed_bytes)}: {format_size(held)} held and "
        f"{format_size(facts.tried_bytes)} asked for are more than that{free}"
    )
    return Cause(CauseId.MEMORY_FRACTION_CAP, Confidence.CERTAIN, text)


def other_process(situation: Situation) -> Cause | None:
    """Other processes hold memory of the device that is missing here."""
    if not situation.on_gpu or has_free_memory(situation) or asks_for_more_than_all(situation):
        return None
    return _listed_processes(situation) or _unlisted_processes(situation) or _seen_in_table(situation)


def _seen_in_table(situation: Situation) -> Cause | None:
    """`nvidia-smi` showed more in use than this process holds, and listed no process."""
    card, own = situation.card, situation.own_bytes or 0
    if card is None or card.processes or not is_much(card.used_bytes - own, card.total_bytes):
        return None
    text = (
        f"`nvidia-smi` in the log shows {format_size(card.used_bytes)} of {format_size(card.total_bytes)} in use, and "
        f"this process holds {format_size(own)}"
    )
    return Cause(CauseId.OTHER_PROCESS, Confidence.LIKELY, text)


def _listed_processes(situation: Situation) -> Cause | None:
    total, others = situation.facts.total_bytes, situation.others_bytes
    if total is None or not is_much(others, total):
        return None
    held = " and ".join(f"process {p.pid} holds {format_size(p.used_bytes or 0)}" for p in situation.others[:3])
    more = len(situation.others) - 3
    rest = f" and {more} more" if more > 0 else ""
    own = situation.own_bytes
    mine = "" if own is None else f"; this process holds {format_size(own)}"
    text = f"{held[:1].upper()}{held[1:]}{rest} of the device's {format_size(total)}{mine}"
    return Cause(CauseId.OTHER_PROCESS, Confidence.CERTAIN, text)


def _unlisted_processes(situation: Situation) -> Cause | None:
    facts, outside, own = situation.facts, situation.outside_bytes, situation.own_bytes
    if outside is None or facts.total_bytes is None or facts.free_bytes is None or own is None:
        return None
    if not is_much(outside, facts.total_bytes):
        return None
    text = (
        f"{format_size(outside)} of the device's {format_size(facts.total_bytes)} are neither free "
        f"({format_size(facts.free_bytes)}) nor held by this process ({format_size(own)}): other processes hold them"
    )
    return Cause(CauseId.OTHER_PROCESS, Confidence.LIKELY, text)


def unseen_process(situation: Situation) -> Cause | None:
    """The device was full before this process computed anything, and nobody says who filled it."""
    if not situation.handle_refused or situation.facts.total_bytes is not None:
        return None
    text = "The device was full before the first matrix product; the message does not say who holds it"
    return Cause(CauseId.OTHER_PROCESS, Confidence.POSSIBLE, text)


def fragmentation(situation: Situation) -> Cause | None:
    """Enough is reserved and in no tensor, but in pieces."""
    facts = situation.facts
    tried, holes = facts.tried_bytes, facts.reserved_unallocated_bytes
    if tried is None or holes is None or holes < tried or not _has_large_holes(situation):
        return None
    seen = _holes_in_snapshot(situation, tried)
    text = seen or (
        f"PyTorch has reserved {format_size(holes)} that no tensor uses, but {format_size(tried)} of them in one piece "
        "could not be found"
    )
    if situation.leaks:  # what leaks fills every hole in the end
        return Cause(CauseId.FRAGMENTATION, Confidence.POSSIBLE, text)
    return Cause(CauseId.FRAGMENTATION, Confidence.LIKELY if seen is None else Confidence.CERTAIN, text)


def _holes_in_snapshot(situation: Situation, tried: int) -> str | None:
    if situation.snapshot is None:
        return None
    holes = situation.snapshot.fragmentation
    if not holes.largest_hole_bytes < tried <= holes.hole_bytes:
        return None
    return (
        f"{format_size(holes.hole_bytes)} are free in holes of {holes.segments_with_holes} segments, the largest of "
        f"{format_size(holes.largest_hole_bytes)}; {format_size(tried)} were asked for in one piece"
    )


def fragmentation_beside_free(situation: Situation) -> Cause | None:
    """Unused reserved memory and free memory would be enough together, and neither is alone."""
    facts = situation.facts
    tried, holes, free = facts.tried_bytes, facts.reserved_unallocated_bytes, facts.free_bytes
    if tried is None or holes is None or free is None or not holes < tried <= holes + free:
        return None
    if not _has_large_holes(situation):
        return None
    text = (
        f"{format_size(tried)} were asked for; {format_size(holes)} reserved in no tensor and "
        f"{format_size(free)} free would be enough together, but not in one piece"
    )
    return Cause(CauseId.FRAGMENTATION, Confidence.POSSIBLE, text)


def _has_large_holes(situation: Situation) -> bool:
    holes, reserved = situation.facts.reserved_unallocated_bytes, situation.facts.reserved_bytes
    if holes is None or reserved is None or not situation.on_gpu or has_free_memory(situation):
        return False
    large = holes >= max(reserved // _HOLES_SHARE, _HOLES_BYTES)
    return large and not asks_for_more_than_all(situation)


def address_space(situation: Situation) -> Cause | None:
    """The host refused a mapping, for a limit of the process's address space."""
    limit = situation.case.address_space_bytes
    if limit is not None and has_free_memory(situation):
        text = (
            f"The device had {format_size(situation.facts.free_bytes or 0)} free, and this process's address space is "
            f"limited to {format_size(limit)} (`ulimit -v`), which a driver's reservations count against"
        )
        return Cause(CauseId.HOST_OOM, Confidence.LIKELY, text)
    if not situation.is_oom or not situation.maps_memory:
        return None
    text = f"A mapping into the process's address space was refused: {quoted(situation.message)}"
    return Cause(CauseId.HOST_OOM, Confidence.LIKELY, text)


def unexplained_refusal(situation: Situation) -> Cause | None:
    """The device had plenty of free memory and no cap is known; the reason for such refusals is not established."""
    facts = situation.facts
    if not has_free_memory(situation) or facts.tried_bytes is None:
        return None
    if memory_fraction_cap(situation) is not None or address_space(situation) is not None:
        return None
    text = (
        f"{format_size(facts.tried_bytes)} were refused although {format_size(facts.free_bytes or 0)} were free on the "
        "device; the numbers do not explain it (on Windows the system's commit limit can, elsewhere a driver's limit)"
    )
    return Cause(CauseId.UNKNOWN, Confidence.LIKELY, text)


def has_free_memory(situation: Situation) -> bool:
    """Return whether the device had clearly more bytes free than were asked for."""
    tried, free, total = situation.facts.tried_bytes, situation.facts.free_bytes, situation.facts.total_bytes
    if tried is None or free is None:
        return False
    margin = max(_FREE_BYTES, (total or 0) // _FREE_SHARE)
    return free >= tried + margin


def is_much(size_bytes: int, total_bytes: int) -> bool:
    """Return whether memory outside of this process is more than displays and contexts take."""
    return size_bytes * _OUTSIDE_SHARE > total_bytes and size_bytes >= _OUTSIDE_BYTES


def asks_for_more_than_all(situation: Situation) -> bool:
    """Return whether the request is larger than the whole device."""
    tried, total = situation.facts.tried_bytes, situation.facts.total_bytes
    return tried is not None and total is not None and tried > total


def _huge(confidence: Confidence, evidence: str) -> Cause:
    return Cause(CauseId.SINGLE_HUGE_ALLOCATION, confidence, evidence)


SHARED_MEMORY_KINDS: Final = frozenset({"host-shared-memory"})
"""Messages about `/dev/shm`, which the workers of a data loader share."""

_PINNED_KINDS: Final = frozenset({"cuda-runtime", "hip-runtime"})
_CERTAIN_WORDS: Final = re.compile(
    r"(?:cannot|can't|unable to) allocate|not enough memory|oom.?kill|out.of.memory|low on memory|bad_alloc"
    r"|memoryerror",
    re.IGNORECASE,
)


def host_oom(situation: Situation) -> Cause | None:
    """The host's memory ran out, or may have."""
    if situation.event is None:
        return None
    if situation.kind in _PINNED_KINDS and situation.facts.total_bytes is None and situation.phase is None:
        confidence = Confidence.LIKELY if situation.mentions_pinned_memory else Confidence.POSSIBLE
        text = "The runtime says the same when the host's pinned memory runs out, and the message has no numbers"
        return Cause(CauseId.HOST_OOM, confidence, text)
    elsewhere = situation.kind in SHARED_MEMORY_KINDS or situation.maps_memory  # told by causes of their own
    if not situation.is_oom or situation.device != "cpu" or elsewhere:
        return None
    words, tried = situation.message, situation.facts.tried_bytes
    if tried is not None:
        text = f"The host refused {format_size(tried)}; no device's memory is involved"
        return Cause(CauseId.HOST_OOM, Confidence.CERTAIN, text)
    if situation.kind == "killed" and _CERTAIN_WORDS.search(words) is None:
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
    """A tensor or kernel exceeds a size limit that is not memory."""
    row = situation.row
    if situation.is_oom or row is None or row.means != "limit":
        return None
    return Cause(CauseId.SIZE_LIMIT, Confidence.CERTAIN, f"{row.reason[:1].upper()}{row.reason[1:]}")


def kv_cache_no_room(situation: Situation) -> Cause | None:
    """A server finds no memory for its cache beside the weights."""
    if situation.kind != "kv-cache":
        return None
    text = "Beside the weights, the memory that vLLM may use does not hold a single block of its cache"
    return Cause(CauseId.KV_CACHE_NO_ROOM, Confidence.CERTAIN, text)


def not_oom(situation: Situation) -> Cause | None:
    """The error is not about memory."""
    if situation.event is None or situation.is_oom or size_limit(situation) is not None:
        return None
    row = situation.row
    why = "no lack of memory is known to cause it" if row is None else row.reason
    # Of some statuses only the memory that was free at that moment could tell, and the text does not hold it.
    known = Confidence.POSSIBLE if row is not None and row.needs_pressure else Confidence.CERTAIN
    return Cause(CauseId.NOT_OOM, Confidence.LIKELY if row is None else known, f"{quoted(situation.message)}: {why}")


_COLLECTIVES: Final = re.compile(r"torch/distributed/(?:distributed_c10d|c10d_logger)\.py$")
_SMALL_BYTES: Final = 64 * MIB  # of a collective: what it gathers is larger, what it needs for itself is not
_PLAN_LINES: Final = 40  # of XLA's buffer assignment below its error
_PLAN: Final = {
    name: re.compile(rf"{name}allocation:({SIZE})") for name in ("total", "maybe_live_out", "preallocatedtemp")
}


def quantized_offload(situation: Situation) -> Cause | None:
    """A quantized model did not fit, so that its loader placed a part of it on the host."""
    if situation.kind != "quantized-offload":
        return None
    text = "Not all modules of the quantized model fit on the device, and the loader may not leave them on the host"
    return Cause(CauseId.MODEL_TOO_LARGE, Confidence.CERTAIN, text)


def library_buffers(situation: Situation) -> Cause | None:
    """NCCL, or a collective that needs next to nothing, found no room beside what PyTorch holds."""
    tried = situation.facts.tried_bytes
    asked = "" if tried is None else f" {format_size(tried)} for it"
    if situation.kind == "nccl-allocation":
        text = f"NCCL takes its buffers from the driver, beside PyTorch's memory, and found no room{asked}"
        return Cause(CauseId.LIBRARY_BUFFERS, Confidence.LIKELY, text)
    frames = () if situation.event is None else situation.event.frames
    in_collective = bool(frames) and _COLLECTIVES.search(frames[-1].path.replace("\\", "/")) is not None
    if not situation.on_gpu or not in_collective or tried is None or tried > _SMALL_BYTES:
        return None
    numbers = held_by_process(situation)
    text = f"`{frames[-1].function}` of torch.distributed needs little, and the device was full{numbers}"
    return Cause(CauseId.LIBRARY_BUFFERS, Confidence.LIKELY, text)


def compiled_program(situation: Situation) -> Cause | None:
    """XLA could not place a program, whose needs it prints below the error, or TensorFlow a tensor."""
    if not situation.on_gpu or situation.event is None or not (situation.is_xla or situation.is_tensorflow):
        return None
    window, message = situation.event.window, situation.event.message
    text = "".join("".join(window.lines[message.first : message.last + 1 + _PLAN_LINES]).lower().split())
    sizes = {name: read_size(found[1]) for name, pattern in _PLAN.items() if (found := pattern.search(text))}
    total, output, temporary = (sizes.get(name) for name in _PLAN)
    if total is not None:
        parts = [(output, "outputs"), (temporary, "temporaries")]
        listed = " and ".join(f"{format_size(size)} for {name}" for size, name in parts if size)
        needs = f"The compiled program needs {format_size(total)} in all{f', {listed}' if listed else ''}"
        return Cause(CauseId.BATCH_TOO_LARGE, Confidence.LIKELY, needs + held_by_process(situation))
    needs = "What the program needs does not fit in what the framework may take of the device"
    return Cause(CauseId.BATCH_TOO_LARGE, Confidence.POSSIBLE, needs + held_by_process(situation))
