"""The result of a diagnosis."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal, TypeAlias

from oomdoctor.results.snapshot import SnapshotComparison, SnapshotSummary, SourceLine, TrainingPhase

MemoryDevice: TypeAlias = Literal["cuda", "hip", "xpu", "mps", "npu", "hpu", "xla", "cpu", "none"]
"""Whose memory ran out; `cpu` is the host's, `none` where no memory did."""


class CauseId(StrEnum):
    """Why memory ran out, or what else it was."""

    BATCH_TOO_LARGE = "batch_too_large"
    SINGLE_HUGE_ALLOCATION = "single_huge_allocation"
    FRAGMENTATION = "fragmentation"
    OTHER_PROCESS = "other_process"
    MODEL_TOO_LARGE = "model_too_large"
    OPTIMIZER_STATE = "optimizer_state"
    LEAK_ACROSS_STEPS = "leak_across_steps"
    MISSING_NO_GRAD = "missing_no_grad"
    CHECKPOINT_LOAD = "checkpoint_load"
    MEMORY_FRACTION_CAP = "memory_fraction_cap"
    SHM = "shm"
    HOST_OOM = "host_oom"
    SIZE_LIMIT = "size_limit"
    KV_CACHE_NO_ROOM = "kv_cache_no_room"
    LIBRARY_BUFFERS = "library_buffers"
    NOT_OOM = "not_oom"
    UNKNOWN = "unknown"


class Confidence(StrEnum):
    """Confidence in a cause."""

    CERTAIN = "certain"  # the evidence states it
    LIKELY = "likely"  # the evidence fits this and hardly anything else
    POSSIBLE = "possible"  # the evidence fits this among others


@dataclass(frozen=True, slots=True)
class ProcessMemory:
    """Another process on the card, as the message lists it.

    Attributes:
        pid: As printed; in a container it is the host's.
        used_bytes: What it holds; None where the driver could not tell.
    """

    pid: int
    used_bytes: int | None


@dataclass(frozen=True, slots=True)
class Facts:
    """Numbers of one error, in bytes; what its text does not hold is None, except for what follows from the rest.

    Attributes:
        gpu_index: The device's index as printed.
        tried_bytes: What was asked for. In PyTorch's messages this is a segment of the allocator and not a tensor:
            2 MiB, 20 MiB or a multiple of 2 MiB.
        total_bytes: Memory of the device.
        free_bytes: What the device had free, for every process.
        allocated_bytes: In live tensors of this process.
        reserved_bytes: Held by PyTorch's allocator; derived where only the part that is not allocated is printed.
        reserved_unallocated_bytes: Held by the allocator and in no tensor; derived where only the whole is printed.
        process_bytes: Held by this process in all.
        non_pytorch_bytes: Held by this process outside the allocator: the CUDA context, libraries' workspaces.
        allowed_bytes: The process's cap, where `set_per_process_memory_fraction` or its like set one.
        private_pool_bytes: Part of the allocated bytes in private pools, such as CUDA graphs'.
        mps_other_bytes: On MPS, what other allocations of the process hold.
        mps_max_bytes: On MPS, the watermark that was reached.
        other_processes: Other processes on the card. In a container this process's own line may be among them.
        own_pid: The entry of `other_processes` that is this process itself, where the numbers say so.
        phase: What the program was doing, from the traceback.
        user_line: The innermost line of the traceback that is the user's own.
        step: Number of the training step, where the log gives it.
    """

    gpu_index: int | None = None
    tried_bytes: int | None = None
    total_bytes: int | None = None
    free_bytes: int | None = None
    allocated_bytes: int | None = None
    reserved_bytes: int | None = None
    reserved_unallocated_bytes: int | None = None
    process_bytes: int | None = None
    non_pytorch_bytes: int | None = None
    allowed_bytes: int | None = None
    private_pool_bytes: int | None = None
    mps_other_bytes: int | None = None
    mps_max_bytes: int | None = None
    other_processes: tuple[ProcessMemory, ...] = ()
    own_pid: int | None = None
    phase: TrainingPhase | None = None
    user_line: SourceLine | None = None
    step: int | None = None


@dataclass(frozen=True, slots=True)
class Occurrence:
    """One error that was found; the same error again is counted, not listed.

    Attributes:
        source: The file as it was given, or `standard input`.
        line: Line of the file where its message begins, from 1; None for a snapshot.
        rank: The process that printed it, where a prefix says so.
        is_oom: Whether it says that memory ran out.
        device: Whose memory.
        kind: Name of the message, such as `cuda-allocator`.
        message: Its text in one line, at most 2000 characters.
        facts: What it says.
        count: How often it was found.
    """

    source: str
    line: int | None
    rank: int | None
    is_oom: bool
    device: MemoryDevice
    kind: str
    message: str
    facts: Facts
    count: int = 1


@dataclass(frozen=True, slots=True)
class Cause:
    """One reason why it happened.

    Attributes:
        id: Stable name.
        confidence: How far the evidence carries.
        evidence: One sentence built from the numbers that were found.
    """

    id: CauseId
    confidence: Confidence
    evidence: str


@dataclass(frozen=True, slots=True)
class Remedy:
    """One thing to change.

    Attributes:
        id: Stable name, such as `expandable_segments`.
        change: What to do, in one sentence.
        how: The line of code, the command or the environment variable that does it; None where there is no one line.
        frees_bytes: What it frees here at most, computed from the facts; None where they do not tell.
        cost: What it costs, in one sentence.
    """

    id: str
    change: str
    how: str | None
    frees_bytes: int | None
    cost: str


@dataclass(frozen=True, slots=True)
class NextStep:
    """Evidence to collect next, where the present one is not enough.

    Attributes:
        what: What it would tell, in one sentence.
        command: The command that collects it.
    """

    what: str
    command: str


@dataclass(frozen=True, slots=True)
class MemoryTrend:
    """Memory over training steps, as the log printed it.

    Attributes:
        readings: How many pairs of step and memory were read.
        first_step: Step of the first reading.
        last_step: Step of the last reading.
        first_bytes: Memory at the first reading.
        last_bytes: Memory at the last reading.
        growing: Whether it rose steadily, not only while the program warmed up.
        bytes_per_step: How fast, where it grows; 0 otherwise.
    """

    readings: int
    first_step: int
    last_step: int
    first_bytes: int
    last_bytes: int
    growing: bool
    bytes_per_step: int


@dataclass(frozen=True, slots=True)
class DiagnosisResult:
    """Everything that a diagnosis found.

    Attributes:
        sources: What was read.
        is_oom: Whether memory ran out.
        device: Whose memory.
        facts: What the error that counts says: the first of all ranks that ran out of memory.
        causes: Why, most certain first.
        remedies: What to change, best first.
        notes: What a reader should know about the numbers.
        next_steps: What to collect where the evidence does not reach.
        occurrences: Every different error, the one that counts first, at most 64.
        trend: Memory over training steps, where the log tells.
        snapshots: What each snapshot holds.
        comparison: The two snapshots side by side, where two were given.
    """

    sources: tuple[str, ...]
    is_oom: bool
    device: MemoryDevice
    facts: Facts
    causes: tuple[Cause, ...]
    remedies: tuple[Remedy, ...]
    notes: tuple[str, ...] = ()
    next_steps: tuple[NextStep, ...] = ()
    occurrences: tuple[Occurrence, ...] = ()
    trend: MemoryTrend | None = None
    snapshots: tuple[SnapshotSummary, ...] = ()
    comparison: SnapshotComparison | None = None
