"""What a process uses while it is watched is recorded, as it was when it was used first."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from textwrap import dedent

import pytest

from oomdoctor.codec import decode
from oomdoctor.trial.dependencies import Dependencies

DRIVER = """
import json, os, runpy, sys, traceback
from oomdoctor.trial.dependencies import WatchedWorker
from oomdoctor.codec import encode

for line in sys.stdin:
    task = json.loads(line)
    if os.fork():
        os.wait()
        continue
    os.chdir(task["cwd"])
    os.environ.update(task["environment"])
    used = WatchedWorker()
    sys.path.insert(0, task["project"])
    try:
        runpy.run_path(task["project"] + "/script.py")
        print(json.dumps(encode(used.dependencies())), flush=True)
    except BaseException:
        print(json.dumps(traceback.format_exc()), flush=True)
    os._exit(0)
"""

Record = Callable[..., Dependencies]


@pytest.fixture(scope="module")
def driver() -> Iterator[subprocess.Popen[str]]:
    """A process that runs each script in a fork of its own, so that Python starts once."""
    command = [sys.executable, "-P", "-c", DRIVER]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield process


@pytest.fixture
def record(driver: subprocess.Popen[str], project: Path) -> Record:
    """Run a script in a process that is watched, and say what it used."""

    def run(script: str, *, cwd: str = "/", **environment: str) -> Dependencies:
        (project / "script.py").write_text(f"HERE = {str(project)!r}\n" + dedent(script))
        assert driver.stdin is not None
        assert driver.stdout is not None
        driver.stdin.write(json.dumps({"project": str(project), "cwd": cwd, "environment": environment}) + "\n")
        driver.stdin.flush()
        answer = next(line for line in driver.stdout if line.startswith(("{", '"')))  # a script may print
        assert answer.startswith("{"), json.loads(answer)
        return decode(Dependencies, json.loads(answer), "")

    return run


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A directory with a few files to use."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "first.txt").write_text("1")
    (tmp_path / "config.yaml").write_text("width: 8\n")
    (tmp_path / "sibling.py").write_text("DEPTH = 2\n")
    return tmp_path


def digest(text: str) -> str:
    """How the content of a file is seen."""
    return hashlib.sha256(text.encode()).hexdigest()


@pytest.mark.parametrize(
    "script",
    [
        "open(HERE + '/config.yaml').close()",
        "import pathlib; pathlib.Path(HERE, 'config.yaml').read_text()",
        "import os; os.close(os.open(HERE + '/config.yaml', os.O_RDONLY))",
        "import os; os.chdir(HERE); open('config.yaml').close()",
        "import os; os.chdir(HERE + '/data'); open('../config.yaml').close()",
        "open((HERE + '/config.yaml').encode()).close()",
        "open(HERE + '//config.yaml', 'r+').close()",
    ],
)
def test_a_file_that_is_read_is_seen(record: Record, project: Path, script: str) -> None:
    """Its content is recorded, by whatever way the target comes to it."""
    used = record(script)
    assert used.seen[f"content {project}/config.yaml"] == digest("width: 8\n")
    assert used.unseen == ()


NATIVE = """
import ctypes, json, os, sys
from oomdoctor.trial.dependencies import WatchedWorker
from oomdoctor.codec import encode

libc = ctypes.CDLL(None)
folder, used = os.open(sys.argv[1], os.O_RDONLY), WatchedWorker()
os.chdir(sys.argv[1])
for name in ("open", "open64", "__open_2", "__open64_2"):
    getattr(libc, name)(f"{sys.argv[1]}/{name}".encode(), os.O_RDONLY)
for name in ("openat", "openat64", "__openat_2", "__openat64_2"):
    getattr(libc, name)(folder, name.encode(), os.O_RDONLY)
for name in ("fopen", "fopen64"):
    getattr(libc, name)(name.encode(), b"rb")
libc.open(b"written", os.O_WRONLY)
libc.open(b"emptied", os.O_RDWR | os.O_TRUNC)
libc.fopen(b"written", b"w")
if os.fork() == 0:
    libc.open(b"forked", os.O_RDONLY)
    os._exit(0)
os.wait()
print(json.dumps(encode(used.dependencies())))
"""


@pytest.mark.null_gpu
def test_a_file_read_by_native_code_is_seen(tmp_path: Path, null_environment: Callable[[int], dict[str, str]]) -> None:
    """On a null GPU files are recorded that no Python opens, whichever function reads them, in forks too."""
    read = {"open", "open64", "__open_2", "__open64_2", "openat", "openat64", "__openat_2", "__openat64_2"}
    read |= {"fopen", "fopen64", "forked"}
    for name in read | {"written", "emptied"}:
        (tmp_path / name).write_text("1")
    command = [sys.executable, "-P", "-c", NATIVE, str(tmp_path)]
    ended = subprocess.run(command, env=null_environment(2**30), capture_output=True, text=True, check=True)

    seen = decode(Dependencies, json.loads(ended.stdout), "").seen
    assert {key.rpartition("/")[2] for key in seen if key.startswith(f"content {tmp_path}{os.sep}")} == read
    assert {seen[f"content {tmp_path}/{name}"] for name in read} == {digest("1")}


@pytest.mark.parametrize(
    "script",
    [
        "import sibling",
        "import importlib; importlib.import_module('sibling')",
        "def later():\n    from sibling import DEPTH\nlater()",
        "import importlib.util; importlib.util.find_spec('sibling'); import sibling",
    ],
)
def test_an_imported_module_is_seen(record: Record, project: Path, script: str) -> None:
    """The source's content is recorded, and where its name was found."""
    used = record(script)
    assert used.seen[f"content {project}/sibling.py"] == digest("DEPTH = 2\n")
    assert used.seen[f"module {project}/sibling"] == ".py"


def test_a_compiled_module_is_seen_as_its_source(record: Record, project: Path) -> None:
    """What Python has compiled comes and goes, and is no dependency; what it was compiled from is."""
    subprocess.run([sys.executable, "-m", "compileall", "-q", project], check=True)
    used = record("import sibling, sys; del sys.modules['sibling']")
    assert used.seen[f"content {project}/sibling.py"] == digest("DEPTH = 2\n")
    assert not any("__pycache__" in key for key in used.seen)


@pytest.mark.parametrize(
    ("script", "key"),
    [
        (
            "import contextlib\nwith contextlib.suppress(ImportError):\n    import fast_kernels",
            "module {}/fast_kernels",
        ),
        ("import importlib.util; importlib.util.find_spec('fast_kernels')", "module {}/fast_kernels"),
        (
            "import contextlib\nwith contextlib.suppress(OSError):\n    open(HERE + '/local.yaml')",
            "content {}/local.yaml",
        ),
        ("import colorsys", "module {}/colorsys"),
        ("import sys; sys.path[1:1] = [None, 7]; import colorsys", "module {}/colorsys"),
    ],
)
def test_what_was_looked_for_and_is_not_there_is_seen(record: Record, project: Path, script: str, key: str) -> None:
    """A file or module that would change things if it came is recorded as absent, one that would shadow included."""
    used = record(script)
    assert used.seen[key.format(project)] == "absent"
    assert used.unseen == ()


@pytest.mark.parametrize(
    "script",
    [
        "import os; os.listdir(HERE + '/data')",
        "import os; list(os.scandir(HERE + '/data'))",
        "import os; list(os.walk(HERE + '/data'))",
        "import glob; glob.glob(HERE + '/data/*.txt')",
        "import pathlib; list(pathlib.Path(HERE, 'data').iterdir())",
        "import pathlib; list(pathlib.Path(HERE).glob('data/*.txt'))",
        "import os; os.listdir(os.open(HERE + '/data', os.O_RDONLY))",
    ],
)
def test_a_directory_that_is_listed_is_seen(record: Record, project: Path, script: str) -> None:
    """Its names are recorded, by whatever way they are read."""
    assert f"listing {project}/data" in record(script).seen


@pytest.mark.parametrize(
    ("script", "names"),
    [
        ("import os; os.environ.get('MODEL_WIDTH')", {"MODEL_WIDTH"}),
        ("import os; os.environ['MODEL_WIDTH']", {"MODEL_WIDTH"}),
        ("import os; os.getenv('MODEL_WIDTH')", {"MODEL_WIDTH"}),
        ("import os; os.getenvb(b'MODEL_WIDTH')", {"MODEL_WIDTH"}),
        ("import os; 'MODEL_DEPTH' in os.environ", {"MODEL_DEPTH"}),
        ("import os; os.environ.setdefault('MODEL_DEPTH', '2')", {"MODEL_DEPTH"}),
        ("import os; os.path.expandvars('$MODEL_WIDTH')", {"MODEL_WIDTH"}),
        ("import os; dict(os.environ)", {"*"}),
        ("import os; os.environ.copy()", {"*"}),
        ("import os; [name for name in os.environ]", {"*"}),
    ],
)
def test_a_variable_that_is_read_is_seen(record: Record, script: str, names: set[str]) -> None:
    """Its name is recorded, whether or not it is set; where all are read, so is that."""
    assert names <= set(record(script, MODEL_WIDTH="8").variables)


def test_nothing_is_seen_of_what_is_not_used(record: Record, project: Path) -> None:
    """A script that uses nothing depends on itself, and neither on its neighbours nor on where it is run."""
    used = record("width = 8")
    assert {key for key in used.seen if key.startswith(f"content {project}/")} == {f"content {project}/script.py"}
    assert used.working_directory is None
    assert "MODEL_WIDTH" not in used.variables


@pytest.mark.parametrize(
    "script",
    ["open('config.yaml')", "import os; os.listdir('data')", "import pathlib; pathlib.Path('config.yaml').read_text()"],
)
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_the_working_directory_counts_where_it_is_used(record: Record, project: Path, script: str) -> None:
    """It is recorded where a relative path is used."""
    assert record(script, cwd=str(project)).working_directory == str(project)


@pytest.mark.parametrize(
    "script",
    [
        "open(HERE + '/log.txt', 'w').write('a'); open(HERE + '/log.txt').read()",
        "import os; os.mkdir(HERE + '/out'); os.path.exists(HERE + '/out/log.txt'); os.listdir(HERE + '/out')",
        "import os; open(HERE + '/part', 'w').close(); os.rename(HERE + '/part', HERE + '/log'); open(HERE + '/log')",
        "import tempfile\nwith tempfile.TemporaryDirectory('out', dir=HERE) as out:\n    open(out + '/log', 'w')",
    ],
)
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_what_the_target_made_is_its_own(record: Record, project: Path, script: str) -> None:
    """A file or directory that the target wrote before it read from it is no dependency."""
    used = record(script)
    assert not any("log" in key.removeprefix(f"content {project}") or key.endswith("out") for key in used.seen)


@pytest.mark.parametrize(
    "script",
    [
        "import os; os.makedirs(HERE, exist_ok=True); open(HERE + '/config.yaml').close()",
        "import pathlib; pathlib.Path(HERE).mkdir(exist_ok=True); open(HERE + '/config.yaml').close()",
        "import contextlib\nwith contextlib.suppress(OSError):\n    open(HERE + '/config.yaml', 'x')",
        "import contextlib, os\nwith contextlib.suppress(OSError):\n    os.symlink(HERE, HERE + '/config.yaml')",
    ],
)
def test_what_was_there_already_was_not_made(record: Record, project: Path, script: str) -> None:
    """To create what exists fails, and what it holds goes on to matter."""
    used = record(script)
    assert used.seen[f"content {project}/config.yaml"] == digest("width: 8\n")


def test_a_file_is_seen_as_it_was_when_it_was_read_first(record: Record, project: Path) -> None:
    """What the target makes of a file after it has read it does not hide what it read."""
    script = "path = HERE + '/config.yaml'\ntext = open(path).read()\nopen(path, 'w').write(text + 'depth: 3')"
    assert record(script).seen[f"content {project}/config.yaml"] == digest("width: 8\n")


def test_what_a_forked_process_uses_is_seen(record: Record, project: Path) -> None:
    """A data loader's process reports what it read."""
    script = """
        import multiprocessing, os

        def load():
            open(HERE + '/config.yaml').close()
            os.environ.get('LOADER_THREADS')
            os.listdir(HERE + '/data')

        process = multiprocessing.get_context('fork').Process(target=load)
        process.start()
        process.join()
    """
    used = record(script)
    assert used.seen[f"content {project}/config.yaml"] == digest("width: 8\n")
    assert f"listing {project}/data" in used.seen
    assert "LOADER_THREADS" in used.variables
    assert used.unseen == ()


def test_a_forked_process_that_was_cut_short_is_told_of(record: Record) -> None:
    """Half a line of what it used is no error, and no answer is kept after it."""
    script = """
        import json, multiprocessing

        def load():
            json.dumps = lambda _: '{'
            open(HERE + '/config.yaml').close()

        process = multiprocessing.get_context('fork').Process(target=load)
        process.start()
        process.join()
    """
    assert record(script).unseen


@pytest.mark.parametrize(
    "script",
    [
        "import subprocess; subprocess.run(['true'])",
        "import os; os.system('true')",
        "import os; os.popen('true').close()",
        "import os; os.waitpid(os.posix_spawn('/bin/true', ['true'], {}), 0)",
        "import multiprocessing; multiprocessing.get_context('spawn').Process(target=print).start()",
    ],
)
def test_a_program_that_the_target_starts_is_told_of(record: Record, script: str) -> None:
    """What another program reads cannot be seen, and that is said."""
    assert record(script).unseen


def test_a_program_that_python_starts_for_itself_is_not(record: Record) -> None:
    """Python's own library asks the system for names of libraries; that changes no answer."""
    assert record("import ctypes.util; ctypes.util.find_library('m')").unseen == ()


def test_a_file_too_long_to_be_read_is_known_by_size_and_times(record: Record, project: Path) -> None:
    """Weights of many gigabytes do not make a probe wait."""
    with (project / "weights.bin").open("wb") as file:
        file.truncate(10 * 1024**3)
    used = record("open(HERE + '/weights.bin').close()")
    assert used.seen[f"signature {project}/weights.bin"].startswith(f"{10 * 1024**3} ")


def test_what_torch_compiled_is_no_dependency(record: Record, project: Path) -> None:
    """Its compiler's cache fills while the target runs, and says nothing that the target does not say."""
    (project / "torchinductor_me").mkdir()
    (project / "torchinductor_me" / "fxgraph").touch()
    script = "import os; os.listdir(HERE + '/torchinductor_me'); open(HERE + '/torchinductor_me/fxgraph').close()"
    assert not any("inductor" in key for key in record(script).seen)


def test_variables_work_as_before(record: Record) -> None:
    """What is asked of the environment, set in it and taken out is as it would be; wrong names are wrong."""
    script = """
        import os

        assert os.environ.get('NOT_SET', 'default') == 'default' and len(os.environ) == len(dict(os.environ))
        os.environ['MADE'] = '1'
        assert os.environ.pop('MADE') == '1' and 'MADE' not in os.environ and os.getenvb(b'MADE') is None
        try:
            os.environ[1]
        except TypeError:
            pass
        else:
            raise SystemExit('no error')
    """
    assert record(script).unseen == ()
