"""What is handed from reading to judging: windows of a text, and the errors that were read in them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from oomdoctor.results import Facts, MemoryDevice, MemoryTrend, SnapshotSummary, SourceLine


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
class Event:
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
class Case:
    """All evidence that is judged.

    Attributes:
        sources: What was read.
        events: The errors, in the order in which they were printed; several ranks' are in one list.
        trend: Memory over training steps, where a log tells.
        snapshots: What each snapshot holds.
        steps_done: Optimizer steps that a run finished before it died, where its report tells.
        command: The command line of the process that died, where a run's report tells.
        has_reports: Whether reports of a run are among the sources; its snapshots are then of one moment.
        allocator_settings: What `PYTORCH_CUDA_ALLOC_CONF` or its like was set to, where a run's report tells.
    """

    sources: tuple[str, ...]
    events: tuple[Event, ...] = ()
    trend: MemoryTrend | None = None
    snapshots: tuple[SnapshotSummary, ...] = ()
    steps_done: int | None = None
    command: tuple[str, ...] = ()
    has_reports: bool = False
    allocator_settings: str | None = None
