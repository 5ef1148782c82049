"""The progress of a probe and of a check on standard error.

The probe is handed a `Progress` and knows nothing of terminals. Nothing here writes to standard output, and whatever
ends the probe leaves the terminal as it was found.
"""

from __future__ import annotations

import os
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field
from threading import Lock
from typing import TYPE_CHECKING, TextIO, TypeAlias

from oomdoctor.errors import OomdoctorError
from oomdoctor.progress import Progress, SilentProgress
from oomdoctor.report.buckets import turns
from oomdoctor.report.frontier import headline
from oomdoctor.report.plain_text import clean, first_line
from oomdoctor.report.probe.sentences import OUTCOME_WORDS
from oomdoctor.results import Buckets, FrontierResult, Outcome
from oomdoctor.units import format_size

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.console import Console, RenderableType
    from rich.live import Live

    from oomdoctor.results import ProbeResult, Trial


Told: TypeAlias = "ProbeResult | FrontierResult | Buckets | OomdoctorError"
"""Answer to an entry of a check, or the error in its place."""

_REFRESHES_PER_SECOND = 8


def make_progress(*, quiet: bool = False, stream: TextIO | None = None) -> Progress:
    """Choose the display for `stream`, standard error by default: live on a terminal, a line a trial elsewhere."""
    stream = sys.stderr if stream is None else stream
    if quiet:
        return SilentProgress()
    from oomdoctor.output import DUMB_TERMINALS, Terminal, is_terminal  # noqa: PLC0415 - not needed when quiet

    if not is_terminal(stream) or os.environ.get("TERM") in DUMB_TERMINALS:
        return LineProgress(stream)
    terminal = Terminal.of(stream)
    from rich.console import Console  # noqa: PLC0415 - rich costs 40 ms

    console = Console(
        file=stream,
        color_system="standard" if terminal.color else None,
        force_terminal=True,
        legacy_windows=False,
        highlight=False,
        markup=False,
        emoji=False,
    )
    return LiveProgress(console, unicode=terminal.unicode)


@dataclass(slots=True)
class ProvenBounds:
    """Bounds of the maximum that the trials so far prove.

    Attributes:
        low: Largest size that was seen to fit.
        high: Smallest size above `low` that cannot be the answer: it did not fit, or nobody asked for it.
        outcomes: Outcome by size, of the trials that ended with the whole capacity.
        capacity_bytes: What the trials may take at most.
        steps: Most micro-batches in a step of a trial so far.
    """

    low: int = 0
    high: int | None = None
    outcomes: dict[int, Outcome] = field(default_factory=dict)
    capacity_bytes: int = 0
    steps: int = 0

    def narrow(self, low: int, high: int) -> None:
        """Take over what the search knows, unless it contradicts itself."""
        if low < high:
            self.low, self.high = low, high

    def add(self, trial: Trial) -> None:
        """Take over what a trial showed; with headroom withheld or in a plain step it tells nothing of the maximum."""
        if trial.allowed_bytes < self.capacity_bytes or self.is_plainer(trial):
            return
        self.steps = max(self.steps, trial.micro_batches_per_step or 0)
        self.capacity_bytes = trial.allowed_bytes
        self.outcomes[trial.micro_batch] = trial.outcome
        if trial.outcome is Outcome.FITS:
            self.low = max(self.low, trial.micro_batch)
            # Memory need not grow with the size; what ran out below a size that fits bounds nothing.
            self.high = self.high if self.high is None or self.low < self.high else None
        elif trial.micro_batch > self.low and (self.high is None or trial.micro_batch < self.high):
            self.high = trial.micro_batch

    def is_plainer(self, trial: Trial) -> bool:
        """Return whether a trial accumulates nothing, and others did."""
        return (trial.micro_batches_per_step or self.steps) < self.steps

    def __str__(self) -> str:
        """Return the bounds, such as `fits 16 | 17..255 unknown | 256 ran out of memory`."""
        parts = [f"fits {self.low}"] if self.low else []
        if self.high is not None:
            if (unknown := _interval(self.low + 1, self.high - 1)) is not None:
                parts.append(f"{unknown} unknown")
            if self.high in self.outcomes:
                parts.append(f"{self.high} {OUTCOME_WORDS[self.outcomes[self.high]]}")
        return " | ".join(parts)


def _interval(first: int, last: int) -> str | None:
    if first > last:
        return None
    return str(first) if first == last else f"{first}..{last}"


class LineProgress:
    """One line a stage and a finished trial, for logs and CI."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._bracket = ProvenBounds()

    def stage(self, text: str) -> None:
        """Write the stage."""
        self._write(clean(text))

    def trial_started(self, micro_batch: int, low: int, high: int) -> None:
        """Keep the bracket; a log needs a line for what happened, not for what will."""
        del micro_batch
        self._bracket.narrow(low, high)

    def trial_finished(self, trial: Trial) -> None:
        """Write the size, its outcome, its peak and the bracket."""
        self._bracket.add(trial)
        parts = [f"micro-batch {trial.micro_batch} {OUTCOME_WORDS[trial.outcome]}"]
        if self._bracket.is_plainer(trial):
            parts[0] += " in a plain step"
        if trial.allowed_bytes < self._bracket.capacity_bytes:
            parts[0] += f" with {format_size(trial.allowed_bytes)} allowed"
        if trial.peak_allocated_bytes is not None:
            parts.append(f"peak {format_size(trial.peak_allocated_bytes)}")
        parts.append(f"{trial.seconds:.2f} s")
        self._write(f"{', '.join(parts)}  [{self._bracket}]")

    def close(self) -> None:
        """Do nothing; every line was complete."""

    def _write(self, line: str) -> None:
        # A log that went away (closed pipe, full disk) must not end the probe.
        with suppress(OSError, ValueError):
            self._stream.write(f"{line}\n")
            self._stream.flush()


class LiveProgress:
    """Two lines that renew themselves on a terminal and are gone at the end.

    Args:
        console: Where to draw; on standard error.
        unicode: Whether the spinner may use braille characters.
        clock: Seconds, as `time.monotonic` gives them.
    """

    def __init__(self, console: Console, *, unicode: bool = True, clock: Callable[[], float] = time.monotonic) -> None:
        self._console = console
        self._clock = clock
        self._started = clock()
        self._spinner_name = "dots" if unicode else "line"
        self._bracket = ProvenBounds()
        self._trials = 0
        self._text = "starting"
        self._live: Live | None = None
        self._closed = False

    def stage(self, text: str) -> None:
        """Show the stage."""
        self._show(clean(text))

    def trial_started(self, micro_batch: int, low: int, high: int) -> None:
        """Show the size under trial."""
        self._bracket.narrow(low, high)
        self._trials += 1
        self._show(f"micro-batch {micro_batch}, trial {self._trials}")

    def trial_finished(self, trial: Trial) -> None:
        """Show the new bracket."""
        self._bracket.add(trial)
        self._show(f"micro-batch {trial.micro_batch} {OUTCOME_WORDS[trial.outcome]}")

    def close(self) -> None:
        """Take the display away."""
        self._closed = True
        if self._live is not None:
            live, self._live = self._live, None
            live.stop()

    def _show(self, text: str) -> None:
        self._text = text
        if self._live is None and not self._closed:
            self._live = self._start()

    def _start(self) -> Live:
        from rich.live import Live  # noqa: PLC0415 - rich costs 50 ms
        from rich.spinner import Spinner  # noqa: PLC0415

        spinner = Spinner(self._spinner_name)
        # The process's streams stay as they are: Live would send what is printed to stdout to its own console.
        live = Live(
            console=self._console,
            get_renderable=lambda: self._draw(spinner),
            refresh_per_second=_REFRESHES_PER_SECOND,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        live.start()
        # Live hides the cursor, and a process that is killed cannot show it again.
        self._console.show_cursor()
        return live

    def _draw(self, spinner: RenderableType) -> RenderableType:
        from rich.console import Group  # noqa: PLC0415
        from rich.table import Table  # noqa: PLC0415
        from rich.text import Text  # noqa: PLC0415

        line = Table.grid(padding=(0, 1))
        line.add_column(width=1)
        line.add_column(no_wrap=True, overflow="ellipsis")
        line.add_column(no_wrap=True, style="dim")
        line.add_row(spinner, Text(self._text), f"{self._clock() - self._started:.1f} s")
        bracket = Text(f"  {self._bracket}", style="dim", no_wrap=True, overflow="ellipsis")
        return Group(line, bracket) if str(self._bracket) else line


class CheckProgressLines:
    """Writes a line an event.

    Args:
        quiet: Whether to write nothing.
        stream: Where to; standard error by default.
    """

    def __init__(self, *, quiet: bool = False, stream: TextIO | None = None) -> None:
        self._quiet = quiet
        self._stream = sys.stderr if stream is None else stream
        self._lock = Lock()

    def started(self, name: str) -> None:
        """Say that an entry began."""
        self._write(f"{name}: running")

    def finished(self, name: str, answer: Told, *, seconds: float, is_cached: bool) -> None:
        """Say what came of it, and whether that was known."""
        took = "cached" if is_cached else f"{seconds:.1f} s"
        self._write(f"{name}: {_outcome(answer)}, {took}")

    def _write(self, line: str) -> None:
        # A log that went away (closed pipe, full disk) must not end the check.
        with self._lock, suppress(OSError, ValueError):
            if not self._quiet:
                self._stream.write(f"{first_line(line)}\n")
                self._stream.flush()


def _outcome(answer: Told) -> str:
    if isinstance(answer, OomdoctorError):
        return "no answer"
    if isinstance(answer, FrontierResult):
        return headline(answer)
    if isinstance(answer, Buckets):
        return turns(answer)
    maximum = answer.micro_batch.maximum
    return f"micro-batch {maximum} is the largest that fits" if maximum else "nothing fits"
