"""What a null GPU has noted: the library that answers for it is loaded into the process."""

# ruff: noqa: ANN401 - ctypes has no types

from __future__ import annotations

import ctypes
import os
from typing import Any


def _library() -> Any:
    return ctypes.CDLL(None) if "OOMDOCTOR_NULL_NAME" in os.environ else None


def reads() -> int:
    """How often data was read back from it, each time zeros; 0 where there is none."""
    function = getattr(_library(), "oomdoctor_null_reads", None)
    if function is None:
        return 0
    function.restype = ctypes.c_uint64
    return int(function())


def unknown_calls() -> list[str]:
    """Functions that were called and that it does not serve."""
    function = getattr(_library(), "oomdoctor_null_unknown_calls", None)
    if function is None:
        return []
    function.restype = ctypes.c_size_t
    function.argtypes = [ctypes.c_char_p, ctypes.c_size_t]
    room = int(function(None, 0)) + 1
    buffer = ctypes.create_string_buffer(room)
    function(buffer, room)
    return buffer.value.decode(errors="replace").splitlines()
