"""What is unusual runs by itself, and what a fork does not survive is not imported."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from forking import ForkServer, describe, fork_server, plain_environment, wait_for

from oomdoctor.agent.forking import admission

_SHOW = "import sys; print('torch' in sys.modules)"


@pytest.fixture(scope="module")
def server() -> Iterator[ForkServer]:
    """A server that has imported torch."""
    environment = plain_environment(LOCAL_RANK="0")
    with fork_server(describe("import torch", environment), environment) as running:
        assert running.answer["ready"], running.answer
        yield running


def test_a_usual_process_is_forked(server: ForkServer, tmp_path: Path) -> None:
    """Launchers' variables, the shell's and the program's own make no difference."""
    (tmp_path / "program.py").write_text(_SHOW)
    more = {"RANK": "1", "MASTER_PORT": "1234", "TORCHELASTIC_RUN_ID": "x", "SHLVL": "9", "MY_SIZE": "8"}

    ended = server.run([tmp_path / "program.py"], fork=True, more=more)

    assert (ended.stdout, server.refusals()) == ("True\n", [])


@pytest.mark.parametrize(
    ("options", "more", "reason"),
    [
        (["-O"], {}, "another flags"),
        (["-X", "dev"], {}, "another"),
        (["-W", "error"], {}, "another warnoptions"),
        (["-s"], {}, "another flags"),
        ([], {"CUDA_VISIBLE_DEVICES": "1"}, "another `CUDA_VISIBLE_DEVICES`"),
        ([], {"PYTORCH_CUDA_ALLOC_CONF": "backend:native"}, "another `PYTORCH_CUDA_ALLOC_CONF`"),
        ([], {"OOMDOCTOR_NULL_TOTAL_BYTES": "1"}, "another `OOMDOCTOR_NULL_TOTAL_BYTES`"),
        ([], {"PYTHONHASHSEED": "1"}, "another"),
        ([], {"OMP_NUM_THREADS": "3"}, "another `OMP_NUM_THREADS`"),
        ([], {"TORCHINDUCTOR_CACHE_DIR": "/x"}, "another `TORCHINDUCTOR_CACHE_DIR`"),
    ],
)
def test_a_differing_process_runs_by_itself(
    server: ForkServer, options: list[str], more: dict[str, str], reason: str, tmp_path: Path
) -> None:
    """Other options of Python, and other values of what imports may have read, are told apart and refused."""
    (tmp_path / "program.py").write_text(_SHOW)

    ended = server.run([*options, tmp_path / "program.py"], fork=True, more=more)

    assert ended.stdout == "False\n"
    assert f": {reason}" in server.refusals()[-1]


def test_a_process_without_a_file_runs_by_itself(server: ForkServer) -> None:
    """Short commands and standard input are not handed over; the server is not even asked."""
    before = server.refusals()

    assert server.run(["-c", _SHOW], fork=True).stdout == "False\n"
    assert server.run(["-"], fork=True, stdin=None, input=_SHOW).stdout == "False\n"
    assert server.run([], fork=True, stdin=None, input=_SHOW).stdout == "False\n"
    assert server.refusals() == before


def test_a_process_with_further_descriptors_runs_by_itself(server: ForkServer, tmp_path: Path) -> None:
    """A pipe that its starter has left open for it would be lost."""
    import os

    (tmp_path / "program.py").write_text("import os, sys; os.write(int(sys.argv[1]), b'here'); print(len(sys.modules))")
    read, write = os.pipe()
    ended = server.run([tmp_path / "program.py", write], fork=True, pass_fds=[write])
    os.close(write)

    with open(read, "rb") as pipe:  # noqa: PTH123 - a descriptor
        assert (ended.returncode, pipe.read()) == (0, b"here")


def test_a_module_beside_the_program_is_the_one_that_it_imports(server: ForkServer, tmp_path: Path) -> None:
    """A file that hides an installed module makes the process run by itself."""
    (tmp_path / "numpy.py").write_text("NAME = 'mine'")
    (tmp_path / "program.py").write_text("import numpy; print(numpy.NAME)")

    ended = server.run([tmp_path / "program.py"], fork=True)

    assert ended.stdout == "mine\n"
    assert "its folder has another `numpy`" in server.refusals()[-1]


def test_a_process_runs_by_itself_where_nobody_listens(server: ForkServer, tmp_path: Path) -> None:
    """A socket that is not there, or whose server is gone, costs nothing."""
    (tmp_path / "program.py").write_text(_SHOW)

    ended = server.run([tmp_path / "program.py"], fork=True, more={"OOMDOCTOR_FORK_SOCKET": str(tmp_path / "none")})

    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "False\n", "")


def test_a_folder_of_installed_packages_is_known_by_what_is_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its name does not matter; a project's own folder is none, not even one that is installed to be edited."""
    for name in ("libs/numpy-2.0.dist-info", "built/torch", "project/project.egg-info", "started/numpy-2.0.dist-info"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "built" / "torch" / "version.py").touch()
    monkeypatch.chdir(tmp_path / "started")
    names = ("libs", "built", "project", "started", "missing")
    monkeypatch.setattr(sys, "path", [*(str(tmp_path / name) for name in names), *sys.path])

    found = [name for name in names if f"{tmp_path / name}/" in admission.library_roots()]
    assert found == ["libs", "built"]


@pytest.fixture
def packages(tmp_path: Path) -> Path:
    """A folder of installed packages with some that a fork does not survive."""
    folder = tmp_path / "site-packages"
    (folder / "threaded").mkdir(parents=True)
    (folder / "threaded/__init__.py").write_text("from threaded import inner")
    (folder / "threaded/inner.py").write_text(
        "import threading, time\nthreading.Thread(target=time.sleep, args=(600,), daemon=True).start()"
    )
    (folder / "needs.py").write_text("try:\n    import threaded\nexcept Exception:\n    threaded = None")
    (folder / "opens.py").write_text("import socket\nPAIR = socket.socketpair()")
    (folder / "starts.py").write_text(
        "import subprocess\nCHILD = subprocess.Popen(['sleep', '600'])\nimport atexit\natexit.register(CHILD.kill)"
    )
    (folder / "counts.py").write_text("import torch\nCOUNT = torch.cuda.device_count()")
    (folder / "breaks.py").write_text("import sys\nif 'first_trial' not in sys.argv[0]: raise ValueError")
    (folder / "prints.py").write_text("print('hello')")
    (folder / "sets.py").write_text("import os\nos.environ['SET_BY_IMPORT'] = os.environ.get('ASKED', '')")
    return folder


def imported(folder: Path, names: str, **more: str) -> tuple[dict, subprocess.CompletedProcess[str]]:
    """What a server answers whose program has imported these, and what a forked program says of them."""
    environment = plain_environment(**more)
    environment["PYTHONPATH"] += f":{folder}"
    program = folder.parent / "program.py"
    program.write_text(
        f"import os, sys\nprint([name in sys.modules for name in {names.split(', ')!r}])\nimport {names}\n"
        "print(os.environ.get('SET_BY_IMPORT'))"
    )
    with fork_server(describe(f"import torch, {names}", environment), environment) as running:
        assert running.answer["ready"], running.answer
        ended = running.run([program], fork=True)
        assert not running.refusals()
    return running.answer, ended


def test_modules_that_a_fork_does_not_survive_are_left_out(packages: Path) -> None:
    """Threads, descriptors and whatever needs their modules are found out; the rest is imported, and all works."""
    answer, ended = imported(packages, "needs, threaded, opens, breaks, prints, counts, sets")

    assert set(answer["left_out"]) == {"needs", "threaded", "threaded.inner", "opens", "breaks"}
    assert ended.stdout.splitlines()[0] == "[False, False, False, False, True, True, True]"


def test_what_imports_do_to_the_environment_is_kept(packages: Path) -> None:
    """A variable that a module sets is set in the program, as if it had been imported there."""
    _, ended = imported(packages, "sets", ASKED="value")

    assert ended.stdout.splitlines()[-1] == "value"


def test_variables_set_before_torch_hold_in_the_server(tmp_path: Path) -> None:
    """What the program sets before it imports torch is there when the server does, and not when a program begins."""
    environment = {name: value for name, value in plain_environment().items() if name != "OMP_NUM_THREADS"}
    description = describe("import os\nos.environ['OMP_NUM_THREADS'] = '1'\nimport torch", environment)
    (tmp_path / "program.py").write_text("""
import os
before = os.environ.get("OMP_NUM_THREADS")
os.environ["OMP_NUM_THREADS"] = "1"
import torch
print(before, torch.get_num_threads())
""")
    with fork_server(description, environment) as running:
        assert running.answer["ready"], running.answer
        ended = running.run([tmp_path / "program.py"], fork=True)
        assert not running.refusals()

    assert ended.stdout == "None 1\n"


def test_a_server_that_cannot_import_torch_says_so() -> None:
    """It answers with the reason and ends."""
    environment = plain_environment()
    description = describe("import json", environment)

    with fork_server(description, environment) as running:
        assert running.answer == {"ready": False, "reason": "torch could not be imported"}
        assert wait_for(lambda: running.process.poll() == 0)
        assert not running.socket.exists()
        assert running.python == sys.executable
