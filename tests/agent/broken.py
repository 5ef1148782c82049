# ruff: noqa: ANN001, ANN002, ANN003, ANN201, ANN202, D103 - a program as people write them
"""A program that meets every part of the agent, run once for each part with that part broken.

Prints a line for each: the part, a tab, how the program ended.
"""

import functools
import gc
import multiprocessing
import os
import resource
import sys
import threading
import types

import torch

HUGE = 1 << 50


def program(words):
    """Train, survive, lose a thread and a child, die."""
    model = torch.nn.Linear(8, 8).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.ones(1, 8, device="cuda")).sum().backward()
    optimizer.step()
    words.write("trained, ")
    try:
        torch.empty(HUGE, device="cuda")
    except RuntimeError:
        words.write("survived, ")
    thread = threading.Thread(target=torch.empty, args=(HUGE,), kwargs={"device": "cuda"})
    thread.start()
    thread.join()
    words.write("thread over, ")
    words.flush()
    child = multiprocessing.get_context("fork").Process(target=out_of_memory)
    child.start()
    child.join()
    words.write(f"child {child.exitcode}, ")
    sys.excepthook = functools.partial(last_words, words, sys.excepthook)
    torch.empty(HUGE, device="cuda")


def out_of_memory():
    raise RuntimeError("CUDA error: out of memory")


def last_words(words, before, kind, error, traceback):
    words.write(f"last words {kind.__name__}")
    words.flush()
    before(kind, error, traceback)
    sys.stderr.flush()
    os._exit(1)  # taking torch apart takes a second


def parts():
    """Give each function and method of the agent, and what else may fail about it."""
    yield "nothing", lambda: None
    for name, module in sorted(sys.modules.items()):
        if not name.startswith("oomdoctor_agent.") or name == "oomdoctor_agent.guard":
            continue
        own = [value for value in vars(module).values() if isinstance(value, type) and value.__module__ == name]
        for owner in (module, *own):
            for attribute, value in sorted(vars(owner).items()):
                if isinstance(value, types.FunctionType) and value.__module__ == name:
                    yield (
                        f"{owner.__name__.rpartition('.')[2]}.{attribute}",
                        functools.partial(break_function, owner, attribute, value),
                    )
        yield f"{name} missing", functools.partial(sys.modules.__setitem__, name, None)
    settings = sys.modules["oomdoctor_agent.settings"]
    yield "an unwritable directory", functools.partial(setattr, settings, "DIRECTORY", "/proc/no/directory")
    yield "no directory", functools.partial(setattr, settings, "DIRECTORY", "")
    yield "a full disk", functools.partial(resource.setrlimit, resource.RLIMIT_FSIZE, (100, 100))


def break_function(owner, attribute, value):
    """Replace a function by one that raises; one that is guarded stays guarded."""

    def broken(*_arguments, **_named):
        raise RuntimeError("broken on purpose")

    guarded = sys.modules["oomdoctor_agent.guard"].guarded
    setattr(owner, attribute, guarded(broken) if hasattr(value, "__wrapped__") else broken)


def start(part):
    """Fork, break and run; give the process and the end of the pipe with its words."""
    read, write = os.pipe()
    sys.stdout.flush()
    child = os.fork()
    if child:
        os.close(write)
        return child, read
    part()
    return None, os.fdopen(write, "w")


def main():
    """Return the pipe to write to in a child, None in the parent when all have ended."""
    from oomdoctor_agent import crash_report  # noqa: F401 - otherwise loaded when the program dies

    gc.collect()
    gc.freeze()  # a collection in a child would copy every page that torch's objects lie on
    running = []
    for name, part in list(parts()):
        child, pipe = start(part)
        if child is None:
            return pipe
        running.append((name, child, pipe))
        if len(running) > 1:
            finish(*running.pop(0))
    for each in running:
        finish(*each)
    return None


def finish(name, child, pipe):
    """Print what a child wrote and how it ended."""
    with os.fdopen(pipe) as words:
        told = words.read()
    _, status = os.waitpid(child, 0)
    print(f"{name}\texit code {os.waitstatus_to_exitcode(status)}, {told}")


if __name__ == "__main__":
    torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1).step()  # loads what every child would load
    WORDS = main()
    if WORDS is not None:
        program(WORDS)
