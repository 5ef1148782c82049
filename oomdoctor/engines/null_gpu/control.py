"""Control of the null GPU from inside a process that runs on it.

Nothing here imports torch: the calls go to the preloaded library, which every process on a null GPU has.
"""

from __future__ import annotations

import ctypes
from functools import cache

_UNKNOWN_CALLS = "oomdoctor_null_unknown_calls"


@cache
def _library() -> ctypes.CDLL:
    library = ctypes.CDLL(None)
    for name in ("oomdoctor_null_capacity", "oomdoctor_null_used", "oomdoctor_null_peak_used", "oomdoctor_null_reads"):
        getattr(library, name).restype = ctypes.c_uint64
    library.oomdoctor_null_set_capacity.argtypes = [ctypes.c_uint64]
    library.oomdoctor_null_set_capacity.restype = None
    library.oomdoctor_null_note_files.argtypes = [ctypes.c_int]
    library.oomdoctor_null_note_files.restype = None
    unknown_calls = getattr(library, _UNKNOWN_CALLS)
    unknown_calls.argtypes = [ctypes.c_char_p, ctypes.c_size_t]
    unknown_calls.restype = ctypes.c_size_t
    return library


def is_null_gpu() -> bool:
    """Return whether this process runs on a null GPU. Where it does not, all but `reads` raise AttributeError."""
    return hasattr(ctypes.CDLL(None), _UNKNOWN_CALLS)


def capacity_bytes() -> int:
    """Return the bytes that PyTorch may take from the device."""
    return int(_library().oomdoctor_null_capacity())


def set_capacity_bytes(capacity: int) -> None:
    """Set the bytes that PyTorch may take; existing allocations stay, even where they exceed them.

    The device's total becomes the capacity plus the context's share. `torch.cuda.mem_get_info` follows at once;
    `torch.cuda.get_device_properties` answers with what it was when PyTorch first asked.
    """
    _library().oomdoctor_null_set_capacity(capacity)


def used_bytes() -> int:
    """Return the bytes allocated on the device by all libraries, in whole pages of 2 MiB."""
    return int(_library().oomdoctor_null_used())


def peak_used_bytes() -> int:
    """Return the most bytes that were allocated on the device at one time."""
    return int(_library().oomdoctor_null_peak_used())


def reads() -> int:
    """Return how often zeros were copied from a null GPU to the host; 0 where there is no null GPU."""
    return int(_library().oomdoctor_null_reads()) if is_null_gpu() else 0


def note_files(descriptor: int) -> None:
    """Append from now on the path of each file that is opened to read, also by native code, each with a zero byte.

    Args:
        descriptor: File descriptor, open for appending, so that forks can share it.
    """
    _library().oomdoctor_null_note_files(descriptor)


def unknown_calls() -> tuple[str, ...]:
    """Return the names of functions that were called and are not served, in the order of their first call."""
    size = int(_library().oomdoctor_null_unknown_calls(None, 0)) + 1
    buffer = ctypes.create_string_buffer(size)
    _library().oomdoctor_null_unknown_calls(buffer, size)
    return tuple(buffer.value.decode().splitlines())
