"""A crash of ours never changes what a program does: each function of the agent is broken on purpose."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from agent_running import AGENT_DIRECTORY, agent_environment, run_python

from oomdoctor.engines.choice import choose_engine

pytestmark = pytest.mark.null_gpu

AGENT = AGENT_DIRECTORY.parent
PROGRAM = Path(__file__).with_name("broken.py")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, str], str, Path]:
    """What the program printed and how it ended, by what was broken in the agent."""
    directory = tmp_path_factory.mktemp("broken") / "reports"
    engine = choose_engine(engine="null", gpu=None, device=None, memory_bytes=1 << 30, base=os.environ)
    environment = agent_environment(directory, engine.environment, OOMDOCTOR_RUN_MAX_ENTRIES="0")
    working = tmp_path_factory.mktemp("working")
    # It breaks each function in a process of its own: a minute alone, several beside other tests.
    ended = run_python([sys.executable, str(PROGRAM)], environment, cwd=working, timeout=500)
    assert ended.returncode == 0, ended.stderr
    lines = (line.partition("\t") for line in ended.stdout.splitlines())
    assert list(working.iterdir()) == []  # also where the agent does not know its directory
    return {name: told for name, _, told in lines}, ended.stderr, directory


def test_the_program_does_the_same_whatever_is_broken(runs: tuple[dict[str, str], str, Path]) -> None:
    """It trains, survives what it survives and dies of what it dies of."""
    told, _, _ = runs
    expected = "exit code 1, trained, survived, thread over, child 1, last words OutOfMemoryError"

    assert {name: text for name, text in told.items() if text != expected} == {}
    assert len(told) > 40
    assert {
        "nothing",
        "crash_report.write_report",
        "crash_report.collect_report",
        "RunAgent.report_death",
        "a full disk",
    } <= set(told)


def test_nothing_half_written_is_left(runs: tuple[dict[str, str], str, Path]) -> None:
    """What could not be written whole is not there; what could be is."""
    _, _, directory = runs
    reports = list(directory.glob("rank*-*"))

    assert reports
    assert [path for path in directory.iterdir() if path not in reports] == []
    assert all((path / "report.json").is_file() for path in reports)


def test_an_agent_that_cannot_be_loaded_is_not_noticed(tmp_path: Path) -> None:
    """With any of its modules broken the agent is as good as absent."""
    import shutil

    (tmp_path / "torch.py").write_text("print('imported')\n")
    code = "import multiprocessing.process, torch; raise SystemExit(4)"
    for number, source in enumerate(sorted(AGENT.rglob("*.py"))):
        if source.name == "sitecustomize.py":
            continue
        copy = tmp_path / f"agent{number}"
        shutil.copytree(AGENT, copy, ignore=shutil.ignore_patterns("__pycache__"))
        (copy / source.relative_to(AGENT)).write_text("raise RuntimeError('broken')\n")
        environment = agent_environment(tmp_path / "reports", PYTHONPATH=str(copy / AGENT_DIRECTORY.name))
        ended = run_python([sys.executable, "-c", code], environment, cwd=tmp_path)
        assert (ended.returncode, ended.stdout, ended.stderr) == (4, "imported\n", ""), source.name
