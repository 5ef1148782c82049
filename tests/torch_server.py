"""Import torch once and run each program that is asked for in a fork, on the card that its variables tell.

A request is a line of JSON: `arguments` (the program's path and its arguments), `directory`, `variables` (the whole
environment), and the files that `stdout` and `stderr` go to. The answer is a line with the exit code, negative for a
signal. Run by `run_python.run_program`.
"""

import atexit
import gc
import json
import os
import runpy
import sys
import threading
import traceback

gc.disable()  # importing torch makes a million objects and no garbage

gc.enable()


def main() -> None:
    """Serve until the other end is closed."""
    requests = os.fdopen(os.dup(0), "rb")
    answers = os.fdopen(os.dup(1), "wb", buffering=0)
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    gc.collect()
    gc.freeze()  # a collection in a fork would copy every page that torch's objects lie on
    while line := requests.readline():
        child = os.fork()
        if child == 0:
            requests.close()
            answers.close()
            _run(json.loads(line))
        _, status = os.waitpid(child, 0)
        answers.write(b"%d\n" % os.waitstatus_to_exitcode(status))
    os._exit(0)


def _run(request: dict) -> None:
    """Be the program; ends the process without taking torch apart, which takes a second."""
    for descriptor, name in ((1, "stdout"), (2, "stderr")):
        os.dup2(os.open(request[name], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), descriptor)
    os.environ.clear()
    os.environ.update(request["variables"])
    os.chdir(request["directory"])
    sys.argv = request["arguments"]
    sys.path[0] = os.path.dirname(sys.argv[0])  # noqa: PTH120
    code = 1
    try:
        runpy.run_path(sys.argv[0], run_name="__main__")
        code = 0
    except SystemExit as error:
        if error.code is None or isinstance(error.code, int):
            code = error.code or 0
        else:
            print(error.code, file=sys.stderr)
    except BaseException:  # noqa: BLE001 - the end of this process, told as Python tells it
        traceback.print_exc()
    finally:
        threading._shutdown()
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    main()
