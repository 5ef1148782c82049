"""Lines by which a system, not the program, says that it ended a process for lack of the host's memory."""

from __future__ import annotations

import re
from typing import Final

# A shell's word for a process that was killed, in the languages whose word means nothing else on a line of its own.
_KILLED: Final = "Killed|已杀死|已砍掉|強制終了|죽었음|Getötet|Убито|Terminado \\(killed\\)"

_PATTERNS: Final = {
    "kernel-oom-killer": (
        r"Out of memory: Kill(?:ed)? process \d|Memory cgroup out of memory|invoked oom-killer"
        r"|oom-kill:constraint|oom_reaper: reaped|Killed process \d{1,10} \([^)]{1,64}\)"
    ),
    "slurm-oom": (
        r"oom[-_ ]kill event|task \d{1,6}: Out Of Memory|Exceeded (?:job|step) memory limit"
        r"|\bstate\W{1,4}OUT_OF_ME(?:MORY)?\b|TERM_MEMLIMIT|job killed: \w{0,2}mem "
    ),
    "container-oom": r"\bOOMKilled\b(?!\W{1,4}(?:false|no)\b)|low on resource: memory",
    "host-ray": (
        r"running low on memory|workers? .{0,80}killed .{0,40}due to (?:memory pressure|node running|OOM)"
        r"|exceeded \d{1,3}% memory budget"
    ),
    "host-notebook": r"using all available RAM|Your notebook tried to allocate more memory than is available",
    "host-heap": (
        r"java\.lang\.OutOfMemoryError|instance of 'std::bad_alloc'|heap out of memory|ArrowMemoryError: "
        r"|memory allocation of \d{1,20} bytes failed"
        r"|GC overhead limit exceeded"
    ),
    "host-shared-memory": (
        r"Unexpected bus error encountered in worker|insufficient shared memory|killed by signal:\s{0,3}Bus error"
    ),
    "killed": (
        r"killed by signal:\s{0,3}(?:SIG)?Kill|exit ?code[\s:=(]{1,6}-9\b|return(?:ed| code)\W{1,3}-9\b"
        r"|exit status (?:137|-9)\b"
        r"|exit(?:ed)?(?: with)?(?: (?:code|status|value))?\W{1,3}137\b|code=137\b"
        r"|Signals?\.SIGKILL|signal\W{1,2}9\b|signal SIGKILL|\(SIGKILL\)|died with <?Signals?\W9"
        # As shells print it, with the number of the job or of the process.
        rf"|^(?:{_KILLED})\W?$"
        r"|\bline \d{1,7}:\s{1,9}\d{1,9} Killed\b"
        r"|^\[\d{1,4}\][+-]?\s{1,9}(?:\d{1,9}\s{1,9})?killed\s{1,9}\S"
    ),
}
_NOTICES: Final = tuple((kind, re.compile(pattern, re.IGNORECASE)) for kind, pattern in _PATTERNS.items())

KINDS: Final = tuple(_PATTERNS)
"""Kinds of notices in order of precedence; all of them are about the host's memory."""

_HANDLED: Final = re.compile(r"caller indicates that this is not a failure|recovered from an allocation failure")


def read_notice(line: str) -> tuple[str, int] | None:
    """Name the notice in a line, and where in the line it begins; None where there is none."""
    found = ((kind, pattern.search(line)) for kind, pattern in _NOTICES)
    return next(((kind, match.start()) for kind, match in found if match is not None), None)


def is_handled(line: str) -> bool:
    """Tell whether a line says itself that nothing failed."""
    return _HANDLED.search(line) is not None
