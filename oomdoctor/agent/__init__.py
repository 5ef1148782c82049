"""Agent: what oomdoctor puts into every Python process of a command. Standard library only, for Python 3.8 and later.

It runs in other people's programs, so it keeps four rules. It uses the standard library alone, and Python 3.8's of it.
It costs nothing where torch is not imported: until then only this module and `imports` are loaded. It changes nothing
that the program could see before memory runs out. And nothing that fails in it leaves it (`guard`).

    imports     notices that torch is imported
    recording   the history of memory, from the moment CUDA is initialised, and each time that it runs out
    frames      where that history looks for Python's frames, and where it need not
    resting     the end of a process on a null GPU, when backward's threads have to rest
    steps       optimizer steps and the memory after each
    endings     errors that nobody handles: in the main thread, in others, in child processes, on the way to `sys.exit`
    evidence    what is written then, and `store` writes it
"""

# ruff: noqa: PLC0415 - what is not needed yet is not imported yet

from __future__ import annotations

import os
import sys

from . import imports


def install() -> None:
    """Wait for torch and for multiprocessing, or begin with what is imported already."""
    _delegate()
    if os.environ.get("OOMDOCTOR_TRIAL_SOCKET"):
        from . import trial_agent

        trial_agent.begin()
        return
    imports.when_imported("multiprocessing.process", _watch_children)
    imports.when_imported("torch", _watch_torch)


def _delegate() -> None:
    """Let a fork of the fork server be this process's program; return where there is none or it refuses."""
    if not os.environ.get("OOMDOCTOR_FORK_SOCKET"):
        return
    try:
        from .forking import proxy

        proxy.delegate()
    except Exception:  # noqa: BLE001, S110 - the program runs here then
        pass


def _watch_children() -> None:
    from . import exception_hooks

    def ended(error: BaseException | None) -> None:
        if error is not None:
            from .exception_hooks import report_death

            report_death(error, "child process")

    exception_hooks.watch_children(sys.modules["multiprocessing.process"], ended)


def _watch_torch() -> None:
    from . import run_agent

    run_agent.watch(sys.modules["torch"])
