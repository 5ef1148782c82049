"""What a Python process is: all that decides whether another may stand for it, and what the other then takes over.

Built-in modules alone, as in `wire`.
"""

# ruff: noqa: ANN401, PTH109 - streams have no type here, and pathlib takes longer than all of this

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # `signal` makes enumerations of all it has
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_NEVER_CAUGHT = (9, 19)
_STREAMS = ("stdin", "stdout", "stderr")


def identify(mask: Any) -> dict[str, Any]:
    """Describe this process in values that `wire` can send.

    Args:
        mask: The signals that are blocked in it.
    """
    return {
        "interpreter": interpreter(),
        "executable": sys.executable,
        "path": list(map(str, sys.path)),
        "argv": list(sys.argv),
        "command_line": command_line(),
        "environment": dict(os.environ),
        "cwd": os.getcwd(),
        "umask": _umask(),
        "signals": dispositions(),
        "mask": sorted(int(number) for number in mask),
        "affinity": sorted(os.sched_getaffinity(0)),
        "streams": [_stream(getattr(sys, name)) for name in _STREAMS],
    }


def interpreter() -> dict[str, Any]:
    """What must be equal in both, to the letter."""
    return {
        "version": sys.version,
        "executable": os.path.realpath(sys.executable),
        "prefix": sys.prefix,
        "base_prefix": sys.base_prefix,
        "flags": [int(value) for value in sys.flags],
        "warnoptions": list(sys.warnoptions),
        "xoptions": sorted((str(key), str(value)) for key, value in getattr(sys, "_xoptions", {}).items()),
        "limits": read("/proc/self/limits"),
        "nice": os.nice(0),
        "owner": [os.getuid(), os.geteuid(), os.getgid(), os.getegid()],
    }


def command_line() -> list[str]:
    """The whole command line; `sys.orig_argv` has it only from Python 3.10 on."""
    return [os.fsdecode(part) for part in read("/proc/self/cmdline").split(b"\0")[:-1]]


def dispositions() -> dict[int, str]:
    """What each signal does that is not caught by some code: `ignored`, `default` or, by Python's own, `python`."""
    found = {}
    for number in range(1, _signal.NSIG):
        if number in _NEVER_CAUGHT:
            continue
        try:
            handler = _signal.getsignal(number)
        except ValueError:
            continue
        name = _disposition(handler)
        if name:
            found[number] = name
    return found


def _disposition(handler: Any) -> str:
    if handler == _signal.SIG_IGN:
        return "ignored"
    if handler == _signal.SIG_DFL:
        return "default"
    return "python" if handler is _signal.default_int_handler else ""


def _stream(stream: Any) -> list[Any] | None:
    if stream is None:
        return None
    buffered = hasattr(stream.buffer, "raw")
    return [stream.encoding, stream.errors, bool(stream.line_buffering), bool(stream.write_through), buffered]


def _umask() -> int:
    now = os.umask(0o077)
    os.umask(now)
    return now


def read(path: str) -> bytes:
    """The bytes of a small file."""
    # `open` would make a text layer and its codecs.
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        parts: list[bytes] = []
        while True:
            part = os.read(descriptor, 1 << 16)
            if not part:
                return b"".join(parts)
            parts.append(part)
    finally:
        os.close(descriptor)
