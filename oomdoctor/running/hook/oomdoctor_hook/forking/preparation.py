"""From the server's start to its loop, and from the loop into a program."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from . import descendants, ending, hazards, identity, program, serving
from .admission import Server
from .importing import Importer
from .reads import Reads

_MOST_STARTS = 8
_OWN_VARIABLES = {
    # Their threads would be started at import, and would be lost in a fork.
    "OPENBLAS_NUM_THREADS": "1",
    "GOTO_NUM_THREADS": "1",
    "BLIS_NUM_THREADS": "1",
    # PyTorch's compiler would start its processes when it is imported, not when it has something to compile.
    "TORCH_WARM_POOL": "0",
}
_STARTS = "OOMDOCTOR_FORK_STARTS"
_LEFT_OUT = "OOMDOCTOR_FORK_LEFT_OUT"


def serve(arguments: list[str], had: dict[str, Any]) -> program.Call | None:
    """Import, answer, and serve.

    Args:
        arguments: The server's own: itself, the socket's path, the description's path.
        had: What `__main__` had in it at the start.

    Returns:
        What to call, in a process that has become a program; None in the server, once it is no longer needed.
    """
    ending.watch()
    descendants.die_with_parent()
    _leave_terminal()
    description = json.loads(Path(arguments[2]).read_text(encoding="utf-8"))
    interpreter, path = identity.interpreter(), list(sys.path)
    answers = _take_output()
    _quiet_environment(description["environment_at_torch"])
    reads = Reads()
    reads.begin()
    importer = Importer(_left_out())
    importer.run(description["modules"])
    reads.end()
    reason = _why_not(importer, answers)
    if reason:
        _say(answers, {"ready": False, "reason": reason})
        return None
    server = Server(interpreter, description["environment"], path, reads.names, reads.changes())
    loop = serving.Loop(arguments[1], server)
    left_out = sorted({*importer.failed, *importer.excluded})
    _say(answers, {"ready": True, "imported": importer.imported, "left_out": left_out})
    found = loop.run()
    return None if found is None else program.become(found, server, had)


def _leave_terminal() -> None:
    try:  # noqa: SIM105 - one import fewer
        os.setsid()
    except OSError:  # it leads a group already
        pass


def _take_output() -> int:
    """Keep standard output for the answer alone; what imports print is the first trial's to show."""
    answers = os.dup(1)
    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 1)
    os.close(quiet)
    return answers


def _quiet_environment(wanted: dict[str, str]) -> None:
    """Complete this process's environment with what keeps libraries from starting threads."""
    for name, value in _OWN_VARIABLES.items():
        if name not in wanted:
            os.environ[name] = value


def _left_out() -> set[str]:
    return set(filter(None, os.environ.pop(_LEFT_OUT, "").split(",")))


def _why_not(importer: Importer, answers: int) -> str:
    """Why no fork of this process can be trusted; empty where it can. The process may start over for that."""
    starts = int(os.environ.pop(_STARTS, "0"))
    if "torch" in importer.doomed:
        return importer.reason or "torch needs a module that is left out"
    if importer.doomed - importer.excluded:
        if starts >= _MOST_STARTS:
            return importer.reason
        _start_over(importer.excluded | importer.doomed, starts + 1, answers)
    if importer.reason:
        return importer.reason
    if "torch" not in sys.modules:
        return "torch could not be imported"
    return "CUDA would not work in a fork" if hazards.is_poisoned() else ""


def _start_over(left_out: set[str], starts: int, answers: int) -> None:
    os.environ[_LEFT_OUT] = ",".join(sorted(left_out))
    os.environ[_STARTS] = str(starts)
    os.dup2(answers, 1)
    command = identity.command_line()
    os.execv(sys.executable, command)  # noqa: S606 - the same program again


def _say(answers: int, answer: dict[str, Any]) -> None:
    os.write(answers, json.dumps(answer).encode() + b"\n")
    os.close(answers)
