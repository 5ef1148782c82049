"""Import torch once and run each program that is asked for in a fork, on the card that its variables tell.

A request is a line of JSON: `arguments` (the program's path and its arguments), `directory`, `variables` (the whole
environment), the files that `stdout` and `stderr` go to, and one that is written where the program imported `dynamo`.
The answer is a line with the exit code, negative for a signal. Run by `run_python.run_program`.
"""

import atexit
import gc
import json
import os
import runpy
import sys
import threading

import torch  # noqa: F401 - what the server is for


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
        request = json.loads(line)
        child = os.fork()
        if child == 0:
            requests.close()
            answers.close()
            _run(request)
        _, status = os.waitpid(child, 0)
        if "torch._dynamo" not in sys.modules and os.path.exists(request["dynamo"]):  # noqa: PTH110
            import torch._dynamo  # noqa: F401 - as long an import again, which every optimizer makes

            gc.freeze()
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
    if os.environ.keys() & {"OOMDOCTOR_TRIAL_SOCKET", "OOMDOCTOR_RUN_DIRECTORY"}:
        runpy.run_path(os.environ["PYTHONPATH"].split(os.pathsep)[0] + "/sitecustomize.py")  # starts the agent
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
        # Python keeps the error so before it calls the hook, and the agent looks there.
        sys.last_type, sys.last_value, sys.last_traceback = sys.exc_info()
        sys.excepthook(*sys.exc_info())
    finally:
        if "torch._dynamo" in sys.modules:
            open(request["dynamo"], "w").close()  # noqa: PTH123
        threading._shutdown()
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    main()
