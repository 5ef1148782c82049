"""Count the files that one probe runs through, from the command line to the report, in the parent and its worker.

A file counts where a function of the package in it ran that no import called: neither bodies of modules and classes nor
decorators count, nor do the methods that dataclasses generate. The target itself, a shipped example, is the user's. The
guardian runs without site-packages, where nothing can be watched.

Usage: path_files.py [ARGUMENTS OF oomdoctor...], by default `probe gpt2 --target-batch 64 --gpu rtx-4090`.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from tempfile import TemporaryDirectory

import oomdoctor

PACKAGE = Path(oomdoctor.__file__).parent
DEFAULT = ("probe", "gpt2", "--target-batch", "64", "--gpu", "rtx-4090")
WATCH = """
import os, sys, threading

PACKAGE, ACCOUNT, SEEN = os.environ["PATH_FILES_PACKAGE"], os.environ["PATH_FILES_ACCOUNT"], set()


def note(frame, event, _):
    code = frame.f_code
    if event != "call" or code in SEEN or code.co_name == "<module>" or not code.co_filename.startswith(PACKAGE):
        return
    caller = frame.f_back
    while caller is not None:
        if caller.f_code.co_filename.startswith("<frozen importlib"):
            return
        caller = caller.f_back
    SEEN.add(code)
    with open(ACCOUNT, "a") as account:
        account.write(f"{code.co_filename[len(PACKAGE) + 1:]}\\t{code.co_qualname}\\n")


sys.setprofile(note)
threading.setprofile(note)
"""


def files_of(arguments: list[str]) -> dict[str, set[str]]:
    """Run a command, and return the functions that ran by file."""
    with TemporaryDirectory() as folder:
        Path(folder, "sitecustomize.py").write_text(WATCH, encoding="utf-8")
        account = Path(folder, "account.txt")
        own = {"PYTHONPATH": folder, "PATH_FILES_PACKAGE": str(PACKAGE), "PATH_FILES_ACCOUNT": str(account)}
        command = [sys.executable, "-m", "oomdoctor", *arguments]
        subprocess.run(command, env={**os.environ, **own}, stdout=subprocess.DEVNULL, check=True)
        lines = account.read_text(encoding="utf-8").splitlines()
    found: defaultdict[str, set[str]] = defaultdict(set)
    for line in lines:
        file, function = line.split("\t")
        found[file].add(function)
    found["trial/process.py"].add("main")
    return {file: functions for file, functions in sorted(found.items()) if not file.startswith("examples/")}


def main(arguments: list[str]) -> int:
    """Print each file with the number of its functions that ran, and how many files there are."""
    found = files_of(arguments or [*DEFAULT])
    for file, functions in found.items():
        print(f"{len(functions):4}  {file}")
    print(f"{len(found):4}  files")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
