"""Literals that a trial sets: a program runs as if its files had been edited, however they are run."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from listening import listening, trial_environment

from oomdoctor.command.template import Sizes, edits_of
from oomdoctor.request import read_override
from oomdoctor.target.literals import find_literals

_MAIN = """\
import atexit, multiprocessing, runpy, sys, threading
from dataclasses import dataclass

import config  # BATCH is its own

BATCH = 16; NAME = "\u00e9"; print(NAME)
(WIDTH, DEPTH) = (2 *
                  3, 4)


@dataclass
class Options:
    batch_size: int = 32


def child(queue):
    queue.put((__name__, BATCH))


def train(limit=8, *, seed=1, **more):
    print(limit, seed, more)


if __name__ == "__main__":
    print(BATCH, WIDTH, DEPTH, Options().batch_size, config.BATCH, {"rate": 0.5})
    train(decay=0.25)
    print(__file__, __spec__ and __spec__.name, sys.argv, sys.path[0], sorted(vars(sys.modules["__main__"])))
    print(runpy.run_path("config.py")["BATCH"], sys.gettrace())
    atexit.register(print, "at exit")
    threading.Timer(0.05, print, ["in a thread"]).start()
    if "spawn" in sys.argv:
        context = multiprocessing.get_context("spawn")
        queue = context.SimpleQueue()
        process = context.Process(target=child, args=(queue,))
        process.start()
        print(queue.get())
        process.join()
    if "raise" in sys.argv:
        raise ValueError(BATCH)
    if "exit" in sys.argv:
        sys.exit(BATCH)
"""
_CHANGES = {
    "main.py:BATCH={micro_batch}": ("BATCH = 16", "BATCH = 7"),
    "main.py:NAME='e'": ('"\u00e9"', "'e'"),
    "main.py:7:WIDTH=(1, {accumulation_steps})": ("(2 *\n                  3, 4)", "((1, 3),\n 4)"),
    "main.py:batch_size=-{micro_batch}": ("32", "-7"),
    "main.py:limit=None": ("limit=8", "limit=None"),
    "main.py:decay={world_size}": ("0.25", "1"),
    "main.py:rate='1'": ("0.5", "'1'"),
    "config.py:BATCH=[{micro_batch}, 'x']": ("5", "[7, 'x']"),
}


def _run(here: Path, words: list[str], *sets: str) -> tuple[subprocess.CompletedProcess[str], set[str]]:
    """Run Python in a trial with literals set; return how it ended, and the files that it told of."""
    found = find_literals([read_override(text) for text in sets], here)
    edits = json.dumps(edits_of(found, Sizes(7, 3, 1))) if sets else ""
    with listening() as listener:
        environment = trial_environment(listener.path, OOMDOCTOR_TRIAL_LITERALS=edits)
        environment |= {"PYTHONPYCACHEPREFIX": str(here / "cache"), "PYTHONDONTWRITEBYTECODE": ""}
        ended = subprocess.run(
            [sys.executable, *words], env=environment, cwd=here, capture_output=True, text=True, check=False
        )
    return ended, {Path(one["path"]).name for one in listener.named("literals")}


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """A user's folder."""
    (tmp_path / "main.py").write_text(_MAIN, encoding="utf-8")
    (tmp_path / "config.py").write_text("BATCH = 5\n")
    return tmp_path


@pytest.mark.parametrize("words", ["-m main", "main.py spawn", "-u ./main.py raise", "main.py exit"])
def test_a_program_runs_as_if_its_files_had_been_edited(here: Path, words: str) -> None:
    """Output, traceback, exit code, names of `__main__` and its end are those after an edit by hand."""
    got, told = _run(here, words.split(), *_CHANGES)
    kept = list(here.glob("cache/**/config.*.pyc"))
    for name in ("main.py", "config.py"):
        text = (here / name).read_text(encoding="utf-8")
        for option, (old, new) in _CHANGES.items():
            text = text.replace(old, new) if option.startswith(name) else text
        (here / name).write_text(text, encoding="utf-8")
    expected, _ = _run(here, words.split())

    assert told == {"main.py", "config.py"}
    assert "7 (1, 3) 4 -7 [7, 'x'] {'rate': '1'}" in got.stdout
    assert (got.stdout, got.stderr, got.returncode) == (expected.stdout, expected.stderr, expected.returncode)
    assert kept == []  # bytecode of another source
    assert len(list(here.glob("cache/**/config.*.pyc"))) == 1


def test_a_file_that_changed_meanwhile_runs_as_it_is(here: Path) -> None:
    """The place of a literal is looked at again, and nothing else is overwritten."""
    found = find_literals([read_override("config.py:BATCH={micro_batch}")], here)
    (here / "config.py").write_text("WIDTH = 3; BATCH = 5\n")
    with listening() as listener:
        edits = json.dumps(edits_of(found, Sizes(7, 3, 1)))
        ended = subprocess.run(
            [sys.executable, "-c", "import config; print(config.WIDTH, config.BATCH)"],
            env=trial_environment(listener.path, OOMDOCTOR_TRIAL_LITERALS=edits),
            cwd=here,
            capture_output=True,
            text=True,
            check=False,
        )

    assert ended.stdout == "3 5\n"
    assert listener.named("literals") == []
