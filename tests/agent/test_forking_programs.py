"""A forked program sees what it would see in a process of its own, and ends as it would."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from forked_programs import ENDINGS, IDENTITY
from forking import ForkServer, describe, fork_server, plain_environment, without_numbers


@pytest.fixture(scope="module")
def server() -> Iterator[ForkServer]:
    """A server that has imported torch."""
    environment = plain_environment(PYTHONSTARTUP="a variable")
    environment.pop("PYTHONUNBUFFERED", None)
    with fork_server(describe("import torch, multiprocessing.spawn, logging", environment), environment) as running:
        assert running.answer["ready"], running.answer
        yield running


def both(
    server: ForkServer, folder: Path, arguments: list[object], *, refused: bool = False, **options: object
) -> list[str]:
    """What a program says in a process of its own and in a fork, each run in the folder, and how it ended."""
    found = []
    refusals = len(server.refusals())
    for fork in (False, True):
        ended = server.run(arguments, fork=fork, **{"cwd": folder, **options})
        # Python's own tracker of semaphores loses a race with their owner now and then, fork or no fork.
        errors = [line for line in ended.stderr.splitlines(keepends=True) if "resource_tracker" not in line]
        found.append(without_numbers(f"{ended.returncode}\n{ended.stdout}\n{''.join(errors)}"))
    assert (len(server.refusals()) > refusals) is refused
    return found


@pytest.mark.parametrize(
    "arguments",
    [
        ["program.py"],
        ["./program.py", "--batch-size", "8", ""],
        ["-u", "program.py"],
        ["../folder/linked.py"],
        ["-m", "program", "-m", "x"],
        ["-um", "package.part", "a"],
        ["-m", "package"],
        ["package"],
        ["archive.zip", "1"],
        ["-m", "missing"],
        ["-W", "ignore", "program.py"],
        ["missing.py"],
        ["empty"],
        ["-c", "import sys; print(sys.argv, __name__)", "a"],
    ],
    ids=" ".join,
)
def test_a_program_finds_what_it_would_find(server: ForkServer, arguments: list[str], tmp_path: Path) -> None:
    """Arguments, paths, `__main__`, environment, streams, signals: however a program is started, they are the same."""
    folder = make_programs(tmp_path)

    plain, forked = both(server, folder, arguments, refused=arguments[0] in ("missing.py", "-W"))

    assert forked == plain


def make_programs(root: Path) -> Path:
    """A folder with the same program in every shape that Python runs."""
    import zipfile

    folder = root / "folder"
    for name in ("package", "empty", "elsewhere"):
        (folder / name).mkdir(parents=True)
    for name in ("program.py", "package/part.py", "package/__main__.py", "elsewhere/real.py"):
        (folder / name).write_text(IDENTITY)
    (folder / "package/__init__.py").write_text("print('the package', __name__)")
    (folder / "linked.py").symlink_to("elsewhere/real.py")
    with zipfile.ZipFile(folder / "archive.zip", "w") as archive:
        archive.writestr("__main__.py", IDENTITY)
    return folder


def test_a_program_is_forked_at_all(server: ForkServer, tmp_path: Path) -> None:
    """What the server has imported is there before the program imports anything, and its parent is not its starter."""
    (tmp_path / "program.py").write_text("import os, sys; print('torch' in sys.modules, os.getppid())")

    plain, forked = both(server, tmp_path, ["program.py"])

    assert plain.split()[1:] == ["False", str(os.getpid())]
    assert forked.split()[1] == "True"
    assert forked.split()[2] != str(os.getpid())


def test_a_program_has_the_surroundings_that_its_starter_gave_it(server: ForkServer, tmp_path: Path) -> None:
    """Mask, ignored signals, umask, one processor, another folder, input and the environment come from the starter."""
    (tmp_path / "program.py").write_text(IDENTITY)

    def surround() -> None:
        os.umask(0o027)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGUSR2, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1, signal.SIGTERM])
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})

    options = {"more": {"SIZE": "8", "RANK": "3"}, "preexec_fn": surround, "stdin": None, "input": "a line\r\nanother"}
    plain, forked = both(server, tmp_path, ["program.py"], **options)

    assert '"umask": 23' in plain
    assert forked == plain


@pytest.mark.parametrize("variable", ["PYTHONUNBUFFERED", "PYTHONIOENCODING"])
def test_streams_are_made_as_the_environment_asks(server: ForkServer, variable: str, tmp_path: Path) -> None:
    """Another buffering is taken over; another encoding makes the process run by itself; both show the same."""
    (tmp_path / "program.py").write_text(IDENTITY)
    value = {"PYTHONUNBUFFERED": "1", "PYTHONIOENCODING": "latin-1:replace"}[variable]

    plain, forked = both(
        server, tmp_path, ["program.py"], more={variable: value}, refused=variable == "PYTHONIOENCODING"
    )

    assert forked == plain


@pytest.mark.parametrize("name", ENDINGS)
def test_a_program_ends_as_it_would(server: ForkServer, name: str, tmp_path: Path) -> None:
    """Codes, signals, texts, tracebacks, exit functions, threads and files are those of a process of its own."""
    written = []
    for number, fork in enumerate((False, True)):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "program.py").write_text(ENDINGS[name])
        ended = server.run(["program.py"], fork=fork, cwd=folder)
        files = sorted((path.name, path.read_text()) for path in folder.iterdir() if path.name != "__pycache__")
        said = without_numbers(ended.stdout + ended.stderr).replace(str(folder), "FOLDER")
        written.append((ended.returncode, re.sub(r"Thread-\d+", "Thread", said), files))

    assert written[1] == written[0]


def test_a_terminal_program_is_told_of_one(server: ForkServer, tmp_path: Path) -> None:
    """Streams that are a terminal stay one, line buffered as Python makes them."""
    import pty

    (tmp_path / "program.py").write_text(
        "import sys; print([(s.isatty(), s.line_buffering) for s in (sys.stdin, sys.stdout)])"
    )
    said = []
    for environment in (server.environment, server.forked):
        ours, theirs = pty.openpty()
        command = [sys.executable, "program.py"]
        with subprocess.Popen(command, cwd=tmp_path, env=environment, stdin=theirs, stdout=theirs) as started:
            assert started.wait(60) == 0
        said.append(os.read(ours, 1000))
        os.close(ours)
        os.close(theirs)

    assert said[1] == said[0]
    assert b"[(True, True), (True, True)]" in said[0]


def test_two_forks_draw_other_numbers(server: ForkServer, tmp_path: Path) -> None:
    """Unseeded generators differ from one program to the next; seeded ones draw what they draw in any process."""
    (tmp_path / "program.py").write_text("""
import json, random, tempfile, sys, torch, numpy, multiprocessing
free = [random.random(), torch.rand(1).item(), numpy.random.rand(), torch.initial_seed(),
        multiprocessing.current_process().authkey.hex(), next(tempfile._get_candidate_names())]
random.seed(1), torch.manual_seed(1), numpy.random.seed(1)
print(json.dumps([free, [random.random(), torch.rand(1).item(), numpy.random.rand()], torch.cuda.is_initialized()]))
""")
    first, second, plain = (
        json.loads(server.run(["program.py"], fork=fork, cwd=tmp_path).stdout) for fork in (True, True, False)
    )

    assert not set(first[0]) & set(second[0])
    assert first[1:] == second[1:] == plain[1:]


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
@pytest.mark.slow
def test_multiprocessing_works_below_a_fork(server: ForkServer, method: str, tmp_path: Path) -> None:
    """Data loaders' workers find the program's functions by every way of starting them."""
    (tmp_path / "program.py").write_text("""
import sys, torch
class Squares(torch.utils.data.Dataset):
    def __len__(self): return 8
    def __getitem__(self, index): return index ** 2
if __name__ == "__main__":
    loader = torch.utils.data.DataLoader(Squares(), 4, num_workers=2, multiprocessing_context=sys.argv[1])
    print([batch.tolist() for batch in loader])
""")
    plain, forked = both(server, tmp_path, ["program.py", method])

    assert "[[0, 1, 4, 9], [16, 25, 36, 49]]" in plain
    assert forked == plain


@pytest.mark.slow
def test_a_console_script_is_forked_as_it_is_started(server: ForkServer, tmp_path: Path) -> None:
    """A script with a first line that names its Python is taken over too."""
    script = tmp_path / "train"
    script.write_text(f"#!{sys.executable}\n{IDENTITY}")
    script.chmod(0o755)

    plain, forked = both(server, tmp_path, [script, "a"], bare=True)

    assert forked == plain
