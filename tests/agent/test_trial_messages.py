"""What a program in a trial says: its steps, its errors, its end, what it writes; and that it says it at once."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from listening import Listener, listening, run_trial, trial_environment

from oomdoctor.command.trial_events import TrialEvents
from oomdoctor.engines.catalogue import generic_card
from oomdoctor.engines.null_gpu.library import environment as null_gpu_environment
from oomdoctor.oom.classifier import classify_recorded
from oomdoctor.results import Outcome
from oomdoctor.run.environment import torch_of

PROGRAM = Path(__file__).with_name("trial_endings.py")


def _run(way: str, cwd: Path, **more: str) -> tuple[subprocess.CompletedProcess[str], Listener]:
    return run_trial([sys.executable, str(PROGRAM), way], {**os.environ, "CUDA_VISIBLE_DEVICES": ""}, cwd=cwd, **more)


def _run_until_stopped(way: str, environment: dict[str, str], cwd: Path) -> str:
    """What a program prints until it stops itself."""
    command = [sys.executable, str(PROGRAM), way]
    program = subprocess.Popen(command, env=environment, cwd=cwd, stdout=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 60
    while psutil.Process(program.pid).status() != psutil.STATUS_STOPPED and time.monotonic() < deadline:
        time.sleep(0.02)
    assert psutil.Process(program.pid).status() == psutil.STATUS_STOPPED
    program.send_signal(signal.SIGKILL)
    return program.communicate(timeout=20)[0]


def test_after_enough_steps_everything_stands_still(tmp_path: Path) -> None:
    """The process tells what it measured and stops itself: nothing more is printed, and no `atexit` runs."""
    with listening() as listener:
        environment = trial_environment(listener.path, OOMDOCTOR_TRIAL_STEPS="3", CUDA_VISIBLE_DEVICES="")
        printed = _run_until_stopped("enough", environment, tmp_path)

    (measured,) = listener.named("measured")
    assert printed == "step 1\nstep 2\n"
    assert (measured["ending"], measured["steps"]) == ("steps", 3)
    assert measured["optimizer"] == "SGD"
    assert measured["parameter_bytes"] == measured["gradient_bytes"] == (8 * 8 + 8) * 4
    assert [one["steps"] for one in listener.named("step")] == [1, 2, 3]
    assert [one["event"] for one in listener.messages][:2] == ["started", "batch"]


def test_a_program_that_ends_by_itself_says_so(tmp_path: Path) -> None:
    """Two steps, an end, and the versions at the start."""
    ended, listener = _run("too_few", tmp_path, RANK="1", WORLD_SIZE="2")

    (started,), (measured,) = listener.named("started"), listener.named("measured")
    assert ended.returncode == 0
    assert (measured["ending"], measured["steps"], measured["error"]) == ("exit", 2, None)
    assert (started["rank"], started["world_size"]) == (1, 2)
    assert started["python"] == ".".join(map(str, sys.version_info[:3]))


def test_an_error_is_told_with_every_link(tmp_path: Path) -> None:
    """The classes that each link is of, its text, and the traceback as Python prints it."""
    ended, listener = _run("unhandled", tmp_path)

    (measured,) = listener.named("measured")
    assert (ended.returncode, measured["ending"], measured["steps"]) == (1, "error", 1)
    links = {link["text"]: link["types"] for link in measured["error"]["links"]}
    assert list(links) == ["outer", "'inner'"]
    assert links["outer"][:2] == ["ValueError", "Exception"]
    assert measured["error"]["traceback"] == ended.stderr


def test_an_oom_beside_the_allocator_is_classified_by_what_was_told(tmp_path: Path) -> None:
    """A library's error, which PyTorch's allocator counts nowhere, reaches the classifier with types that it knows."""
    _, listener = _run("out_of_workspace", tmp_path)

    (measured,) = listener.named("measured")
    verdict = classify_recorded([(link["types"], link["text"]) for link in measured["error"]["links"]])
    assert verdict.outcome is Outcome.OOM
    assert verdict.row is not None
    assert verdict.row.id == "cublas-allocation"


@pytest.mark.parametrize(
    ("way", "ending", "status"), [("left_while_handling", "error", 3), ("thought_better", "exit", 0)]
)
def test_sys_exit_while_an_error_is_handled_is_its_end(way: str, ending: str, status: int, tmp_path: Path) -> None:
    """Unless the program goes on training after all."""
    ended, listener = _run(way, tmp_path)

    (measured,) = listener.named("measured")
    assert (ended.returncode, measured["ending"]) == (status, ending)
    if ending == "error":
        assert [link["text"] for link in measured["error"]["links"]] == ["no such file"]


@pytest.mark.null_gpu
def test_running_out_is_told_also_where_it_is_caught(tmp_path: Path) -> None:
    """With the sizes that the error names, and the device before it."""
    base = null_gpu_environment(generic_card(1 << 30), torch_of(sys.executable, os.environ), os.environ)
    ended, listener = run_trial([sys.executable, str(PROGRAM), "ran_out"], base, cwd=tmp_path)

    (device,), (oom,) = (listener.named(name) for name in ("device", "oom"))
    at_step, measured = listener.named("measured")
    assert ended.stdout == "caught\nstep 1\n"
    assert (oom["tried_bytes"], oom["phase"], oom["iteration"], oom["steps"], oom["count"]) == (
        1 << 52,
        "load",
        0,
        0,
        1,
    )
    assert oom["total_bytes"] == device["total_bytes"] >= device["free_bytes"] == 1 << 30
    assert (measured["ooms"], measured["ending"], measured["failures"]) == (1, "exit", [])
    assert (at_step["ending"], at_step["steps"], at_step["ooms"]) == ("step", 1, 1)
    assert listener.messages.index(at_step) < listener.messages.index(listener.named("step")[0])
    assert at_step["phases"] == measured["phases"] != []


@pytest.mark.null_gpu
def test_a_trial_that_runs_out_has_its_phases(tmp_path: Path) -> None:
    """Up to the failure, and the phase that fails ends at its peak; then the process stands still."""
    base = null_gpu_environment(generic_card(1 << 30), torch_of(sys.executable, os.environ), os.environ)
    with listening() as listener:
        printed = _run_until_stopped("died_of_memory", trial_environment(listener.path, base), tmp_path)

    (measured,) = listener.named("measured")
    assert printed == "not flushed\nstep 1\nstep 2\n"  # and no `atexit`
    assert (measured["ending"], measured["steps"], measured["failures"]) == ("error", 2, [])
    assert measured["error"]["links"][0]["types"][0] == "torch.OutOfMemoryError"
    *_, failed = measured["phases"]
    assert (failed["iteration"], failed["phase"]) == (3, "forward")
    assert failed["end_allocated_bytes"] == failed["peak_allocated_bytes"] == measured["peak_allocated_bytes"] > 9e8


def test_workers_say_nothing_but_what_they_write(tmp_path: Path) -> None:
    """A forked process that does not train is none of the probe's."""
    ended, listener = _run("with_workers", tmp_path)

    assert ended.returncode == 0
    main = listener.named("started")[0]["pid"]
    others = [one for one in listener.messages if one["pid"] != main]
    assert {one["event"] for one in others} == {"wrote"}
    assert {one["path"] for one in others} == {str(tmp_path / "workerTrue")}
    assert [one["steps"] for one in listener.named("step")] == [1, 2]


def test_an_optimizer_that_lags_holds_back_five_fold_at_most(tmp_path: Path) -> None:
    """Ten steps of one and one of the other are two."""
    with listening() as listener:
        environment = trial_environment(listener.path, OOMDOCTOR_TRIAL_STEPS="99", CUDA_VISIBLE_DEVICES="")
        command = [sys.executable, str(PROGRAM), "two_optimizers"]
        subprocess.run(command, env=environment, cwd=tmp_path, check=True, capture_output=True, timeout=60)

    assert [one["steps"] for one in listener.named("step")] == list(range(1, 21))


def test_a_step_that_a_scaler_skips_does_not_count(tmp_path: Path) -> None:
    """Of four, two find infinities."""
    _, listener = _run("skipped_steps", tmp_path)

    assert listener.named("measured")[0]["steps"] == 2


def test_what_a_program_writes_is_told(tmp_path: Path) -> None:
    """Folders, files, new names and what torch writes by itself; once each, and not what is only read."""
    _, listener = _run("saves", tmp_path)

    made = tmp_path / "made"
    expected = [made, made / "native.pt", made / "part", made / "whole"]
    assert [one["path"] for one in listener.named("wrote")] == list(map(str, expected))


def test_a_python_without_torch_says_so(tmp_path: Path) -> None:
    """With the frameworks that it has imported, and what it writes."""
    (tmp_path / "jax.py").write_text("")
    code = "import sys; sys.path.insert(0, '.'); import jax; open('file', 'w').close(); open('/tmp/x', 'w').close()"

    _, listener = run_trial([sys.executable, "-c", code], cwd=tmp_path)

    assert [one["path"] for one in listener.named("wrote")] == [str(tmp_path / "file")]
    assert [one["frameworks"] for one in listener.named("no_torch")] == [["jax"]]


@pytest.mark.parametrize("imports", ["", "import torch"])
def test_an_interrupted_program_ends_by_its_signal(imports: str, tmp_path: Path) -> None:
    """The last message leaves Python's own note that it was interrupted, also where it needs more modules."""
    code = f"{imports}\nopen('written', 'w').close()\nraise KeyboardInterrupt"
    ended, listener = run_trial([sys.executable, "-c", code], cwd=tmp_path)

    events = TrialEvents()
    for message in listener.messages:
        events.add(message)
    assert ended.returncode == -signal.SIGINT
    assert [Path(path).name for path in events.written] == ["written"]
    assert events.frameworks == (None if imports else ())
    assert [measured.ending for measured in events.measured.values()] == (["error"] if imports else [])


@pytest.mark.parametrize("socket", ["/nowhere", "dead"])
def test_nobody_listening_disturbs_nobody(socket: str, tmp_path: Path) -> None:
    """A socket that is not there, and one whose listener has gone."""
    with listening() as listener:
        path = str(listener.path) if socket == "dead" else socket
    environment = trial_environment(path, OOMDOCTOR_TRIAL_STEPS="99", CUDA_VISIBLE_DEVICES="")
    command = [sys.executable, str(PROGRAM), "too_few"]

    ended = subprocess.run(
        command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )

    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "step 1\nstep 2\n", "")


def test_listening_to_what_is_opened_is_cheap(tmp_path: Path) -> None:
    """Listening to an event that is none of ours, and to a file that is read, costs a part of opening that file."""
    code = (
        "import sys, timeit, json\n"
        "work = lambda: sys.audit('other', 1), lambda: sys.audit('open', 'x', 'r', 0), lambda: open('x').close()\n"
        "rounds = [[timeit.timeit(one, number=5000) for one in work] for _ in range(20)]\n"
        "print(json.dumps([min(taken) for taken in zip(*rounds)]))"
    )
    (tmp_path / "x").touch()
    ended, _ = run_trial([sys.executable, "-c", code], cwd=tmp_path)

    none, read, opened = json.loads(ended.stdout)
    assert max(none, read) < opened / 8
