"""Probing a training command through the command line."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from command_running import BATCH, PYTHON, SMALL, answer, ask, reasons, small_copy
from running import INVOCATIONS, run_here

pytestmark = pytest.mark.null_gpu

# The plain loop, which notes how it was started, and would leave a file if it came to an end.
_NOTED_LOOP = """
import atexit
import json
import os
import sys
from pathlib import Path

import plain_loop

with open("started.jsonl", "a") as file:
    file.write(json.dumps([os.getcwd(), *sys.argv]) + "\\n")
atexit.register(Path("atexit.txt").touch)
sys.argv = [sys.argv[0], *sys.argv[3:]]
try:
    plain_loop.main()
finally:
    Path("finally.txt").touch()
"""

_UNTOUCHED = '{"lr": {"a": 1}} $HOME `id` ; touch pwned * {seed} {}'
_WORDS = (_UNTOUCHED, "m{micro_batch}a{accumulation_steps}w{world_size}{micro_batch}")
_SIZES = ("--batch-size", "{micro_batch}", "--grad-accum={accumulation_steps}")
_LOOP = ("noted_loop.py", *_WORDS, *_SIZES)
_QUESTION = ("--target-batch", "20", "--world-size", "2", "--capacity", "108MiB")


def _directory(tmp_path_factory: pytest.TempPathFactory, name: str) -> Path:
    directory = small_copy(tmp_path_factory.mktemp(name))
    (directory / "noted_loop.py").write_text(_NOTED_LOOP)
    return directory


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A user's directory."""
    return _directory(tmp_path_factory, "forked")


@pytest.fixture(scope="module")
def found(directory: Path) -> dict[str, Any]:
    """What a probe of the loop in it finds."""
    return answer(directory, *_QUESTION, "--", PYTHON, *_LOOP, invocation="oomdoctor")


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the same probe finds where no trial is forked, and none is run that the answer needs not."""
    return answer(_directory(tmp_path_factory, "fresh"), *_QUESTION, "--fresh", "--", PYTHON, *_LOOP)


def _trial(result: dict[str, Any], micro_batch: int) -> dict[str, Any]:
    """The last trial of a size that accumulates with all memory."""
    trials = [trial for trial in result["trials"] if trial["allowed_bytes"] == result["capacity_bytes"]]
    trials = [trial for trial in trials if trial["micro_batches_per_step"] > 1]
    return next(trial for trial in reversed(trials) if trial["micro_batch"] == micro_batch)


def _started(directory: Path) -> list[list[str]]:
    return [json.loads(line) for line in (directory / "started.jsonl").read_text().splitlines()]


def test_the_answer_was_run_and_its_successor_runs_out(found: dict[str, Any]) -> None:
    """The maximum was run and fits, one sample more was run and is out of memory, and the plan reaches the target."""
    maximum = found["micro_batch"]["maximum"]

    assert found["micro_batch"]["limited_by"] == "memory"
    assert _trial(found, maximum)["outcome"] == "fits"
    assert _trial(found, maximum + 1)["outcome"] == "oom"
    assert "out of memory" in _trial(found, maximum + 1)["error"]
    assert 0 < found["micro_batch"]["recommended"] <= maximum < 10
    assert found["accumulation"]["effective_batch"] == 20
    assert found["optimizer"] == "AdamW"
    assert found["capacity_bytes"] == 108 * 2**20


def test_a_result_says_what_the_probe_knows_of_a_command(found: dict[str, Any]) -> None:
    """Phases are there; what only a file's contract shows is null, and where trials came from is a reason."""
    told = reasons(found)

    steps = max(phase["iteration"] for phase in found["phases"])
    assert steps in (3, 8)  # eight where the allocator had to give back its cache
    assert [phase["phase"] for phase in found["phases"]] == ["load", *["forward", "backward", "optimizer"] * steps]
    assert (found["weights_bytes"], found["memory"]) == (None, None)
    assert "3 optimizer steps" in told["trials"]
    assert "to the byte" in told["starts"]


def test_sizes_are_filled_in_where_they_stand(directory: Path, found: dict[str, Any]) -> None:
    """Each trial was told its micro-batch, the accumulation and the world size, in every place at once."""
    tried = {trial["micro_batch"] for trial in found["trials"]}
    seen = {(arguments[3], *arguments[4:]) for arguments in _started(directory)}

    assert {int(arguments[5]) for arguments in _started(directory)} >= tried
    for mixed, _, size, steps in seen:
        assert mixed == f"m{size}a{steps.partition('=')[2]}w2{size}"
    assert {steps for _, _, _, steps in seen} >= {"--grad-accum=2"}


def test_nothing_else_is_touched(directory: Path, found: dict[str, Any]) -> None:
    """No shell takes a word apart, braces that are no placeholder stay, and the user's directory is the script's."""
    assert {tuple(arguments[:3]) for arguments in _started(directory)} == {
        (str(directory), "noted_loop.py", _UNTOUCHED)
    }
    assert not (directory / "pwned").exists()


def test_the_command_to_run_is_the_one_with_its_sizes(found: dict[str, Any]) -> None:
    """The plan is a command: the given words with one size, which was run and reaches the target."""
    plan = found["command_plan"]
    size, steps = plan["sizes"]["micro_batch"], plan["sizes"]["steps"]

    assert plan["words"] == [PYTHON, *_LOOP]
    assert plan["run"][1:4] == ["noted_loop.py", _UNTOUCHED, f"m{size}a{steps}w2{size}"]
    assert plan["run"][4:] == ["--batch-size", str(size), f"--grad-accum={steps}"]
    assert size * steps * 2 >= 20
    assert _trial(found, size)["outcome"] == "fits"


def test_what_the_script_wrote_is_told_and_no_more_is_there(directory: Path, found: dict[str, Any]) -> None:
    """The result names each file that is new; no `atexit` has run, and `finally` only where an OOM went through it."""
    given = {path.name for path in SMALL.iterdir()} | {"noted_loop.py", "__pycache__"}
    made = {path.name for path in directory.iterdir()} - given

    assert made - {"finally.txt"} == {"started.jsonl"}
    assert all(f"`{name}`" in reasons(found)["written"] for name in made)


def test_forked_trials_answer_as_fresh_ones(found: dict[str, Any], fresh: dict[str, Any]) -> None:
    """With `--fresh` the result is the same to the byte, apart from times and how the trials were started."""
    assert reasons(fresh)["starts"] == "each trial was started anew, as `--fresh` says"

    assert _comparable(found) == _comparable(fresh)


def _comparable(result: dict[str, Any]) -> dict[str, Any]:
    trials = [{**trial, "seconds": None, "error": _without_process(trial["error"])} for trial in result["trials"]]
    told = {subject: text for subject, text in reasons(result).items() if subject not in {"starts", "written"}}
    return {**result, "trials": trials, "reasons": told}


def _without_process(error: str | None) -> str | None:
    """PyTorch's text up to where it names the process."""
    return None if error is None else error.partition("process")[0]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The saved result of a probe of one trial of one step."""
    directory = small_copy(tmp_path_factory.mktemp("saved"))
    words = ("--target-batch", "2", "--steps", "1", "--fresh", "--", PYTHON, "plain_loop.py", *_SIZES)
    ended = ask(directory, "--json", "-o", "result.json", *words)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "Wrote result.json\n")
    return directory / "result.json"


@pytest.mark.parametrize("form", ["text", "markdown", "html", "json"])
def test_every_report_names_the_command_to_run(saved: Path, form: str) -> None:
    """A saved result is rendered in every form with the words to start."""
    ended = run_here(["report", saved.name, "--format", form], saved.parent)
    line = " ".join(ended.stdout.replace('",', " ").replace('"', "").replace("\\\n", " ").split())

    assert ended.returncode == 0, ended.stderr
    assert "plain_loop.py --batch-size 2 --grad-accum=1" in line


def test_an_answer_of_one_step_comes_with_a_warning(saved: Path) -> None:
    """`--steps 1` ends trials after one step, which has no optimizer state before it, and the result says so."""
    result = json.loads(saved.read_text())["result"]

    assert {phase["iteration"] for phase in result["phases"]} == {0, 1}
    assert any("only the second has the peak" in warning for warning in result["warnings"])
    told = run_here(["report", saved.name], saved.parent).stdout
    assert "micro-batch 2 fits one optimizer step, and the second may not fit" in told


def test_a_command_that_does_not_accumulate_is_promised_no_target(tmp_path: Path) -> None:
    """The plan, the drawing and the words to start are what such a command does: one micro-batch in each step."""
    words = ("--target-batch", "50", "--capacity", "108MiB", "-o", "found.json", "--", PYTHON, "plain_loop.py", *BATCH)
    directory = small_copy(tmp_path)
    ended = ask(directory, "--json", *words)
    result = json.loads((directory / "found.json").read_text())["result"]
    plan, size = result["accumulation"], result["micro_batch"]["recommended"]
    told = " ".join(run_here(["report", "found.json"], directory).stdout.split())

    assert ended.returncode == 0, ended.stderr
    assert 1 < size < 50
    assert (plan["steps"], plan["micro_batches"], plan["effective_batch"]) == (1, [size], size)
    assert result["command_plan"]["run"][-2:] == ["--batch-size", str(size)]
    assert "The target batch of 50 is out of reach in one micro-batch on one device" in told
    assert f"one micro-batch of {size}, {size} samples in each optimizer step, {50 - size} fewer than asked for" in told
    assert "micro-batches of" not in told


_SPLITS = """
import sys
import torch
from tiny import build_model, loss_of, make_batch

model = build_model().cuda()
optimizer = torch.optim.AdamW(model.parameters())
while True:
    for part in make_batch(64, "cpu").split(int(sys.argv[2])):
        (loss_of(model, part.cuda()) / 64).backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def test_a_command_that_accumulates_by_itself_is_told_no_plan(tmp_path: Path) -> None:
    """A script that splits a batch of its own is not said to see one micro-batch in each step."""
    directory = small_copy(tmp_path)
    (directory / "splits.py").write_text(_SPLITS)
    words = ("--target-batch", "64", "--capacity", "108MiB", "-o", "found.json", "--", PYTHON, "splits.py", *BATCH)
    ended = ask(directory, *words)
    result = json.loads((directory / "found.json").read_text())["result"]
    size = result["micro_batch"]["recommended"]
    told = " ".join(run_here(["report", "found.json"], directory).stdout.split())

    assert ended.returncode == 0, ended.stderr
    assert result["accumulation"] is None
    assert result["command_plan"]["run"][-1] == str(size)
    assert f"{-(-64 // size)} micro-batches of at most {size}, as the command accumulates by itself" in told
    assert "the command accumulates by itself, in" in told
    assert "out of reach" not in told


def test_a_dry_run_runs_one_trial_without_standard_input(tmp_path: Path) -> None:
    """`--dry-run` shows the command as it was run and whether it fits, where standard input is closed too."""
    words = [*INVOCATIONS["python -m oomdoctor"], "probe", "--engine", "null", "--capacity", "64MiB", "--dry-run", "-q"]
    command = [*words, "--", PYTHON, "plain_loop.py", *BATCH]
    ended = subprocess.run(
        ["sh", "-c", 'exec "$@" <&-', "sh", *command],
        cwd=small_copy(tmp_path),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )

    assert (ended.returncode, ended.stderr) == (0, "")
    assert "plain_loop.py --batch-size 1" in ended.stdout
    assert "One trial at micro-batch 1: fits, peak" in ended.stdout
    assert "AdamW" in ended.stdout


def test_a_launcher_trains_its_rank(tmp_path: Path) -> None:
    """`torchrun --nproc-per-node 1` is a command like any other: the rank that it starts is what is measured."""
    launcher = str(Path(sys.executable).with_name("torchrun"))
    words = (launcher, "--nproc-per-node", "1", "ddp.py", *BATCH)
    result = answer(small_copy(tmp_path), "--target-batch", "2", "--fresh", "--", *words)

    assert result["micro_batch"]["maximum"] == 2
    assert result["trials"][0]["peak_allocated_bytes"] > 2**20
    assert result["warnings"] == []
