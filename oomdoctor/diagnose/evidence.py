"""Evidence: windows of a text, the errors in them, and the facts of one failure."""

from __future__ import annotations

import re
import textwrap
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import PurePath
from typing import TYPE_CHECKING, Final

from oomdoctor.agent.oom_errors import table
from oomdoctor.results import Category, Facts, TrainingPhase
from oomdoctor.units import GIB, format_size

if TYPE_CHECKING:
    from collections.abc import Iterator

    from oomdoctor.agent.messages import UnknownRead
    from oomdoctor.agent.oom_errors import Row
    from oomdoctor.diagnose.text.printed_tables import CardReading, MemorySummary
    from oomdoctor.results import MemoryDevice, MemoryTrend, ProcessMemory, SnapshotSummary, SourceLine


@dataclass(frozen=True, slots=True)
class Window:
    """A part of a text around a line that may tell of an error, cleaned of colours, prefixes and carriage returns.

    Attributes:
        source: The file as it was given, or `standard input`.
        line_number: Line of the file that `lines[at]` is, from 1.
        rank: The process that printed it, where a prefix says so; other ranks' lines are not in the window.
        lines: At most 200 lines before and 40 after, each at most 8192 characters.
        at: Index in `lines` of the line that may tell of an error.
        count: How often the same line was found, this one included.
        step: The latest training step that the log named before it.
    """

    source: str
    line_number: int
    rank: int | None
    lines: tuple[str, ...]
    at: int
    count: int = 1
    step: int | None = None


@dataclass(frozen=True, slots=True)
class Message:
    """An error's own words, read out of a window.

    Attributes:
        kind: Name of the message, such as `cuda-allocator`: a row of the table of errors.
        is_oom: Whether it says that memory ran out, of a device or of the host.
        device: Whose memory.
        text: The message in one line, at most 2000 characters, wrapped lines joined.
        facts: Its numbers; the phase and the line of the user's are not among them.
        first: Index in the window's lines where it begins.
        last: Index where it ends.
    """

    kind: str
    is_oom: bool
    device: MemoryDevice
    text: str
    facts: Facts
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class ErrorEvidence:
    """An error with all that its window tells.

    Attributes:
        window: Where it was found.
        message: Its words and numbers; its facts have the phase and the user's line too.
        frames: The traceback, outermost first; empty where none was printed.
    """

    window: Window
    message: Message
    frames: tuple[SourceLine, ...] = ()


@dataclass(frozen=True, slots=True)
class JudgedEvidence:
    """All evidence that is judged.

    Attributes:
        sources: What was read.
        events: The errors, in the order in which they were printed; several ranks' are in one list.
        trend: Memory over training steps, where a log tells.
        snapshots: What each snapshot holds.
        steps_done: Optimizer steps that a run finished before it died, where its report tells.
        command: The command line of the process that died, where a run's report tells.
        card_options: Options of `oomdoctor run` that asked for the card and for ranks, where a run's report tells.
        has_reports: Whether reports of a run are among the sources; its snapshots are then of one moment.
        allocator_settings: What `PYTORCH_CUDA_ALLOC_CONF` or its like was set to, where a run's report tells.
        device_names: Names of the devices that the run used, where its report tells.
        address_space_bytes: Limit of the process's address space, as `ulimit -v` sets it, where a run's report tells.
        unknown_reads: Lines that read values which a null GPU does not have, where a run's report tells.
        cards: What the last table of `nvidia-smi` in a log says.
        memory_summary: What the last `torch.cuda.memory_summary()` in a log says.
        empty_sources: Names of those that hold no byte.
        binary_sources: Names of those that are no text, and in which no error was found.
    """

    sources: tuple[str, ...]
    events: tuple[ErrorEvidence, ...] = ()
    trend: MemoryTrend | None = None
    snapshots: tuple[SnapshotSummary, ...] = ()
    steps_done: int | None = None
    command: tuple[str, ...] = ()
    card_options: tuple[str, ...] = ()
    has_reports: bool = False
    allocator_settings: str | None = None
    device_names: tuple[str, ...] = ()
    address_space_bytes: int | None = None
    unknown_reads: tuple[UnknownRead, ...] = ()
    cards: tuple[CardReading, ...] = ()
    memory_summary: MemorySummary | None = None
    empty_sources: tuple[str, ...] = ()
    binary_sources: tuple[str, ...] = ()


# `batch_size=256`, `--per-device-train-batch-size 8`, `"batch_size": 4`, `bs=16`.
_BATCH_SIZE: Final = re.compile(
    r"(?<![a-z])(?:micro_?)?(?:batch[_-]?size|bs)(?:[\"']?\s{0,3}[=:]\s{0,3}|\s{1,3})(\d{1,7})(?![\d.])", re.IGNORECASE
)
_EVALUATION: Final = re.compile(r"(?:eval|val|test|valid)[a-z_]{0,12}batch", re.IGNORECASE)
_SERVER: Final = re.compile(r"\bvllm\b|\bsglang\b|text_generation_server|\blmdeploy\b", re.IGNORECASE)
_SERVER_KINDS: Final = frozenset({"kv-cache", "text-generation-inference"})
_MAPS: Final = re.compile(r"failed to map segment|unable to mmap|\bmmap\b|address space", re.IGNORECASE)
_PINNED: Final = re.compile(r"pin_memory|pinned|\bWSL|microsoft-standard|cudaHostAlloc|cudaMallocHost", re.IGNORECASE)
XLA_KINDS: Final = frozenset({"xla-allocator", "xla-unspecific", "xla-constant"})
_OTHER_FRAMEWORKS: Final = frozenset(
    {"tensorflow-allocator", "paddle-allocator", "onnxruntime", "tensorrt"} | {"cupy-allocation", "rmm-pool"}
)
_LARGEST_CONTEXT_BYTES: Final = 3 * GIB // 2  # what a process holds beside PyTorch's allocator
_SWITCHED_OFF: Final = re.compile(r"_contextlib\.py$|grad_mode\.py$")


@dataclass(frozen=True)
class Situation:
    """One failure and everything that bears on it.

    Attributes:
        case: All evidence.
        event: The error that counts; None where only a snapshot tells of it.
    """

    case: JudgedEvidence
    event: ErrorEvidence | None

    # --- what was read -----------------------------------------------------------------------------------------------

    @cached_property
    def facts(self) -> Facts:
        """The error's facts; without an error, what the snapshot holds of them."""
        if self.event is not None:
            return self._with_tables(self.event.message.facts)
        return Facts() if self.snapshot is None else _facts_of(self.snapshot)

    def _with_tables(self, facts: Facts) -> Facts:
        """Fill in from the log's tables what the error does not say."""
        summary = self.case.memory_summary
        if not self.on_gpu:
            return facts
        if summary is not None and facts.allocated_bytes is None and facts.reserved_bytes is None:
            facts = replace(
                facts,
                allocated_bytes=summary.allocated_bytes,
                reserved_bytes=summary.reserved_bytes,
                reserved_unallocated_bytes=max(0, summary.reserved_bytes - summary.allocated_bytes),
            )
        card = self.card
        if card is None or facts.other_processes:
            return facts if card is None else replace(facts, total_bytes=facts.total_bytes or card.total_bytes)
        own = facts.process_bytes or facts.reserved_bytes or facts.allocated_bytes
        others = [
            process
            for process in card.processes
            if own is None or not own <= (process.used_bytes or 0) <= own + _LARGEST_CONTEXT_BYTES
        ]
        return replace(facts, total_bytes=facts.total_bytes or card.total_bytes, other_processes=tuple(others))

    @cached_property
    def card(self) -> CardReading | None:
        """What `nvidia-smi` said of the card that ran out, by its index and size; None where it said nothing."""
        facts = Facts() if self.event is None else self.event.message.facts
        total = facts.total_bytes
        alike = [one for one in self.case.cards if total is None or abs(one.total_bytes - total) * 10 <= total]
        indexed = [one for one in alike if one.index == facts.gpu_index]
        return next(iter(indexed or (alike if len(alike) == 1 else ())), None)

    @property
    def kind(self) -> str:
        """Name of the message; empty without one."""
        return "" if self.event is None else self.event.message.kind

    @property
    def message(self) -> str:
        """The error's words; empty without one."""
        return "" if self.event is None else self.event.message.text

    @property
    def row(self) -> Row | None:
        """The row of the table of errors that the message is."""
        return table().named(self.kind)

    @property
    def is_oom(self) -> bool:
        """Return whether memory ran out."""
        if self.event is not None:
            return self.event.message.is_oom
        return self.facts.tried_bytes is not None

    @property
    def device(self) -> MemoryDevice:
        """The device whose memory ran out."""
        if self.event is not None:
            return self.event.message.device
        return "none" if self.snapshot is None else "cuda"

    @property
    def on_gpu(self) -> bool:
        """Return whether a device's memory ran out, not the host's."""
        return self.is_oom and self.device not in ("cpu", "none")

    @property
    def phase(self) -> TrainingPhase | None:
        """The phase that the program was in."""
        return self.facts.phase

    @property
    def trend(self) -> MemoryTrend | None:
        """Memory over training steps."""
        return self.case.trend

    @cached_property
    def snapshot(self) -> SnapshotSummary | None:
        """The snapshot of the device that ran out, else the one that holds most."""
        if not self.case.snapshots:
            return None
        index = None if self.event is None else self.event.message.facts.gpu_index
        folder = PurePath(self.event.window.source).parent if self.event is not None else None
        beside = [one for one in self.case.snapshots if self.case.has_reports and PurePath(one.source).parent == folder]
        if beside:  # of several ranks' reports, the one whose error it is
            return max(beside, key=lambda snapshot: snapshot.end.allocated_bytes)
        same = [snapshot for snapshot in self.case.snapshots if snapshot.device_index == index]
        failed = [snapshot for snapshot in self.case.snapshots if snapshot.tried_bytes is not None]
        return max(same or failed or self.case.snapshots, key=lambda snapshot: snapshot.end.allocated_bytes)

    # --- what follows from the numbers -------------------------------------------------------------------------------

    @property
    def held_bytes(self) -> int | None:
        """Bytes that PyTorch's allocator holds, or at least those that it holds in tensors."""
        facts = self.facts
        return facts.allocated_bytes if facts.reserved_bytes is None else facts.reserved_bytes

    @property
    def own_bytes(self) -> int | None:
        """Bytes that this process holds on the device, as far as the message tells."""
        if self.facts.process_bytes is not None:
            return self.facts.process_bytes
        own = [process.used_bytes for process in self.facts.other_processes if process.pid == self.facts.own_pid]
        return own[0] if own and own[0] is not None else self.held_bytes

    @property
    def others(self) -> tuple[ProcessMemory, ...]:
        """Other processes on the card whose memory is known, largest first."""
        known = [
            process
            for process in self.facts.other_processes
            if process.pid != self.facts.own_pid and process.used_bytes is not None
        ]
        return tuple(sorted(known, key=lambda process: -(process.used_bytes or 0)))

    @property
    def others_bytes(self) -> int:
        """Bytes that the listed other processes hold in all."""
        return sum(process.used_bytes or 0 for process in self.others)

    @property
    def outside_bytes(self) -> int | None:
        """Memory of the device that is neither free nor held by this process; contexts and displays are in it."""
        facts, own = self.facts, self.own_bytes
        if facts.total_bytes is None or facts.free_bytes is None or own is None:
            return None
        return max(0, facts.total_bytes - facts.free_bytes - own)

    @cached_property
    def batch_size(self) -> int | None:
        """The batch size that the traceback's code, the command line or the log names; None where none or several."""
        sizes = {
            int(match[1])
            for text in self._texts()
            for match in _BATCH_SIZE.finditer(text)
            if not _EVALUATION.search(text[max(0, match.start() - 20) : match.end()])
        }
        return sizes.pop() if len(sizes) == 1 else None

    @property
    def leaks(self) -> bool:
        """Return whether memory was seen to grow from step to step, so that what is alive is not one step's need."""
        grows = self.snapshot is not None and bool(self.snapshot.growing)
        return grows or (self.trend is not None and self.trend.growing)

    @property
    def handle_refused(self) -> bool:
        """Return whether cuBLAS found no memory for its handle, which it makes before the first matrix product."""
        created = "Create(handle)" in self.message
        return self.kind == "cublas-allocation" and created and self.phase in (TrainingPhase.FORWARD, None)

    @cached_property
    def is_server(self) -> bool:
        """Return whether an inference server died, which has no training batch and reserves its memory beforehand."""
        return any(_SERVER.search(text) for text in self._texts()) or self.kind in _SERVER_KINDS

    @property
    def is_torch(self) -> bool:
        """Return whether PyTorch asked for the memory, and not another framework."""
        return self.kind not in _OTHER_FRAMEWORKS and not self.is_xla

    @property
    def is_tensorflow(self) -> bool:
        """Return whether TensorFlow asked for the memory."""
        return self.kind == "tensorflow-allocator"

    @property
    def is_xla(self) -> bool:
        """Return whether XLA asked for the memory, as JAX has it."""
        return self.kind in XLA_KINDS

    @property
    def maps_memory(self) -> bool:
        """Return whether what failed was a mapping into the address space."""
        return self.device == "cpu" and _MAPS.search(self.message) is not None

    @cached_property
    def mentions_pinned_memory(self) -> bool:
        """Return whether the traceback or the lines before it mention pinned host memory, or WSL."""
        return any(_PINNED.search(text) for text in self._texts())

    @cached_property
    def code(self) -> str:
        """The code of the traceback, a line a frame."""
        frames = () if self.event is None else self.event.frames
        return "\n".join(frame.code or "" for frame in frames)

    @property
    def gradients_off(self) -> bool:
        """Return whether the traceback runs through a function decorated with `no_grad` or `inference_mode`."""
        frames = () if self.event is None else self.event.frames
        return any(_SWITCHED_OFF.search(frame.path) and frame.function == "decorate_context" for frame in frames)

    def category_bytes(self, *categories: Category) -> int | None:
        """Bytes of these categories when memory ran out, as the snapshot tells; None without one."""
        if self.snapshot is None:
            return None
        return sum(part.allocated_bytes for part in self.snapshot.end.categories if part.category in categories)

    def share(self, *categories: Category) -> float:
        """Part of the allocated bytes that these categories are, as the snapshot tells; 0 without one."""
        if self.snapshot is None or not self.snapshot.end.allocated_bytes:
            return 0.0
        return (self.category_bytes(*categories) or 0) / self.snapshot.end.allocated_bytes

    def _texts(self) -> Iterator[str]:
        yield " ".join(self.case.command)
        if self.event is not None:
            yield from (f"{frame.path} {frame.code or ''}" for frame in self.event.frames)
            window = self.event.window
            yield from window.lines[: window.at + 1]


def _facts_of(snapshot: SnapshotSummary) -> Facts:
    held = snapshot.end
    return Facts(
        gpu_index=snapshot.device_index,
        tried_bytes=snapshot.tried_bytes,
        total_bytes=snapshot.total_bytes,
        free_bytes=snapshot.free_bytes,
        allocated_bytes=held.allocated_bytes,
        reserved_bytes=held.reserved_bytes,
        reserved_unallocated_bytes=max(0, held.reserved_bytes - held.allocated_bytes),
        phase=snapshot.phase,
        user_line=snapshot.user_line,
    )


_LONGEST_QUOTATION: Final = 160


def held_by_process(situation: Situation) -> str:
    """The numbers in one clause, such as `: 20.43 GiB allocated, 2.59 GiB free, 3.75 GiB asked for`; maybe empty."""
    facts = situation.facts
    parts = [
        f"{format_size(size)} {word}"
        for size, word in (
            (facts.allocated_bytes, "allocated"),
            (facts.mps_other_bytes, "in other allocations"),
            (facts.mps_max_bytes, "allowed"),
            (facts.free_bytes, "free"),
            (facts.tried_bytes, "asked for"),
        )
        if size is not None
    ]
    if facts.total_bytes is not None and spilled(facts):
        parts.append(f"on a device of {format_size(facts.total_bytes)}, whose driver spills to system memory")
    return f": {', '.join(parts)}" if parts else ""


def spilled(facts: Facts) -> bool:
    """Return whether PyTorch holds more than the device has, so that the driver put a part elsewhere."""
    held = max(facts.allocated_bytes or 0, facts.reserved_bytes or 0)
    return facts.total_bytes is not None and held > facts.total_bytes


def at_batch(situation: Situation) -> str:
    """The batch size, as ` at batch size 8`, where it is known."""
    size = situation.batch_size
    return "" if size is None else f" at batch size {size}"


def mostly(situation: Situation, *categories: Category) -> str:
    """Return the share of allocated memory that these categories are, by the snapshot."""
    part = situation.category_bytes(*categories) or 0
    whole = 0 if situation.snapshot is None else situation.snapshot.end.allocated_bytes
    names = [category.value.replace("_", " ") for category in categories]
    listed = " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)
    return f"{listed[:1].upper()}{listed[1:]} are {format_size(part)} of {format_size(whole)} allocated"


def at(line: SourceLine) -> str:
    """A line of code in a sentence, such as `` `train.py:31` ``."""
    return f"`{line.path}:{line.line}`"


def as_comment(line: SourceLine | None) -> str:
    """A line of code behind a command, such as `  # at train.py:31`; empty where it is not known."""
    return "" if line is None else f"  # at {line.path}:{line.line}"


def quoted(text: str) -> str:
    """The beginning of a message in quotation marks, cut between words."""
    return f"“{textwrap.shorten(text, _LONGEST_QUOTATION, placeholder=' …')}”"
