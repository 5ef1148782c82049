"""Diagnoses for the tests of reports: realistic ones, their variations, and any that the types allow."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, get_args

import documents
from hypothesis import strategies as st

from oomdoctor.results import (
    Category,
    CategoryBytes,
    Cause,
    CauseId,
    Composition,
    Confidence,
    DiagnosisDocument,
    DiagnosisResult,
    DifferingLine,
    Facts,
    Fragmentation,
    GrowingLine,
    HistoryReplay,
    LiveAllocation,
    MemoryDevice,
    MemoryLine,
    MemoryTrend,
    NextStep,
    Occurrence,
    ProcessMemory,
    Remedy,
    SnapshotComparison,
    SnapshotSummary,
    SourceLine,
    TimelinePoint,
    TrainingPhase,
)

MIB = 1024**2
GIB = 1024**3
ATTENTION = SourceLine("train/model.py", 87, "forward", "weights = torch.softmax(scores, dim=-1)")
PROJECTION = SourceLine("train/model.py", 52, "forward", "return self.projection(torch.nn.functional.gelu(hidden))")
STEP = SourceLine("train/loop.py", 118, "train_one_epoch", "optimizer.step()")
LOSSES = SourceLine("train/loop.py", 124, "train_one_epoch", "losses.append(loss)")
FACTS = Facts(
    gpu_index=0,
    tried_bytes=1966 * MIB,
    total_bytes=24_207 * MIB,
    free_bytes=1443 * MIB,
    allocated_bytes=19_210 * MIB,
    reserved_bytes=20_518 * MIB,
    reserved_unallocated_bytes=1308 * MIB,
    process_bytes=21_025 * MIB,
    non_pytorch_bytes=507 * MIB,
    other_processes=(ProcessMemory(pid=4711, used_bytes=1739 * MIB),),
    phase=TrainingPhase.BACKWARD,
    user_line=SourceLine("train/loop.py", 112, "train_one_epoch", "loss.backward()"),
    step=412,
)
MESSAGE = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.92 GiB. GPU 0 has a total capacity of 23.64 GiB "
    "of which 1.41 GiB is free. Process 4711 has 1.70 GiB memory in use. Including non-PyTorch memory, this process "
    "has 20.53 GiB memory in use."
)
SIZES = (1900 * MIB, 1900 * MIB, 3800 * MIB, 10_922 * MIB, 96 * MIB, 512 * MIB, 80 * MIB)
"""Bytes by category at the sample's peak, in the order of `Category`."""


def composition(scale: float = 1.0) -> Composition:
    """Memory at one moment, its categories summing to what is allocated."""
    sizes = [int(size * scale) for size in SIZES]
    categories = sorted(map(CategoryBytes, Category, sizes), key=lambda part: -part.allocated_bytes)
    lines = (
        MemoryLine(ATTENTION, Category.ACTIVATIONS, int(6144 * MIB * scale), 96),
        MemoryLine(PROJECTION, Category.ACTIVATIONS, int(4608 * MIB * scale), 48),
        MemoryLine(STEP, Category.OPTIMIZER_STATE, int(3800 * MIB * scale), 592),
        MemoryLine(None, Category.WEIGHTS, int(1900 * MIB * scale), 296),
        MemoryLine(LOSSES, Category.OTHER, int(80 * MIB * scale), 412),
    )
    allocated = sum(sizes)
    return Composition(allocated, allocated + 1308 * MIB, tuple(categories), lines)


def timeline(steps: int = 3, length: int = 133) -> tuple[TimelinePoint, ...]:
    """Memory over a few training steps: it rises in forward, falls in backward, and the last step dies at its top.

    As many points as a document has at most, so that what is drawn is as long as it gets.
    """
    points = []
    for event in range(steps * length):
        step, place = divmod(event, length)
        last = step == steps - 1
        rise = place / (length - 1) if last else 1 - abs(2 * place / (length - 1) - 1)
        held = 0 if step == 0 else 1
        gradients = SIZES[1] if held or place > length // 2 else 0
        sizes = (SIZES[0], gradients, SIZES[2] * held, int(SIZES[3] * rise), SIZES[4], int(SIZES[5] * rise), SIZES[6])
        points.append(TimelinePoint(event * 11, event * 900, min(20_518 * MIB, sum(sizes) + 1308 * MIB), sizes))
    return tuple(points)


def snapshot(**changes: Any) -> SnapshotSummary:
    """What a snapshot of the sample's crash holds."""
    made = SnapshotSummary(
        source="snapshot-rank0.pickle",
        device_index=0,
        total_bytes=24_207 * MIB,
        has_history=True,
        truncated=True,
        events=4440,
        end=composition(0.8),
        peak=composition(),
        largest=(
            LiveAllocation(1536 * MIB, Category.ACTIVATIONS, ATTENTION, "softmax (torch/nn/functional.py:2140)", 4),
            LiveAllocation(768 * MIB, Category.ACTIVATIONS, PROJECTION, "gelu (torch/nn/functional.py:1812)"),
            LiveAllocation(384 * MIB, Category.WEIGHTS, None, None),
        ),
        fragmentation=Fragmentation(214, 37, 1108 * MIB, 312 * MIB, 200 * MIB),
        growing=(GrowingLine(LOSSES, Category.OTHER, 2 * MIB, 80 * MIB, 10, 412),),
        timeline=timeline(),
    )
    return replace(made, **changes)


def comparison() -> SnapshotComparison:
    """The sample's snapshot beside one of a smaller model."""
    before = tuple(size * 3 // 4 for size in SIZES)
    lines = (
        DifferingLine(ATTENTION, 3072 * MIB, 6144 * MIB),
        DifferingLine(STEP, 3800 * MIB, 2850 * MIB),
        DifferingLine(None, 0, 1900 * MIB),
    )
    return SnapshotComparison("before.pickle", "after.pickle", sum(before), sum(SIZES), before, SIZES, lines)


def occurrence(**changes: Any) -> Occurrence:
    """The error that counts."""
    made = Occurrence(
        source="train.log",
        line=20_417,
        rank=0,
        is_oom=True,
        device="cuda",
        kind="cuda-allocator",
        message=MESSAGE,
        facts=FACTS,
    )
    return replace(made, **changes)


def out_of_memory(**changes: Any) -> DiagnosisDocument:
    """GPT-2 died in backward at step 412, on two ranks; `changes` replace fields of the result."""
    result = DiagnosisResult(
        sources=("train.log", "snapshot-rank0.pickle"),
        is_oom=True,
        device="cuda",
        facts=FACTS,
        causes=(
            Cause(
                CauseId.BATCH_TOO_LARGE,
                Confidence.LIKELY,
                "activations are 10.67 GiB of the 18.76 GiB allocated at the peak, and backward asked for 1.92 GiB "
                "where 1.41 GiB is free",
            ),
            Cause(
                CauseId.OTHER_PROCESS,
                Confidence.POSSIBLE,
                "process 4711 holds 1.70 GiB of the card, more than the 523 MiB that were missing",
            ),
            Cause(
                CauseId.LEAK_ACROSS_STEPS,
                Confidence.POSSIBLE,
                "train/loop.py:124 grew from 2 MiB to 80 MiB in 402 steps",
            ),
        ),
        remedies=(
            Remedy(
                "smaller_batch",
                "halve the micro-batch and double the accumulation steps",
                "per_device_train_batch_size=8, gradient_accumulation_steps=4",
                5461 * MIB,
                "about 5 % slower: more kernel launches per sample",
            ),
            Remedy(
                "gradient_checkpointing",
                "recompute activations in backward instead of keeping them",
                "model.gradient_checkpointing_enable()",
                8192 * MIB,
                "about 30 % slower: each layer runs forward twice",
            ),
            Remedy("stop_other_process", "stop process 4711", "kill 4711", 1739 * MIB, "whatever it was doing"),
            Remedy(
                "detach_losses", "keep numbers, not tensors", "losses.append(loss.item())", None, "one synchronisation"
            ),
        ),
        notes=("in a container the process ids are the host's",),
        next_steps=(
            NextStep("a snapshot of a run with half the batch tells what scales with it", "oomdoctor run -- train.py"),
        ),
        occurrences=(
            occurrence(),
            occurrence(line=20_433, rank=1, facts=replace(FACTS, gpu_index=1, free_bytes=1399 * MIB), count=3),
            occurrence(
                line=20_440,
                rank=2,
                is_oom=False,
                kind="nccl-remote",
                message="torch.distributed.DistBackendError: NCCL error: remote process exited",
                facts=Facts(),
            ),
        ),
        trend=MemoryTrend(42, 10, 412, 18_930 * MIB, 19_010 * MIB, growing=True, bytes_per_step=200 * 1024),
        snapshots=(snapshot(),),
    )
    versions = {"oomdoctor": "0.1.0", "python": "3.11.9"}
    document = DiagnosisDocument("diagnose", "oom", 0, versions, result)
    return replace(document, result=replace(result, **changes))


def not_memory() -> DiagnosisDocument:
    """A log whose error is something else."""
    message = "RuntimeError: CUDA error: device-side assert triggered"
    found = Occurrence(
        "ci.log", 88, None, is_oom=False, device="none", kind="device-assert", message=message, facts=Facts()
    )
    result = DiagnosisResult(
        sources=("ci.log",),
        is_oom=False,
        device="none",
        facts=Facts(),
        causes=(Cause(CauseId.NOT_OOM, Confidence.CERTAIN, "a kernel's assertion failed: an index is out of range"),),
        remedies=(),
        next_steps=(NextStep("the line that launched the kernel", "CUDA_LAUNCH_BLOCKING=1 python train.py"),),
        occurrences=(found,),
    )
    return DiagnosisDocument("diagnose", "not_oom", 0, {"oomdoctor": "0.1.0"}, result)


def nothing_found() -> DiagnosisDocument:
    """A log without an error."""
    result = DiagnosisResult(("train.log",), is_oom=False, device="none", facts=Facts(), causes=(), remedies=())
    return DiagnosisDocument("diagnose", "nothing_found", 3, {"oomdoctor": "0.1.0"}, result)


# --- any document ----------------------------------------------------------------------------------------------------

_TEXTS = documents.texts
_SIZES = st.integers(0, 2**40) | st.integers(0, 2**63 - 1)
_SMALL = st.integers(0, 100_000)
_MAYBE_SIZES = st.none() | _SIZES
_LINES = st.builds(SourceLine, _TEXTS, _SMALL, st.none() | _TEXTS, st.none() | _TEXTS)
_PLACES = st.none() | _LINES
_CATEGORIES = st.sampled_from(Category)
_BY_CATEGORY = st.lists(_SIZES, min_size=7, max_size=7).map(tuple)


def _some(items: st.SearchStrategy[Any], most: int = 3) -> st.SearchStrategy[tuple[Any, ...]]:
    return st.lists(items, max_size=most).map(tuple)


_facts = st.builds(
    Facts,
    gpu_index=st.none() | _SMALL,
    **{f"{name}_bytes": _MAYBE_SIZES for name in ("tried", "total", "free", "allocated", "reserved", "process")},
    **{f"{name}_bytes": _MAYBE_SIZES for name in ("reserved_unallocated", "non_pytorch", "allowed", "private_pool")},
    mps_other_bytes=_MAYBE_SIZES,
    mps_max_bytes=_MAYBE_SIZES,
    other_processes=_some(st.builds(ProcessMemory, _SMALL, _MAYBE_SIZES)),
    own_pid=st.none() | _SMALL,
    phase=st.none() | st.sampled_from(TrainingPhase),
    user_line=_PLACES,
    step=st.none() | _SIZES,
)
_devices = st.sampled_from(get_args(MemoryDevice))
_maybe_small = st.none() | _SMALL
_occurrences = st.builds(
    Occurrence, _TEXTS, _maybe_small, _maybe_small, st.booleans(), _devices, _TEXTS, _TEXTS, _facts, _SMALL
)
_compositions = st.builds(
    Composition,
    _SIZES,
    _SIZES,
    _some(st.builds(CategoryBytes, _CATEGORIES, _SIZES), 7),
    _some(st.builds(MemoryLine, _PLACES, _CATEGORIES, _SIZES, _SMALL)),
)
_points = st.builds(TimelinePoint, _SIZES, st.none() | _SIZES, _SIZES, _BY_CATEGORY | _some(_SIZES))
_snapshots = st.builds(
    SnapshotSummary,
    source=_TEXTS,
    device_index=_SMALL,
    total_bytes=_MAYBE_SIZES,
    has_history=st.booleans(),
    truncated=st.booleans(),
    events=_SIZES,
    end=_compositions,
    peak=_compositions,
    largest=_some(st.builds(LiveAllocation, _SIZES, _CATEGORIES, _PLACES, st.none() | _TEXTS, st.integers(1, 999))),
    fragmentation=st.builds(Fragmentation, _SMALL, _SMALL, _SIZES, _SIZES, _SIZES),
    growing=_some(st.builds(GrowingLine, _PLACES, _CATEGORIES, _SIZES, _SIZES, _SMALL, _SMALL)),
    timeline=_some(_points, 6),
    replay=st.none() | st.builds(HistoryReplay, _SIZES, _SIZES, _maybe_small, st.none() | _TEXTS),
)
_comparisons = st.builds(
    SnapshotComparison,
    _TEXTS,
    _TEXTS,
    _SIZES,
    _SIZES,
    _BY_CATEGORY | _some(_SIZES),
    _BY_CATEGORY,
    _some(st.builds(DifferingLine, _PLACES, _SIZES, _SIZES)),
)
_results = st.builds(
    DiagnosisResult,
    sources=_some(_TEXTS),
    is_oom=st.booleans(),
    device=_devices,
    facts=_facts,
    causes=_some(st.builds(Cause, st.sampled_from(CauseId), st.sampled_from(Confidence), _TEXTS)),
    remedies=_some(st.builds(Remedy, _TEXTS, _TEXTS, st.none() | _TEXTS, _MAYBE_SIZES, _TEXTS)),
    notes=_some(_TEXTS),
    next_steps=_some(st.builds(NextStep, _TEXTS, _TEXTS)),
    occurrences=_some(_occurrences),
    trend=st.none() | st.builds(MemoryTrend, _SMALL, _SMALL, _SMALL, _SIZES, _SIZES, st.booleans(), _SIZES),
    snapshots=_some(_snapshots, 2),
    comparison=st.none() | _comparisons,
)
any_diagnosis = st.builds(
    DiagnosisDocument,
    command=st.just("diagnose"),
    status=st.sampled_from(["oom", "not_oom", "nothing_found"]),
    exit_code=st.integers(0, 255),
    versions=st.dictionaries(_TEXTS, _TEXTS, max_size=3),
    result=_results,
)
