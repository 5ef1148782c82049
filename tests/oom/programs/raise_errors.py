# ruff: noqa: ANN001, ANN201 - a program as people write them
"""Raise each error of a file, unhandled, in a forked process of its own: torch is imported once for all.

Usage: python raise_errors.py ERRORS.json    Prints `PID NAME` for each.
"""

import atexit
import builtins
import json
import os
import sys
from pathlib import Path

atexit.register(lambda: os._exit(1))  # the first to register runs last: taking torch apart needs seconds

import torch  # noqa: E402, F401 - the agent waits for it


def make_error(types, text):
    """An error of the first type, whose bases are the others."""
    made = Exception
    for name in reversed(types):
        module, _, short = name.rpartition(".")
        made = type(short, (made,), {"__module__": module}) if module else getattr(builtins, short)
    return made(text)


def chosen(errors):
    """Fork once an error; the parent waits for all and leaves."""
    for error in errors:
        child = os.fork()
        if child == 0:
            return error
        os.waitpid(child, 0)
        print(child, error["name"], flush=True)
    os._exit(0)


with Path(sys.argv[1]).open(encoding="utf-8") as file:
    ERROR = chosen(json.load(file))
raise make_error(ERROR["types"], ERROR["text"])
