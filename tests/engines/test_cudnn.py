"""The real cuDNN is asked for the workspaces of convolutions, without a GPU."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from running import WITHOUT_COMPILER

from oomdoctor.engines.catalogue import find_card
from oomdoctor.engines.choice import choose_engine
from oomdoctor.engines.cudnn import ANSWERS, COMMAND, Convolution, TensorLayout, graph_of
from oomdoctor.engines.cudnn_library import CARD, cudnn_variables
from oomdoctor.engines.installed import TorchBuild, find_torch
from oomdoctor.engines.null_gpu.library import environment
from oomdoctor.request import ProbeRequest
from oomdoctor.results import Outcome
from oomdoctor.results.variant import Variant
from oomdoctor.target.reference import parse_reference
from oomdoctor.trial.answer import workspace_reason
from oomdoctor.trial.client import WorkerTrialSource

if TYPE_CHECKING:
    from collections.abc import Sequence

    from running import Run

    from oomdoctor.results import Trial

BUILD = find_torch()
TOLD = {} if BUILD is None else cudnn_variables(BUILD, os.environ, find_card("rtx-3060"))
pytestmark = [
    pytest.mark.null_gpu,
    pytest.mark.skipif(
        COMMAND not in TOLD, reason="the cuDNN beside this torch answers for no card that is only described"
    ),
]

LAYER = """
import os, sys, torch
layer = torch.nn.Conv2d(512, 512, 3, padding=1, bias=False, device="cuda")
x = torch.zeros(32, 512, 28, 28, device="cuda")
def workspace():
    torch.cuda.reset_peak_memory_stats()
    y = layer(x)
    return torch.cuda.max_memory_allocated() - torch.cuda.memory_allocated()
"""
FIRST_CHOICE = 60_817_424
"""Bytes that cuDNN 9.26 takes for this layer on compute capability 8.6, as its own heuristics say in a program of C."""


def _keeping(command: str, answers: Path) -> str:
    """The command, with answers kept elsewhere."""
    *words, settings = command.split("\n")
    return "\n".join([*words, json.dumps({**json.loads(settings), "answers": str(answers)})])


def _run(code: str, tmp_path: Path, **variables: str) -> str:
    env = environment(find_card("rtx-3060"), BUILD, {**os.environ, **variables})
    if COMMAND in env:
        env |= {COMMAND: _keeping(env[COMMAND], tmp_path / "kept"), ANSWERS: str(tmp_path / "kept")}
    command = [sys.executable, "-c", LAYER + code]
    ran = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120, check=False)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def test_a_convolution_takes_what_cudnn_asks_for(tmp_path: Path) -> None:
    """The peak holds cuDNN's own workspace, less of it where there is no room, and none in the older interface."""
    wide = int(_run("print(workspace())", tmp_path))
    assert FIRST_CHOICE <= wide <= FIRST_CHOICE + (2 << 20)
    short = """
room = torch.cuda.memory_reserved() + x.nbytes + (40 << 20)
torch.cuda.set_per_process_memory_fraction(room / torch.cuda.get_device_properties(0).total_memory)
from oomdoctor.engines.null_gpu.library import workspace_retries, workspaces_given_up
print(workspace(), *map(torch.cuda.memory_stats().get, ("num_ooms", "num_alloc_retries")), end=" ")
print(workspaces_given_up(), workspace_retries())
"""
    taken, ooms, retries, given_up, workspace_retries = map(int, _run(short, tmp_path).split())
    assert 0 < taken < 40 << 20
    assert ooms == given_up > 0  # none of which the program sees
    assert retries == workspace_retries > 0
    assert int(_run("print(workspace())", tmp_path, TORCH_CUDNN_V8_API_DISABLED="1")) == 0


RUN_AGAIN_IN_BACKWARD = """
def in_a_short_card(_):
    room = torch.cuda.memory_reserved() + x.nbytes + (40 << 20)
    torch.cuda.set_per_process_memory_fraction(room / torch.cuda.get_device_properties(0).total_memory)
    taken.append(workspace())
    torch.cuda.set_per_process_memory_fraction(1.0)
taken = [workspace()]
torch.cuda.empty_cache()
loss = torch.zeros((), device="cuda", requires_grad=True) * 2
loss.register_hook(in_a_short_card)
loss.backward()
taken.append(workspace())
print(*taken)
"""


def test_what_fits_is_remembered_for_each_thread(tmp_path: Path) -> None:
    """What a checkpoint runs again in backward finds its own workspace, and forward keeps the one that it had."""
    traced = f"""
from oomdoctor.engines.catalogue import find_card
from oomdoctor.engines.trace.emulation import emulated_cuda
with emulated_cuda(find_card("rtx-3060")):
    exec({LAYER + RUN_AGAIN_IN_BACKWARD!r}, {{}})
"""
    ran = subprocess.run(
        [sys.executable, "-c", traced], env={**os.environ, **TOLD}, capture_output=True, text=True, check=True
    )
    forward, backward, again = map(int, _run(RUN_AGAIN_IN_BACKWARD, tmp_path).split())
    assert forward == again >= FIRST_CHOICE
    assert 0 < backward < 40 << 20
    assert [*map(int, ran.stdout.split())] == [forward, backward, again]


MODEL = """
import torch

def build_model():
    return torch.nn.Conv2d(512, 512, 3, padding=1, bias=False)

def make_batch(batch_size):
    return torch.zeros(batch_size, 512, 28, 28)

def training_step(model, batch):
    return model(batch).mean()
"""


TRAIN = """
import sys

import torch
from model import build_model, make_batch, training_step

model = build_model().cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    training_step(model, make_batch(int(sys.argv[1])).cuda()).backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def test_a_command_tells_the_least_memory_of_its_size(oomdoctor_here: Run, tmp_path: Path) -> None:
    """A command's size runs in less than it takes as the file's does, and in the same."""
    (tmp_path / "model.py").write_text(MODEL, encoding="utf-8")
    (tmp_path / "train.py").write_text(TRAIN, encoding="utf-8")
    card = ("--gpu", "rtx-3060", "--capacity", "1GiB", "--target-batch", "16")
    asked = (("model.py", "--optimizer", "sgd"), ("--", sys.executable, "train.py", "{micro_batch}"))
    ended = [oomdoctor_here("probe", *card, "--json", *words, **WITHOUT_COMPILER) for words in asked]
    of_file, of_command = (json.loads(each.stdout)["result"]["least_memory"] for each in ended)
    assert of_command["least_bytes"] == pytest.approx(of_file["least_bytes"], abs=4096)  # small tensors differ
    assert of_command["least_bytes"] < of_command["peak_reserved_bytes"]


def test_a_size_fits_that_does_without_a_workspace(oomdoctor_here: Run, tmp_path: Path) -> None:
    """A trial in which PyTorch gave up workspaces fits; the program is not said to have caught an error."""
    (tmp_path / "model.py").write_text(MODEL, encoding="utf-8")
    question = ("--gpu", "rtx-3060", "--capacity", "240MiB", "--target-batch", "32", "--optimizer", "sgd")
    result = json.loads(oomdoctor_here("probe", "model.py", *question, "--json").stdout)["result"]
    assert result["micro_batch"]["maximum"] == 32
    gave_up = [trial for trial in result["trials"] if trial["workspace_retries"] > 2]
    assert gave_up
    assert {(trial["outcome"], trial["swallowed_ooms"], trial["alloc_retries"]) for trial in gave_up} == {
        ("fits", 0, 0)
    }
    assert result["micro_batch"]["recommended"] == max(
        t["micro_batch"] for t in gave_up if t["peak_reserved_bytes"] < 228 << 20
    )


def test_a_workspace_for_which_the_cache_is_given_back(tmp_path: Path) -> None:
    """A retry for a workspace is told from the program's own, also where it makes room for the workspace."""
    code = """
from oomdoctor.engines.null_gpu.library import workspace_retries
def cache_and_limit(room):
    torch.cuda.empty_cache()
    limit = torch.cuda.memory_reserved() + room + (90 << 20)
    torch.cuda.set_per_process_memory_fraction(limit / torch.cuda.get_device_properties(0).total_memory)
    parts = [torch.empty(12 << 20, dtype=torch.uint8, device="cuda") for _ in range(7)]  # none of them will do
def retries():
    return torch.cuda.memory_stats()["num_alloc_retries"], workspace_retries()
cache_and_limit(x.nbytes)
print(workspace() > 50 << 20, *retries(), end=" ")
cache_and_limit(0)
own = torch.empty(80 << 20, dtype=torch.uint8, device="cuda")
print(*retries())
"""
    assert _run(code, tmp_path).split() == ["True", "1", "1", "2", "1"]


def _in_one_process(folder: Path, engine: str, gpu: str, mebibytes: Sequence[int | None]) -> list[Trial]:
    """Trials of 32 samples of the folder's model with so much memory each, or all; one after another."""
    request = ProbeRequest(target="model.py", directory=folder, target_batch=32)
    card = choose_engine(engine=engine, gpu=gpu, device=None, memory_bytes=None, base=os.environ).environment
    with WorkerTrialSource(request, parse_reference("model.py", directory=folder), card) as source:
        room = source.load().capacity_bytes
        limits = [room if limit is None else limit << 20 for limit in mebibytes]
        return [source.run(32, micro_steps=1, allowed_bytes=limit) for limit in limits]


@pytest.mark.usefixtures("forked_workers")
@pytest.mark.parametrize("engine", ["null", "trace"])
def test_a_trial_keeps_no_plan_of_a_tighter_one(engine: str, tmp_path: Path) -> None:
    """A size that did without workspaces in one trial takes them in the next, where there is room."""
    (tmp_path / "model.py").write_text(MODEL, encoding="utf-8")
    first, tight, wide, again = _in_one_process(tmp_path, engine, "rtx-3060", (None, 260, None, 260))
    assert tight.workspace_retries > 0
    assert (wide.peak_allocated_bytes, wide.peak_reserved_bytes) == (
        first.peak_allocated_bytes,
        first.peak_reserved_bytes,
    )
    assert (again.peak_allocated_bytes, again.peak_reserved_bytes) == (
        tight.peak_allocated_bytes,
        tight.peak_reserved_bytes,
    )


@pytest.mark.usefixtures("forked_workers")
@pytest.mark.parametrize(("before", "mebibytes"), [(700, 800), (900, 800), (1100, 1000), (1300, 1200)])
def test_a_trial_after_another_is_as_in_a_process_of_its_own(before: int, mebibytes: int, tmp_path: Path) -> None:
    """Plans that PyTorch asked for anew, since its first had no room, are not those of a trial with other memory."""
    filters = "torch.nn.Conv2d(64, 32, 3, bias=False)"
    text = MODEL.replace("torch.nn.Conv2d(512, 512, 3, padding=1, bias=False)", filters)
    text = text.replace("512, 28, 28)", "64, 130, 130, requires_grad=True)")
    (tmp_path / "model.py").write_text(text, encoding="utf-8")

    def asked(*limits: int) -> tuple[object, ...]:
        *_, last = _in_one_process(tmp_path, "null", "t4", limits)
        return last.outcome, last.peak_reserved_bytes, last.alloc_retries

    assert asked(before, mebibytes) == asked(mebibytes)


@pytest.mark.usefixtures("forked_workers")
def test_a_retry_beside_a_normalization_is_none_for_a_workspace(tmp_path: Path) -> None:
    """Batch normalization asks cuDNN for its reserve as well; what is allocated after that is no workspace."""
    target = "torchvision:mobilenet_v3_small"
    asked = []
    for engine in ("null", "trace"):
        request = ProbeRequest(target=target, directory=tmp_path, variant=Variant(precision="fp16"))
        card = choose_engine(engine=engine, gpu="t4", device=None, memory_bytes=None, base=os.environ).environment
        with WorkerTrialSource(request, parse_reference(target, directory=tmp_path), card) as source:
            source.load()
            asked.append(source.run(61, micro_steps=1, allowed_bytes=665 << 20))
    assert {(trial.outcome, trial.alloc_retries, trial.workspace_retries) for trial in asked} == {(Outcome.FITS, 1, 1)}


@pytest.mark.usefixtures("forked_workers")
def test_what_is_given_back_between_trials_is_no_retry(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A trial after another with the same sizes had to retry nothing, with cuDNN's older interface as well."""
    monkeypatch.setenv("TORCH_CUDNN_V8_API_DISABLED", "1")
    norm = "torch.nn.Sequential(torch.nn.Conv2d(512, 64, 3), torch.nn.BatchNorm2d(64), torch.nn.ReLU())"
    text = MODEL.replace("torch.nn.Conv2d(512, 512, 3, padding=1, bias=False)", norm)
    (tmp_path / "model.py").write_text(text, encoding="utf-8")
    request = ProbeRequest(target="model.py", directory=tmp_path, target_batch=32)
    card = choose_engine(engine="null", gpu="rtx-3060", device=None, memory_bytes=None, base=os.environ).environment
    with WorkerTrialSource(request, parse_reference("model.py", directory=tmp_path), card) as source:
        first = source.run(32, micro_steps=1, allowed_bytes=source.load().capacity_bytes)
        second = source.run(32, micro_steps=1, allowed_bytes=first.peak_reserved_bytes)
    assert (second.outcome, second.alloc_retries, second.workspace_retries) == (Outcome.FITS, 0, 0)


def test_answers_are_kept(tmp_path: Path) -> None:
    """A second process gets the same answer from the file, and starts no process to ask."""
    first = _run("print(workspace())", tmp_path)
    kept = tmp_path / "kept"
    before = kept.read_text(encoding="utf-8")
    code = f"os.environ['{COMMAND}'] = '/bin/false'\nprint(workspace())"
    assert _run(code, tmp_path) == first
    assert kept.read_text(encoding="utf-8") == before


def test_a_kept_answer_is_found_among_thousands(tmp_path: Path) -> None:
    """An answer is found before, between and after ten thousand others, and one that another process adds meanwhile."""
    first = _run("print(workspace())", tmp_path)
    kept = tmp_path / "kept"
    answers, others = kept.read_text(encoding="utf-8"), [f"{number:028x} 0" for number in range(10_000)]
    for at in (0, 5000, len(others)):
        lines = "\n".join(["", *others[:at], answers, *others[at:], ""])
        kept.write_text(lines, encoding="utf-8")
        assert _run(f"os.environ['{COMMAND}'] = '/bin/false'\nprint(workspace())", tmp_path) == first
    kept.write_text("\n".join(["", *others, ""]), encoding="utf-8")
    code = f"""
os.environ['{COMMAND}'] = '/bin/false'
layer(x[:1])
with open({str(kept)!r}, "a") as file:
    file.write({answers!r})
print(workspace())
"""
    assert _run(code, tmp_path) == first


def test_a_library_that_cannot_be_asked_is_named(tmp_path: Path) -> None:
    """Where the process that asks ends, the convolution takes no workspace, and the call is reported as not served."""
    code = f"""
os.environ['{COMMAND}'] = '/bin/false'
print(workspace())
from oomdoctor.engines.null_gpu.library import unknown_calls
print(unknown_calls())
"""
    assert _run(code, tmp_path).split("\n")[:2] == ["0", "('cudnnBackendFinalize',)"]


def _wheels(tmp_path: Path, *, only: str = "*") -> TorchBuild:
    """A CPU build of torch beside the NVIDIA libraries of the installed one, of whose cuDNN some files are there."""
    ours = BUILD.root.parent
    others = (path for path in ours.glob("nvidia/*/lib/*.so*") if path.parent.parent.name != "cudnn")
    for path in [*others, *ours.glob(f"nvidia/cudnn/lib/{only}")]:
        link = tmp_path / "site" / path.relative_to(ours)
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(path)
    for path in ours.glob("nvidia_cudnn_cu*.dist-info"):
        (tmp_path / "site" / path.name).mkdir()
    return TorchBuild("2.13.0+cpu", None, tmp_path / "site" / "torch")


def test_a_cpu_build_asks_a_cudnn_that_is_installed_beside_it(tmp_path: Path) -> None:
    """The library answers also where torch itself is a CPU build; what it told is kept for the next probe."""
    build, base = _wheels(tmp_path), {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "caches")}
    first = cudnn_variables(build, base)
    assert workspace_reason(first).text.startswith("counted: cuDNN ")
    assert cudnn_variables(build, {**base, "CC": "/bin/false"}) == first


def test_a_cudnn_that_refuses_every_question_is_not_asked(tmp_path: Path) -> None:
    """A cuDNN that loads only in part counts nothing, and the result says what it told."""
    build = _wheels(tmp_path, only="libcudnn.so*")
    told = cudnn_variables(build, {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "caches")})
    assert COMMAND not in told
    reason = workspace_reason(told).text
    assert reason.startswith("0 bytes: cuDNN ")
    assert reason.endswith(
        "is installed, and answered nothing: Invalid handle. Cannot load symbol cudnnBackendCreateDescriptor"
    )


def test_a_fork_asks_for_itself(tmp_path: Path) -> None:
    """Children of a process that has asked ask on their own, at the same time, and get answers."""
    code = """
workspace()
pids = []
for mode in (0, 2):
    pid = os.fork()
    if not pid:
        import ctypes
        from oomdoctor.engines.null_gpu.library import _library
        heuristics = ctypes.c_void_p()
        _library().cudnnBackendCreateDescriptor(4, ctypes.byref(heuristics))
        mode = ctypes.c_int(mode)
        _library().cudnnBackendSetAttribute(heuristics, 200, 8, ctypes.c_int64(1), ctypes.byref(mode))
        os._exit(_library().cudnnBackendFinalize(heuristics) != 3000)  # refused by the library: there is no graph
    pids.append(pid)
print([os.waitpid(pid, 0)[1] for pid in pids])
"""
    assert _run(code, tmp_path).splitlines()[-1] == "[0, 0]"


def test_the_process_ends_with_its_questions(tmp_path: Path) -> None:
    """It answers a malformed question with -1, ignores an interrupt, and ends when nobody can ask any more."""
    command = _keeping(TOLD[COMMAND], tmp_path / "kept").split("\n")
    asked = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert asked.stdin is not None
    assert asked.stdout is not None
    assert asked.wait(timeout=30) == 0  # it goes on in a child, so that nobody has to wait for it
    asked.stdin.write(f"k {TOLD[CARD]} 201:15=15(;\n")
    asked.stdin.flush()
    assert asked.stdout.readline() == "-1\n"
    os.killpg(asked.pid, signal.SIGINT)
    square = TensorLayout((8, 16, 8, 8), (1024, 64, 8, 1), 32)
    weight = TensorLayout((16, 16, 3, 3), (144, 9, 3, 1), 32)
    layer = Convolution("forward", "float32", square, weight, square, (1, 1), (1, 1), (1, 1))
    asked.stdin.write(f"q {TOLD[CARD]} {graph_of(layer, 0)}\n")
    asked.stdin.close()
    assert int(asked.stdout.readline().split()[0]) > 0
    asked.stdout.close()
    deadline = time.monotonic() + 10
    while _is_in_session(asked.pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not _is_in_session(asked.pid)
    assert (tmp_path / "kept").read_text(encoding="utf-8").count("\n") == 4


def _is_in_session(leader: int) -> bool:
    """Whether a process of the session still lives."""
    found = subprocess.run(["pgrep", "-s", str(leader)], capture_output=True, check=False)
    return found.returncode == 0


@pytest.mark.parametrize("engine", ["null", "trace"])
def test_a_probe_tells_the_least_memory_of_a_size_with_workspaces(
    oomdoctor_here: Run, tmp_path: Path, engine: str
) -> None:
    """Beside the peak it names less memory in which the size ran, and a smaller card of that capacity agrees."""
    (tmp_path / "model.py").write_text(MODEL, encoding="utf-8")
    question = ("--gpu", "rtx-3060", "--target-batch", "32", "--optimizer", "sgd", "--engine", engine)
    probed = oomdoctor_here("probe", "model.py", *question, "--json")
    result = json.loads(probed.stdout)["result"]
    least, workspace = result["least_memory"], max(trial["workspace_bytes"] for trial in result["trials"])
    assert workspace >= FIRST_CHOICE
    assert least["micro_batch"] == result["micro_batch"]["recommended"] == 32
    assert least["least_bytes"] < least["peak_reserved_bytes"] - (20 << 20)
    assert max(trial["peak_reserved_bytes"] for trial in result["trials"]) == least["peak_reserved_bytes"]
    tight = oomdoctor_here("probe", "model.py", *question, "--capacity", f"{least['least_bytes']}B", "--json")
    assert json.loads(tight.stdout)["result"]["micro_batch"]["maximum"] == 32
    text = oomdoctor_here("probe", "model.py", *question).stdout
    assert "reserved; " in text
    assert "is enough, since cuDNN's workspaces are" in " ".join(text.split())
