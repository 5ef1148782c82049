"""Agent: what oomdoctor puts into every Python process of a command.

It runs in other people's programs, so it keeps four rules. It uses the standard library alone, and Python 3.8's of it.
It costs nothing where torch is not imported: until then only this module and `imports` are loaded. It changes nothing
that the program could see before memory runs out. And nothing that fails in it leaves it (`guard`).

`bootstrap/sitecustomize.py` loads it as the package `oomdoctor_agent`, from its folder. The parent imports the same
files as `oomdoctor.agent`, for the messages, the meter and the allocator's blocks; so they import each other relatively
and nothing else of oomdoctor.

    run_agent     the agent of `oomdoctor run`, and `crash_report` what it writes
    trial_agent   the agent of a trial, and `training_agent` its part for a process that trains
    forking       the fork server, from which the Pythons of later trials start
"""

# ruff: noqa: PLC0415 - what is not needed yet is not imported yet

from __future__ import annotations

import os
import sys

from . import imports

TYPE_CHECKING = False  # type checkers know the name; `typing` takes longer to import than all of this
if TYPE_CHECKING:
    from .run_agent import RunAgent


_PR_SET_PDEATHSIG = 1


def install() -> None:
    """Wait for torch and for multiprocessing, or begin with what is imported already."""
    _delegate()
    if os.environ.get("OOMDOCTOR_TRIAL_SOCKET"):
        from .trial_agent import TrialAgent

        TrialAgent().begin()
        return
    if os.environ.get("OOMDOCTOR_LONE_PARENT") == str(os.getppid()):
        _end_with_parent()
    agents: list[RunAgent] = []
    imports.when_imported("multiprocessing.process", lambda: _watch_children(agents))
    imports.when_imported("torch", lambda: _watch_torch(agents))


def _end_with_parent() -> None:
    """Have a rank that runs alone end where `oomdoctor run` is killed, as a launcher's ranks end with it."""
    import ctypes
    import signal

    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.environ["OOMDOCTOR_LONE_PARENT"] != str(os.getppid()):  # it was killed meanwhile
        os.kill(os.getpid(), signal.SIGKILL)


def _delegate() -> None:
    """Let a fork of the fork server be this process's program; return where there is none or it refuses."""
    if not os.environ.get("OOMDOCTOR_FORK_SOCKET"):
        return
    try:
        from .forking.proxy import delegate

        delegate()
    except Exception:  # noqa: BLE001, S110 - the program runs here then
        pass


def _watch_children(agents: list[RunAgent]) -> None:
    from .exception_hooks import watch_children

    def ended(error: BaseException | None) -> None:
        for agent in agents:
            agent.report_death(error, "child process")

    watch_children(sys.modules["multiprocessing.process"], ended)


def _watch_torch(agents: list[RunAgent]) -> None:
    from .run_agent import RunAgent

    agents.append(RunAgent(sys.modules["torch"]))
    agents[0].begin()
