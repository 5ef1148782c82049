"""Work in threads ends, whenever it is interrupted."""

from __future__ import annotations

import os
import select
import signal
import sys
from threading import Timer
from typing import TYPE_CHECKING

import pytest

from oomdoctor.trial.parallel import interrupts_set, run_all
from oomdoctor.trial.process import CancelToken

if TYPE_CHECKING:
    from types import FrameType

MOST_LINES = 5000


def wait_for_stop(stop: CancelToken) -> None:
    """Do what a piece of work does that is stopped."""
    select.select([stop.fd], [], [])
    raise KeyboardInterrupt


class InterruptAtLine:
    """Interrupts the main thread as it begins the line with this number of all those that it runs.

    Attributes:
        lines_left: Lines until then; not 0 where the thread ran fewer, and was interrupted while it waited.
    """

    def __init__(self, line: int) -> None:
        self.lines_left = line
        self._is_over = False

    def while_waiting(self) -> None:
        """Interrupt the main thread now."""
        self._is_over = True
        os.kill(os.getpid(), signal.SIGINT)

    def __call__(self, _frame: FrameType, event: str, _argument: object) -> InterruptAtLine:
        """Count a line; a trace function of `sys.settrace`."""
        if event == "line" and not self._is_over:
            self.lines_left -= 1
            if self.lines_left == 0:
                self._is_over = True
                signal.raise_signal(signal.SIGINT)
        return self


# What a handler raises in the callback of a weak reference, Python drops; then the wait is interrupted late.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.timeout(120)
def test_an_interrupt_at_any_line_ends_all_pieces() -> None:
    """Whichever line of the wait for two pieces an interrupt meets, the wait ends as interrupted."""
    for line in range(1, MOST_LINES):
        interrupt = InterruptAtLine(line)
        late = Timer(0.5, interrupt.while_waiting)
        late.start()
        with pytest.raises(KeyboardInterrupt):
            interrupted_run(interrupt, late, CancelToken())
        if interrupt.lines_left:
            break

    assert 100 < line < MOST_LINES - 1


def interrupted_run(interrupt: InterruptAtLine, late: Timer, stop: CancelToken) -> None:
    """Run pieces that wait to be stopped, and interrupt them at a line, or late."""
    before = sys.gettrace()
    sys.settrace(interrupt)
    try:
        run_all([wait_for_stop] * 3, 2, stop)
    finally:
        sys.settrace(before)
        if not interrupt.lines_left:
            late.cancel()
        late.join()


def interrupted_times(times: int, stop: CancelToken, seen: list[bool]) -> None:
    """Interrupt a block so often, and note whether its token was set."""
    with interrupts_set(stop):
        for _ in range(times):
            signal.raise_signal(signal.SIGINT)
        seen.append(stop.is_set)


def test_a_signal_is_raised_once_the_block_has_ended() -> None:
    """In the block a signal sets the token; after it the handler is the one of before, and the interrupt is raised."""
    seen: list[bool] = []
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        interrupted_times(1, CancelToken(), seen)

    assert seen == [True]
    assert signal.getsignal(signal.SIGINT) is before


def test_a_second_signal_is_raised_at_once() -> None:
    """Who interrupts twice waits for nothing."""
    seen: list[bool] = []
    with pytest.raises(KeyboardInterrupt):
        interrupted_times(2, CancelToken(), seen)

    assert seen == []
