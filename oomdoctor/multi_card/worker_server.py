"""Server of workers: a process that has imported torch, has touched no CUDA, and forks a worker for each request.

Each worker has a guardian of its own, which is forked too, and a session of its own. A request is one message on the
socket: the worker's directory and the variables of its environment as JSON, and six descriptors: the guardian's
lifeline, where the end of the worker is reported, its requests, its answers, its output, and one that only the guardian
keeps open. The answer is one byte once the guardian runs.

Usage: worker_server SOCKET_FD
"""

from __future__ import annotations

import gc
import json
import os
import signal
import socket
import sys
import traceback
from typing import Final

from oomdoctor.agent import null_gpu
from oomdoctor.multi_card.workers import READY
from oomdoctor.trial import worker
from oomdoctor.trial.process import guard

_MOST_BYTES: Final = 65536
_DESCRIPTORS: Final = 6


def main(arguments: list[str]) -> int:
    """Fork workers until the parent closes the socket."""
    requests = socket.socket(fileno=int(arguments[0]))
    null_gpu.prepare()
    gc.collect()
    gc.freeze()  # a collection in a worker would copy every page that torch's objects lie on
    requests.send(READY)
    while True:
        message, descriptors, _, _ = socket.recv_fds(requests, _MOST_BYTES, _DESCRIPTORS)
        if not message:
            return 0
        if os.fork() == 0:
            requests.close()
            request = json.loads(message)
            _run_guardian(request["directory"], request["variables"], descriptors)
        for descriptor in descriptors:
            os.close(descriptor)
        requests.send(READY)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            pass


def _run_guardian(directory: str, variables: dict[str, str], descriptors: list[int]) -> None:
    """Be a worker's guardian until nothing of the worker is left."""
    lifeline, report, requests, answers, output, _ = descriptors
    os.setsid()
    os.chdir(directory)
    for stream in (1, 2):
        os.dup2(output, stream)
    os.close(output)

    def start() -> int:
        pid = os.fork()
        if pid == 0:
            for descriptor in (lifeline, report, descriptors[-1]):
                os.close(descriptor)
            _run_worker(variables, requests, answers)
        for descriptor in (requests, answers):
            os.close(descriptor)
        return pid

    try:
        guard(start, lifeline, report)
    finally:  # an error of ours must not go on as a second server
        os._exit(0)


def _run_worker(variables: dict[str, str], requests: int, answers: int) -> None:
    """Be a worker until the parent closes the channel; as a fresh interpreter would be, but for what is imported."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    os.environ.update(variables)
    sys.argv = [str(worker.__file__), str(requests), str(answers)]
    code = 1
    try:
        code = worker.main(sys.argv[1:])
    except BaseException:  # noqa: BLE001 - it is the end of this process, and its output is kept
        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(code)


if __name__ == "__main__":
    # Without the ends of libraries, which have nothing to put away: this process used none of them.
    os._exit(main(sys.argv[1:]))
