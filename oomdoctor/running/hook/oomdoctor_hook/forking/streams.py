"""The three standard streams, as Python makes them for a process."""

# ruff: noqa: ANN401 - streams are of several types

from __future__ import annotations

import io
import logging
import sys
from typing import Any

_NAMES = ("stdin", "stdout", "stderr")
_MODES = ("r", "w", "w")


def renew(wanted: list[list[Any]]) -> None:
    """Replace the streams; who holds the old ones goes on writing to the same descriptors.

    Args:
        wanted: For each, what `identity` says of it.
    """
    for number, name in enumerate(_NAMES):
        old, new = getattr(sys, name), _open(number, wanted[number])
        setattr(sys, name, new)
        setattr(sys, f"__{name}__", new)
        _retire(old, new)


def _open(number: int, wanted: list[Any]) -> Any:
    encoding, errors, line_buffering, write_through, buffered = wanted
    mode, label = _MODES[number], f"<{_NAMES[number]}>"
    below: Any = io.open(number, f"{mode}b", -1 if buffered else 0, closefd=False)  # noqa: SIM115, UP020 - it stays
    (below.raw if buffered else below).name = label
    stream = io.TextIOWrapper(
        below, encoding, errors, newline="\n", line_buffering=line_buffering, write_through=write_through
    )
    stream.mode = mode  # type: ignore[misc]
    return stream


def _retire(old: Any, new: Any) -> None:
    """Let nothing lie in the old stream, and give the new one to the handlers that libraries made of it."""
    if hasattr(old, "reconfigure") and old.writable():
        old.reconfigure(line_buffering=True)
    _RETIRED.append(old)
    for reference in list(logging._handlerList):  # type: ignore[attr-defined]  # noqa: SLF001 - there is no other list
        handler = reference() if callable(reference) else reference
        if getattr(handler, "stream", None) is old:
            handler.stream = new


_RETIRED: list[Any] = []
