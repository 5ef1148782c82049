# ruff: noqa: ANN001, ANN201, ANN202, ANN204, D103, N818, SIM105, UP036 - a program as people write them
"""Ways for a program to run out of memory, each in a forked process of its own: torch is imported once for all.

Usage: python scenarios.py NAME...    Exits with 1. A child that gets to its end prints `NAME went on`.
"""

import atexit
import multiprocessing
import os
import signal
import sys
import threading


def leave_quickly():
    """Skip the seconds that taking torch apart needs; registered first, so it runs after everybody else."""
    if isinstance(getattr(sys, "last_value", None), Exception):
        sys.stdout.flush()
        os._exit(1)


atexit.register(leave_quickly)

import torch  # noqa: E402

HUGE = 1 << 50


def say(line):
    """Print a line in one piece, so that two processes never mix theirs."""
    os.write(1, f"{line}\n".encode())


def run_out():
    return torch.empty(HUGE, device="cuda")


def spawned(index):
    run_out()


def train(steps):
    model = torch.nn.Linear(64, 64).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(steps):
        model(torch.ones(4, 64, device="cuda")).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    return model, optimizer


def unhandled():
    held = train(3)
    run_out()
    del held


def survived():
    try:
        run_out()
    except torch.OutOfMemoryError:
        pass


def swallowed_then_died():
    for _ in range(2):
        try:
            run_out()
        except torch.OutOfMemoryError:
            pass
    run_out()


def swallowed_then_other_error():
    survived()
    raise KeyError("not memory")


def wrapped():
    try:
        run_out()
    except torch.OutOfMemoryError as error:
        raise ValueError("training failed") from error


def hook_installed_later():
    def own(kind, error, traceback):
        say("own hook")

    sys.excepthook = own
    run_out()


def hook_installed_after_oom():
    try:
        run_out()
    except torch.OutOfMemoryError:
        sys.excepthook = lambda *_: say("own hook")
        raise


def hostile_hook():
    def own(kind, error, traceback):
        raise RuntimeError("the hook fails")

    sys.excepthook = own
    run_out()


def logged_exit():
    try:
        run_out()
    except RuntimeError as error:
        say(f"logged {type(error).__name__}")
        sys.exit(3)


def caught_exit():
    try:
        logged_exit()
    except SystemExit:
        train(1)  # training goes on, so that nothing has ended


def exit_with_success():
    try:
        run_out()
    except RuntimeError:
        sys.exit(0)


def thread():
    worker = threading.Thread(target=run_out)
    worker.start()
    worker.join()
    sys.exit(1)


def forked_child():
    child = multiprocessing.get_context("fork").Process(target=run_out)
    child.start()
    child.join()
    sys.exit(child.exitcode)


def spawned_child():
    torch.multiprocessing.spawn(spawned, nprocs=1)


def driver_error():
    raise RuntimeError("CUDA error: out of memory")


def host_memory():
    torch.empty(1 << 60)


def group():
    try:
        run_out()
    except RuntimeError as error:
        if sys.version_info >= (3, 11):
            raise ExceptionGroup("several", [KeyError(1), error]) from None
        raise


def left_at_once():
    try:
        run_out()
    except RuntimeError:
        os._exit(9)


def interrupted():
    try:
        run_out()
    except RuntimeError:
        os.kill(os.getpid(), signal.SIGINT)
        signal.pause()


def unprintable():
    class Unprintable(RuntimeError):
        def __str__(self):
            raise ValueError("no text")

    try:
        run_out()
    except RuntimeError:
        raise Unprintable from None


def chosen():
    """Fork once a name; the parent waits for all and leaves."""
    children = {}
    for name in sys.argv[1:]:
        child = os.fork()
        if child == 0:
            return name
        children[child] = name
    for child, name in children.items():
        _, status = os.waitpid(child, 0)
        say(f"{name} {child} {os.waitstatus_to_exitcode(status)}")
    sys.exit(1)


if __name__ == "__main__":
    NAME = chosen()
    globals()[NAME]()
    say(f"{NAME} went on")
