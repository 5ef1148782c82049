"""What a process may have after its imports that a fork of it must not have.

A thread does not come over a fork, and what it held stays held; descriptors would be shared; a child process would have
two parents; and CUDA does not survive a fork at all.
"""

from __future__ import annotations

import os
import sys
from typing import Any

_HARMLESS = ("/dev/null", "/dev/urandom", "/dev/random")
_DESCRIPTORS = "/proc/self/fd"
_LINKS_WITHOUT_THREADS = 2  # of the folder that has one more for each thread


class Watch:
    """Compares with what the process had before its imports."""

    def __init__(self) -> None:
        # What cannot be read is the descriptor that listed the folder; the next that is opened has its number.
        self._descriptors = frozenset(name for name in _descriptors() if _target(name))

    def found(self) -> str:
        """What there is now that was not there before; empty where a fork is still safe."""
        if os.stat("/proc/self/task").st_nlink - _LINKS_WITHOUT_THREADS > 1:  # noqa: PTH116 - after thousands of modules
            return "started a thread"
        return "initialised CUDA" if _is_cuda_initialised() else ""

    def keeps_descriptors(self) -> bool:
        """Whether a descriptor is open that was not before; while a module still runs it may yet be closed."""
        return bool(_kept(_descriptors() - self._descriptors))

    def found_at_end(self) -> str:
        """Everything, with what takes longer to see."""
        if has_children():
            return "started a process"
        return "keeps a descriptor open" if self.keeps_descriptors() else self.found()


def has_children() -> bool:
    """Whether there is a process below this one."""
    try:
        os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        return False
    return True


def is_poisoned() -> bool:
    """Whether a fork of this process could not use CUDA any more, as PyTorch sees it. Only a fork can tell."""
    pid = os.fork()
    if pid == 0:
        answer = 1
        try:
            answer = int(bool(torch_function("_cuda_isInBadFork")()))
        finally:
            os._exit(answer)
    return os.waitpid(pid, 0)[1] != 0


def torch_function(name: str) -> Any:  # noqa: ANN401 - torch has no type here
    """A function of `torch._C`; one that answers False where this torch has none of that name."""
    return getattr(getattr(sys.modules.get("torch"), "_C", None), name, lambda *_: False)


def _is_cuda_initialised() -> bool:
    cuda = sys.modules.get("torch.cuda")
    return bool(getattr(cuda, "_initialized", False))


def _descriptors() -> set[str]:
    return set(os.listdir(_DESCRIPTORS))  # noqa: PTH208 - after each of thousands of modules


def _kept(names: set[str]) -> list[str]:
    return [name for name in names if _target(name) not in ("", *_HARMLESS)]


def _target(name: str) -> str:
    """What a descriptor is of; empty where it has gone."""
    try:
        return os.readlink(f"{_DESCRIPTORS}/{name}")  # noqa: PTH115 - as above
    except OSError:
        return ""
