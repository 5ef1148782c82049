"""What a person sees while a probe runs, on a real terminal and in a log."""

from __future__ import annotations

import io
import os
import pty
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from documents import CAPACITY_BYTES, trial
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from oomdoctor.progress import SilentProgress
from oomdoctor.report.progress import LineProgress, LiveProgress, ProvenBounds, make_progress
from oomdoctor.results import Outcome

if TYPE_CHECKING:
    from collections.abc import Callable

    from oomdoctor.progress import Progress

HIDE, SHOW = b"\x1b[?25l", b"\x1b[?25h"
PROBE = """
import os, sys, time
from oomdoctor.report.progress import make_progress
progress = make_progress()
try:
    progress.stage("loading the model")
    progress.trial_started(64, 16, 256)
    print("data on stdout", flush=True)
    {then}
finally:
    progress.close()
"""


def on_a_terminal(then: str, act: Callable[[int], None] = lambda _: None) -> tuple[int, bytes, bytes]:
    """Run the probe above with standard error on a pseudo terminal: (exit code, stdout, what the terminal got)."""
    controller, terminal = pty.openpty()
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "80", "LINES": "24"}
    with subprocess.Popen(
        [sys.executable, "-c", PROBE.format(then=then)], stdout=subprocess.PIPE, stderr=terminal, env=environment
    ) as process:
        os.close(terminal)
        screen = b""
        while b"micro-batch 64" not in screen:
            screen += os.read(controller, 65536)
        act(process.pid)
        # Reading from a pseudo terminal whose last writer is gone is an error on Linux.
        try:
            while chunk := os.read(controller, 65536):
                screen += chunk
        except OSError:
            pass
        finally:
            os.close(controller)
        stdout, _ = process.communicate(timeout=20)
    return process.returncode, stdout, screen


def assert_clean(screen: bytes) -> None:
    """Assert that the cursor is visible and that the display was erased."""
    assert screen.rindex(SHOW) > screen.rindex(HIDE)
    after = screen[screen.rindex(b"micro-batch 64") :]
    assert b"\x1b[2K" in after


def test_live_display_shows_the_trial_and_the_bracket() -> None:
    """A terminal gets the size under trial and the bracket on standard error, and is clean afterwards."""
    code, stdout, screen = on_a_terminal("time.sleep(0.4)")
    assert (code, stdout) == (0, b"data on stdout\n")
    text = re.sub(rb"\x1b\[[0-9;?]*[a-zA-Z]", b"", screen)
    assert b"micro-batch 64, trial 1" in text
    assert b"fits 16 | 17..255 unknown" in text
    assert_clean(screen)


def test_exception_leaves_the_terminal_clean() -> None:
    """An exception in the probe takes the display away before its traceback."""
    code, _, screen = on_a_terminal("raise ValueError('on purpose')")
    assert code == 1
    assert_clean(screen)
    assert screen.index(b"ValueError: on purpose") > screen.rindex(SHOW)


def test_interrupt_leaves_the_terminal_clean() -> None:
    """Ctrl-C takes the display away."""
    code, _, screen = on_a_terminal("time.sleep(20)", lambda pid: os.kill(pid, signal.SIGINT))
    assert code == -signal.SIGINT
    assert_clean(screen)


def test_kill_leaves_the_cursor_visible() -> None:
    """A process that is killed can tidy nothing up, so the cursor is not hidden while it runs."""

    def kill(pid: int) -> None:
        time.sleep(0.2)
        os.kill(pid, signal.SIGKILL)

    code, _, screen = on_a_terminal("time.sleep(20)", kill)
    assert code == -signal.SIGKILL
    assert screen.rindex(SHOW) > screen.rindex(HIDE)


def test_dumb_terminal_gets_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    """A terminal that cannot move its cursor is written to as a log is."""
    monkeypatch.setenv("TERM", "dumb")
    controller, terminal = pty.openpty()
    with os.fdopen(controller, "rb"), os.fdopen(terminal, "w") as stream:
        assert isinstance(make_progress(stream=stream), LineProgress)
        monkeypatch.setenv("TERM", "xterm")
        assert isinstance(make_progress(stream=stream), LiveProgress)


def test_log_gets_one_line_a_trial() -> None:
    """Where nobody watches, each stage and each trial is one plain line."""
    stream = io.StringIO()
    progress = make_progress(stream=stream)
    drive(progress)
    assert stream.getvalue().splitlines() == [
        "loading gpt2",
        "micro-batch 16 fits, peak 19.35 GiB, 0.31 s  [fits 16 | 17..256 unknown]",
        "micro-batch 20 ran out of memory, peak 23.14 GiB, 0.35 s  [fits 16 | 17..19 unknown | 20 ran out of memory]",
        (
            "micro-batch 18 fits with 11.57 GiB allowed, peak 21.53 GiB, 0.33 s  "
            "[fits 16 | 17..19 unknown | 20 ran out of memory]"
        ),
    ]


def test_plain_steps_prove_nothing_of_steps_that_accumulate() -> None:
    """A plain step is told as such, and the bracket stays that of the steps that were asked about."""
    stream = io.StringIO()
    progress = LineProgress(stream)
    for size, outcome, steps in ((7, Outcome.FITS, 2), (8, Outcome.OOM, 2), (8, Outcome.FITS, 1)):
        progress.trial_finished(replace(trial(size, outcome), micro_batches_per_step=steps))

    *_, last = stream.getvalue().splitlines()
    assert "micro-batch 8 fits in a plain step" in last
    assert last.endswith("[fits 7 | 8 ran out of memory]")


def test_quiet_says_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    """With `--quiet` neither stream gets a byte."""
    drive(make_progress(quiet=True))
    assert capfd.readouterr() == ("", "")


def test_nothing_goes_to_standard_output(capfd: pytest.CaptureFixture[str]) -> None:
    """By default progress goes to standard error alone."""
    drive(make_progress())
    out, err = capfd.readouterr()
    assert out == ""
    assert "micro-batch 16 fits" in err


def test_closed_log_does_not_end_the_probe() -> None:
    """A log that was closed is passed over."""
    stream = io.StringIO()
    stream.close()
    drive(LineProgress(stream))


def test_full_disk_does_not_end_the_probe() -> None:
    """A log that takes nothing any more is passed over."""
    stream = Path("/dev/full").open("w", encoding="utf-8")  # noqa: SIM115 - closing it fails, as it must
    drive(LineProgress(stream))
    with pytest.raises(OSError, match="No space"):
        stream.close()


def test_elapsed_time_is_the_clocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The display counts from when it was made."""
    monkeypatch.setenv("TERM", "xterm")
    now = [100.0]
    console = Console(file=io.StringIO(), force_terminal=True, width=80, height=25, color_system=None)
    progress = LiveProgress(console, clock=lambda: now[0])
    now[0] = 112.34
    progress.trial_started(7, 0, 9)
    progress.close()
    assert "micro-batch 7, trial 1 12.3 s" in console.file.getvalue()  # type: ignore[attr-defined]


def test_display_stays_away_once_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """What comes after `close`, called twice or not, draws nothing."""
    monkeypatch.setenv("TERM", "xterm")
    console = Console(file=io.StringIO(), force_terminal=True, width=80, height=25)
    progress = LiveProgress(console)
    progress.close()
    progress.close()
    drive(progress)
    assert console.file.getvalue() == ""  # type: ignore[attr-defined]


def test_silent_progress_is_a_progress() -> None:
    """The default of the probe takes every call."""
    drive(SilentProgress())


@pytest.mark.parametrize(
    ("low", "high", "outcomes", "expected"),
    [
        (0, 257, {}, "1..256 unknown"),
        (16, 257, {}, "fits 16 | 17..256 unknown"),
        (16, 256, {256: Outcome.OOM}, "fits 16 | 17..255 unknown | 256 ran out of memory"),
        (19, 21, {21: Outcome.LIMIT}, "fits 19 | 20 unknown | 21 met a size limit"),
        (19, 20, {20: Outcome.OOM}, "fits 19 | 20 ran out of memory"),
        (0, 1, {1: Outcome.OOM}, "1 ran out of memory"),
        (256, 257, {}, "fits 256"),
    ],
)
def test_bracket_in_words(low: int, high: int, outcomes: dict[int, Outcome], expected: str) -> None:
    """A bracket names what fits, what is unknown and what did not fit, and leaves out what is empty."""
    assert str(ProvenBounds(low, high, outcomes)) == expected


@given(st.lists(st.tuples(st.integers(1, 40), st.sampled_from(Outcome), st.booleans()), max_size=12))
def test_bracket_never_contradicts_itself(drawn: list[tuple[int, Outcome, bool]]) -> None:
    """Whatever trials come in whatever order, a bracket's lower end stays below its upper end."""
    bracket = ProvenBounds(0, 41)
    for size, outcome, whole in drawn:
        bracket.add(trial(size, outcome, allowed_bytes=CAPACITY_BYTES if whole else CAPACITY_BYTES // 2))
        assert bracket.high is None or bracket.low < bracket.high


def drive(progress: Progress) -> None:
    """Tell `progress` of a short probe."""
    progress.stage("loading\x1b[2J gpt2")
    progress.trial_started(16, 0, 257)
    progress.trial_finished(trial(16))
    progress.trial_started(20, 16, 257)
    progress.trial_finished(trial(20, Outcome.OOM))
    progress.trial_started(18, 16, 20)
    progress.trial_finished(trial(18, allowed_bytes=CAPACITY_BYTES // 2))
    progress.close()
