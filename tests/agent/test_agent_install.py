"""The agent comes into every Python unseen, and costs nothing where there is no torch."""

from __future__ import annotations

import ast
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from agent_running import agent_environment, run_python

from oomdoctor.run.environment import AGENT_DIRECTORY

NAMES = ("python2.7", *(f"python3.{minor}" for minor in range(6, 16)))
SOURCES = sorted(AGENT_DIRECTORY.parent.rglob("*.py"))
SHOW = (
    "import sys, json; print(json.dumps([sys.path, sys.argv, sys.flags.dont_write_bytecode, sys.dont_write_bytecode]))"
)


PYTHONS = [sys.executable, *(found for name in NAMES if (found := shutil.which(name)))]


@pytest.fixture(scope="module", params=PYTHONS)
def python(request: pytest.FixtureRequest) -> str:
    """Each Python of this machine."""
    if subprocess.run([request.param, "-c", ""], capture_output=True, check=False, timeout=60).returncode:
        pytest.skip(f"`{request.param}` stands for a version that is not installed")
    return str(request.param)


def test_a_python_prints_what_it_prints_without_the_agent(python: str, tmp_path: Path) -> None:
    """Whatever its version, a Python says nothing more, and finds `sys.path` as it is without us."""
    with_agent = agent_environment(tmp_path / "reports", PYTHONPATH=str(AGENT_DIRECTORY))
    without = {name: value for name, value in with_agent.items() if name != "PYTHONPATH"}

    hooked, plain = (run_python([python, "-c", SHOW], environment) for environment in (with_agent, without))

    assert (hooked.returncode, hooked.stdout, hooked.stderr) == (plain.returncode, plain.stdout, plain.stderr)
    assert not (tmp_path / "reports").exists()


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.name)
def test_the_agent_is_written_for_old_pythons(source: Path) -> None:
    """Every module parses as Python 3.8 and imports nothing but the standard library and itself."""
    tree = ast.parse(source.read_text(encoding="utf-8"), feature_version=(3, 8))
    names = {
        alias.name.split(".")[0] for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names
    } | {
        (node.module or "").split(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.level == 0
    }

    assert names <= sys.stdlib_module_names | {"_frozen_importlib", "_frozen_importlib_external", "sitecustomize"}


IMPORT_ALL = """
import importlib, sys
from pathlib import Path

if sys.version_info < (3, 8):
    print("too old")
    raise SystemExit
sys.modules.pop("sitecustomize", None)
sys.path.insert(0, sys.argv[1])
import sitecustomize

sitecustomize._load_agent()
root = Path(sys.argv[1]).parent
for path in sorted(root.rglob("*.py")):
    parts = path.relative_to(root).with_suffix("").parts
    if parts[0] != "bootstrap" and parts[-1] not in ("__init__", "server"):
        importlib.import_module(".".join(("oomdoctor_agent", *parts)))
from oomdoctor_agent import oom_errors

print(oom_errors.find_oom(RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB")) is not None)
"""


def test_every_module_can_be_imported_by_old_pythons(python: str) -> None:
    """Without torch, and in Pythons that lack newer parts of the standard library; errors are recognised there, too."""
    ended = run_python(
        [python, "-c", IMPORT_ALL, str(AGENT_DIRECTORY)],
        {**os.environ, "PYTHONPATH": "", "PYTHONDONTWRITEBYTECODE": "1"},
    )

    assert (ended.stdout, ended.stderr) in (("True\n", ""), ("too old\n", ""))


@pytest.mark.parametrize("flag", ["-I", "-S", "-E"])
def test_a_python_that_ignores_its_environment_runs_without_the_agent(flag: str, tmp_path: Path) -> None:
    """Isolated Pythons are left alone."""
    code = "import sys; print(any('oomdoctor_agent' in name for name in sys.modules))"

    assert run_python([sys.executable, flag, "-c", code], agent_environment(tmp_path)).stdout == "False\n"


def test_the_next_sitecustomize_runs_as_without_us(tmp_path: Path) -> None:
    """The one that ours hides is imported under its name; ours is gone from `sys.modules`."""
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.stdout.write('theirs ')\nMARK = 1\n")
    (tmp_path / "usercustomize.py").write_text("import sys\nsys.stdout.write('users ')\n")
    environment = agent_environment(tmp_path / "reports", PYTHONPATH=f"{AGENT_DIRECTORY}:{tmp_path}")
    code = "import sys, sitecustomize; print(sitecustomize.MARK, sys.modules['sitecustomize'] is sitecustomize)"

    ended = run_python([sys.executable, "-c", code], environment)

    users = "users " if not sys.flags.no_user_site and sys.prefix == sys.base_prefix else ""
    assert ended.stdout == f"theirs {users}1 True\n"


def test_a_sitecustomize_that_fails_fails_as_without_us(tmp_path: Path) -> None:
    """Python reports the error of the one that ours hides, and goes on."""
    (tmp_path / "sitecustomize.py").write_text("raise ValueError('theirs')\n")
    environment = agent_environment(tmp_path / "reports", PYTHONPATH=f"{AGENT_DIRECTORY}:{tmp_path}")
    plain = environment | {"PYTHONPATH": str(tmp_path)}

    hooked, without = (run_python([sys.executable, "-c", "print(1)"], each) for each in (environment, plain))

    assert (hooked.stdout, hooked.stderr) == (without.stdout, without.stderr)
    assert "ValueError: theirs" in hooked.stderr


def test_looking_for_torch_does_not_take_the_watch_away(tmp_path: Path) -> None:
    """A program may ask whether torch is there; the agent begins at the import, and the module keeps its loader."""
    (tmp_path / "torch.py").write_text("print('imported')\n")
    code = """
import importlib.util, sys
assert importlib.util.find_spec("torch") is not None
before = [finder for finder in sys.meta_path if "oomdoctor" in getattr(finder, "__module__", "")]
import multiprocessing.process
import torch
after = [finder for finder in sys.meta_path if "oomdoctor" in getattr(finder, "__module__", "")]
own = vars(torch.__loader__).keys() & {"exec_module"}
print(len(before), len(after), "oomdoctor_agent.run_agent" in sys.modules, own)
"""
    ended = run_python([sys.executable, "-c", code], agent_environment(tmp_path / "reports"), cwd=tmp_path)

    assert ended.stderr == ""
    assert ended.stdout == "imported\n1 0 True set()\n"


def test_an_import_that_fails_fails_as_without_us(tmp_path: Path) -> None:
    """A torch that cannot be imported raises its own error, and may be tried again."""
    (tmp_path / "torch.py").write_text("raise OSError('libcudart.so.12: no such file')\n")
    code = """
import sys
for attempt in range(2):
    try:
        import torch
    except OSError:
        print("torch" in sys.modules)
"""
    ended = run_python([sys.executable, "-c", code], agent_environment(tmp_path / "reports"), cwd=tmp_path)

    assert ended.stderr == ""
    assert ended.stdout == "False\nFalse\n"


def test_children_are_hooked_and_those_without_the_variable_are_not(tmp_path: Path) -> None:
    """What a program starts inherits the agent, unless the program takes PYTHONPATH away; then it runs all the same."""
    code = """
import os, subprocess, sys
child = [sys.executable, "-c", "import sys; print('oomdoctor_agent' in sys.modules, flush=True)"]
subprocess.run(child)
del os.environ["PYTHONPATH"]
subprocess.run(child)
"""
    ended = run_python([sys.executable, "-c", code], agent_environment(tmp_path))

    assert ended.stdout == "True\nFalse\n"


def test_a_process_without_torch_loads_two_small_modules(tmp_path: Path) -> None:
    """Where torch is not imported nothing is loaded but the watch, and no module of the standard library for it."""
    code = "import json, sys; print(json.dumps(sorted(sys.modules)))"
    with_agent = agent_environment(tmp_path, PYTHONPATH=str(AGENT_DIRECTORY))
    without = {name: value for name, value in with_agent.items() if name != "PYTHONPATH"}
    hooked, plain = (
        set(json.loads(run_python([sys.executable, "-c", code], environment).stdout))
        for environment in (with_agent, without)
    )

    assert hooked - plain <= {"oomdoctor_agent", "oomdoctor_agent.imports", "__future__", "sitecustomize"}
