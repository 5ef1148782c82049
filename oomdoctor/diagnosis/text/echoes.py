"""Errors that only pass on another one: what was raised from it, a launcher's summary, ranks that lost a peer.

What ran out of memory is then told elsewhere in the window, and that is the error that counts.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from oomdoctor.diagnosis.text.errors import read_error
from oomdoctor.diagnosis.text.joining import bare
from oomdoctor.diagnosis.text.kinds import OTHER_ERROR

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from oomdoctor.diagnosis.evidence import Message

_CHAINED: Final = re.compile(r"The above exception was the direct cause|During handling of the above exception")
_PASSED_ON: Final = re.compile(
    r"ChildFailedError|distributed\.elastic|failed \(exitcode|Root Cause|CalledProcessError|returned non-zero exit"
    r"|ProcessExitedException|SIGTERM|signal: Terminated|Sending process|exited with code"
    r"|ncclRemoteError|ncclSystemError|remote process (?:has )?(?:exited|terminated)|communicator was aborted"
    r"|Watchdog caught collective|socketProgress|Connection (?:closed|reset) by (?:remote )?peer|Broken pipe"
    r"|[Ss]ee root cause above|Engine core initialization failed|EngineDeadError|RayTaskError|ActorDiedError"
    r"|DistBackendError|terminate called|Fatal Python error: Aborted",
)
_CARRIES_BELOW: Final = re.compile(
    r"Caught \w{1,60} in |terminated with the following error|ProcessRaisedException|RemoteTraceback|RayTaskError"
)
_WORTH_READING: Final = re.compile(
    r"memory|RESOURCE_EXHAUSTED|ALLOC|cuDNN algorithm|NVML_SUCCESS|buffer size|killed|exit ?code|-9", re.IGNORECASE
)

_MOST_LINES: Final = 240
_MOST_CHARACTERS: Final = 1 << 16  # of lines that are read; hundreds of ordinary ones
_FRAMES_BETWEEN: Final = 60  # lines from "Caught ... in" to the error that it carries


def cause_of(lines: Sequence[str], echo: Message) -> Message | None:
    """Find the error that `echo` passes on, where it says that memory ran out; None where `echo` counts itself."""
    if echo.is_oom and echo.kind != "killed":
        return None
    text = " ".join(bare(line) for line in lines[echo.first : echo.last + 1])
    if _CARRIES_BELOW.search(text) is not None:
        below = range(echo.last + 1, min(len(lines), echo.last + 1 + _FRAMES_BETWEEN))
        found = _first_oom(lines, below)
        if found is not None:
            return found
    if _PASSED_ON.search(text) is not None or echo.kind == "killed":
        above = range(echo.first - 1, max(-1, echo.first - _MOST_LINES), -1)
        return _first_oom(lines, above, device_only=echo.kind == "killed")
    return _first_oom(lines, _ends_of_chain(lines, echo)) if echo.kind == OTHER_ERROR else None


def _ends_of_chain(lines: Sequence[str], error: Message) -> Iterator[int]:
    """Lines above each "The above exception ...", which end the traceback before it, nearest first."""
    for index in range(error.first - 1, max(0, error.first - _MOST_LINES), -1):
        if _CHAINED.match(bare(lines[index])) is None:
            continue
        # A message may have several lines, and an empty one stands below it.
        yield from range(index - 1, max(-1, index - 8), -1)


def _first_oom(lines: Sequence[str], indices: Iterable[int], *, device_only: bool = False) -> Message | None:
    room = _MOST_CHARACTERS
    for index in indices:
        if _WORTH_READING.search(lines[index]) is None:
            continue
        room -= len(lines[index])
        if room < 0:
            break
        message = read_error(lines, index)
        if message is not None and message.is_oom and not (message.device == "cpu" and device_only):
            return message
    return None
