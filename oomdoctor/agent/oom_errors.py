"""Recognise errors that say that memory ran out: on a device, on the host, or in /dev/shm.

A short list, so that nothing is missed; `oomdoctor diagnose` judges what was written with a long one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


_LONGEST = 20000
_PHRASES = (
    "out of memory",
    "outofmemory",
    "can't allocate memory",
    "cannot allocate memory",
    "not enough memory",
    "failed to cuda calloc",
    "cublas_status_alloc_failed",
    "cudnn_status_alloc_failed",
    "cufft_alloc_failed",
    "cusolver_status_alloc_failed",
    "nvml_success == r internal assert failed",
    "is killed by signal: bus error",
    "is killed by signal: killed",
)


def find_oom(error: BaseException | None) -> BaseException | None:
    """Find what says that memory ran out: the error, one that it was raised from or while handling, or a member of it.

    An interrupt is none, whatever it interrupted, and neither is `sys.exit()` with success.
    """
    if error is None or isinstance(error, (KeyboardInterrupt, GeneratorExit)):
        return None
    if isinstance(error, SystemExit) and error.code in (None, 0):
        return None
    return next((link for link in walk(error) if _says_oom(link)), None)


def is_allocators(error: BaseException) -> bool:
    """Whether PyTorch's allocator raised it, which then counted it too."""
    return type(error).__name__ == "OutOfMemoryError" and type(error).__module__.startswith("torch")


def text_of(error: BaseException) -> str:
    """Print an error's message; one that fails to print has none."""
    try:
        return str(error)[:_LONGEST]
    except Exception:  # noqa: BLE001 - a program's own `__str__` may raise anything
        return ""


def walk(error: BaseException) -> Iterator[BaseException]:
    """Go through an error and all that it was raised from, while handling, or as a group of."""
    waiting, seen = [error], {id(error)}
    while waiting:
        link = waiting.pop()
        yield link
        for related in _related(link):
            if id(related) not in seen:
                seen.add(id(related))
                waiting.append(related)


def _related(link: BaseException) -> list[BaseException]:
    members = getattr(link, "exceptions", ())  # of a group, which older Pythons have from a package
    group = members if isinstance(members, (list, tuple)) else ()
    related = [member for member in group if isinstance(member, BaseException)]
    context = None if link.__suppress_context__ else link.__context__
    return [*related, *(other for other in (context, link.__cause__) if other is not None)]


def _says_oom(link: BaseException) -> bool:
    if is_allocators(link) or isinstance(link, MemoryError):
        return True
    if not isinstance(link, (RuntimeError, OSError)):
        return False
    text = text_of(link).lower()
    return any(phrase in text for phrase in _PHRASES)
