"""A probe on a real GPU, guided by a trace: a null GPU stands where the real one would."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from importlib.resources import files
from pathlib import Path
from typing import Any

import jsonschema
import psutil
import pytest
from running import Run, marked_processes
from targets_for_tests import MLP, write_target

from oomdoctor import probe
from oomdoctor.engines.catalogue import find_card
from oomdoctor.engines.installed import find_torch
from oomdoctor.engines.null_gpu.library import environment
from oomdoctor.errors import TargetError
from oomdoctor.results import Guidance
from oomdoctor.trial import warm_start

pytestmark = [pytest.mark.null_gpu, pytest.mark.slow, pytest.mark.usefixtures("real")]

SCHEMA = json.loads((files("oomdoctor") / "schemas" / "probe.schema.json").read_text(encoding="utf-8"))
QUESTION = ("model.py", "--target-batch", "4096", "--capacity", "256MiB")

# The guide's worker is the one that is shown no GPU.
_IN_GUIDE = """

import os
import time

if os.environ.get("CUDA_VISIBLE_DEVICES") == "":
    {}
"""
_CHOOSES = """
def training_step(model, batch):
    outputs = model(batch)
    return outputs.sum() + outputs.flatten()[:4].long().bincount().sum()
"""
_LOOKS = """
def build_model():
    import os
    found = torch.cuda.get_device_properties(0)
    seen = os.environ.get("CUDA_VISIBLE_DEVICES"), found.name, found.major, found.minor, found.multi_processor_count
    with open("seen.txt", "a") as file:
        print(*seen, open("/proc/self/oom_score_adj").read().strip(), sep="|", file=file)
    return nn.Linear(1024, 1024)
"""


@pytest.fixture
def real(monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine seems to have an RTX 4090."""
    build = find_torch()
    assert build is not None
    for name, value in environment(find_card("rtx-4090"), build, os.environ).items():
        monkeypatch.setenv(name, value)


def _probe(run: Run, *arguments: str) -> dict[str, Any]:
    ended = run("probe", *arguments, "--engine", "cuda", "--json", "--quiet")
    assert (ended.returncode, ended.stderr) == (0, "")
    document = json.loads(ended.stdout)
    jsonschema.validate(document, SCHEMA)
    return document["result"]


def _said(result: dict[str, Any]) -> list[str]:
    return [reason["text"] for reason in result["reasons"] if reason["subject"] == "guide"]


def _answer(result: dict[str, Any]) -> tuple[object, object]:
    return result["micro_batch"], result["accumulation"]


@pytest.mark.parametrize(("example", "for_plan"), [("gpt2", 1), ("vit_b16", 3)])
def test_two_trials_prove_the_maximum(oomdoctor_here: Run, example: str, for_plan: int) -> None:
    """The first trial is the maximum and the second its successor; others prove a plan or plain steps."""
    question = (example, "--target-batch", "256")
    guided, plain = _probe(oomdoctor_here, *question), _probe(oomdoctor_here, *question, "--no-guide")

    maximum = plain["micro_batch"]["maximum"]
    trials = [(trial["micro_batch"], trial["outcome"]) for trial in guided["trials"]]
    assert trials[:2] == [(maximum, "fits"), (maximum + 1, "oom")]
    assert len(trials) == 2 + for_plan
    assert len(plain["trials"]) >= 4 + for_plan
    assert _answer(guided) == _answer(plain)
    assert guided["guide"] == {"guesses": [maximum], "problem": None}
    assert _said(guided) == [f"the trace engine predicted {maximum}, which the trials confirmed"]


def test_plain_steps_are_guided_too(oomdoctor_here: Run) -> None:
    """Without a target batch the first two trials are the maximum and its successor."""
    guided = _probe(oomdoctor_here, "gpt2")

    maximum = guided["micro_batch"]["maximum"]
    trials = [(trial["micro_batch"], trial["outcome"]) for trial in guided["trials"]]
    assert trials[:2] == [(maximum, "fits"), (maximum + 1, "oom")]
    assert guided["guide"] == {"guesses": [maximum], "problem": None}


def test_without_a_guide_nothing_is_said_of_it(oomdoctor_here: Run, tmp_path: Path) -> None:
    """`--no-guide` starts no second worker, nor does a dry run or a null GPU."""
    write_target(tmp_path, build_model=_LOOKS)
    result = _probe(oomdoctor_here, *QUESTION, "--no-guide")
    oomdoctor_here("probe", *QUESTION, "--engine", "null")
    oomdoctor_here("probe", *QUESTION, "--engine", "cuda", "--dry-run")

    assert (result["guide"], _said(result)) == (None, [])
    assert len((tmp_path / "seen.txt").read_text().splitlines()) == 3


def test_the_guide_sees_the_card_and_no_gpu(oomdoctor: Run, tmp_path: Path) -> None:
    """Its worker is shown no GPU, tells the target of the same card, and is the first to go for want of host memory."""
    write_target(tmp_path, build_model=_LOOKS)

    _probe(oomdoctor, *QUESTION)

    seen = sorted(line.split("|", 1) for line in (tmp_path / "seen.txt").read_text().splitlines())
    own = Path("/proc/self/oom_score_adj").read_text().strip()
    card = "NVIDIA GeForce RTX 4090|8|9|128"
    assert seen == [["", f"{card}|1000"], ["None", f"{card}|{own}"]]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (MLP + _IN_GUIDE.format("os._exit(7)"), "ended the process with exit code 7"),
        (MLP + _IN_GUIDE.format("raise ValueError('no such thing')"), "no such thing"),
        (MLP[: MLP.index("def training_step")] + _CHOOSES, "`aten.bincount` cannot be traced"),
    ],
    ids=["exit", "error", "untraceable"],
)
def test_a_guide_that_fails_is_a_line_in_the_result(
    oomdoctor_here: Run, tmp_path: Path, text: str, problem: str
) -> None:
    """The probe answers as without one, says nothing else, and the result has why there was no guess."""
    write_target(tmp_path, text)
    guided, plain = _probe(oomdoctor_here, *QUESTION), _probe(oomdoctor_here, *QUESTION, "--no-guide")

    assert _answer(guided) == _answer(plain)
    assert [trial["micro_batch"] for trial in guided["trials"]] == [trial["micro_batch"] for trial in plain["trials"]]
    assert guided["guide"]["guesses"] == []
    assert problem in guided["guide"]["problem"]
    assert _said(guided) == [f"the trace engine made no prediction: {guided['guide']['problem']}"]
    assert guided["warnings"] == plain["warnings"]


def test_a_guide_that_takes_too_long_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The probe goes on without it, and its worker is ended."""
    write_target(tmp_path, MLP + _IN_GUIDE.format("time.sleep(300)"))
    mark = f"slow-guide-{os.getpid()}"
    monkeypatch.setenv("OOMDOCTOR_TEST_MARK", mark)
    # The least of the times that it may take; other minima of the module stay what they are.
    monkeypatch.setattr(warm_start, "min", lambda *numbers: min(0.5, *numbers), raising=False)
    monkeypatch.chdir(tmp_path)

    result = probe("model.py", target_batch=4096, capacity="256MiB", engine="cuda").result

    assert result.micro_batch.maximum > 1
    assert result.guide == Guidance((), "tracing the step took longer than 0.5 s")
    assert _others(mark) == []


def test_a_smaller_card_keeps_the_context_of_the_local_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`--memory` on a local GPU is what a smaller card would have in all, and PyTorch gets it less the context."""
    write_target(tmp_path)
    monkeypatch.chdir(tmp_path)

    result = probe("model.py", target_batch=4, memory="8GiB", engine="cuda", guide=False).result

    assert result.capacity_bytes == pytest.approx((8 << 30) - find_card("rtx-4090").context_bytes, abs=2**21)


def test_an_error_ends_the_guide_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the target is at fault, that is what is raised, and the guide that is still at work is ended."""
    write_target(tmp_path, MLP + _IN_GUIDE.format("time.sleep(300)\nraise KeyError('absent')"))
    mark = f"failing-{os.getpid()}"
    monkeypatch.setenv("OOMDOCTOR_TEST_MARK", mark)
    monkeypatch.chdir(tmp_path)

    with pytest.raises(TargetError, match="absent"):
        probe("model.py", target_batch=4096, capacity="256MiB", engine="cuda")

    assert _others(mark) == []


def test_a_guide_may_be_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is predicted is run like any other size: a guide that sees another model costs trials and no more."""
    text = "MORE = 1\n" + MLP.replace("model(batch)", "sum(model(batch) for _ in range(MORE))")
    write_target(tmp_path, text + _IN_GUIDE.format("MORE = 3"))
    monkeypatch.chdir(tmp_path)

    guided, plain = (
        probe("model.py", target_batch=4096, capacity="256MiB", engine="cuda", guide=is_guided).result
        for is_guided in (True, False)
    )

    assert guided.guide is not None
    assert guided.guide.guesses[0] < guided.micro_batch.maximum == plain.micro_batch.maximum
    assert len(guided.trials) <= len(plain.trials) + 2
    said = [reason.text for reason in guided.reasons if reason.subject == "guide"]
    assert said[0].endswith(f", and the trials found {plain.micro_batch.maximum}")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_an_interrupt_ends_the_guide_too(tmp_path: Path, number: signal.Signals) -> None:
    """Whatever ends the probe while its guide is at work, neither worker is left."""
    write_target(tmp_path, MLP + _IN_GUIDE.format("open('guided', 'w').close(); time.sleep(300)"))
    mark = f"guided-{os.getpid()}-{number}"
    process = subprocess.Popen(
        [sys.executable, "-m", "oomdoctor", "probe", *QUESTION, "--engine", "cuda", "--quiet"],
        cwd=tmp_path,
        env={**os.environ, "OOMDOCTOR_TEST_MARK": mark},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    _wait_for((tmp_path / "guided").exists)
    assert len(marked_processes(mark)) >= 4  # the probe, the guide under its guardian, and one worker more

    process.send_signal(number)

    assert process.wait(60) in (130, -number)
    _wait_for(lambda: marked_processes(mark) == [])


def _others(mark: str) -> list[psutil.Process]:
    return [process for process in marked_processes(mark) if process.pid != os.getpid()]


def _wait_for(condition: Any, seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)
