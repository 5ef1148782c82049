"""A user's own script under `oomdoctor run`: real PyTorch, a real OOM, no GPU."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from running import Run

from oomdoctor.engines.choice import choose_engine

pytestmark = pytest.mark.null_gpu

PYTHONS = [sys.executable, *filter(None, os.environ.get("OOMDOCTOR_TEST_PYTHONS", "").split(":"))]

# As people write them; nothing in it knows of us.
TRAIN = """
import sys
import torch
from torch import nn

def train(batch_size, steps=4):
    model = nn.Sequential(nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10)).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    for step in range(steps):
        inputs = torch.randn(batch_size if step == 2 else 8, 1024, device="cuda")
        loss = nn.functional.cross_entropy(model(inputs), torch.zeros(len(inputs), dtype=torch.long, device="cuda"))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print("step", step, flush=True)
        if loss.isnan(): print("NaN")
    print("peak", torch.cuda.max_memory_allocated())

if __name__ == "__main__":
    train(int(sys.argv[1]))
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    """A training script in the directory where commands run."""
    path = tmp_path / "train.py"
    path.write_text(TRAIN)
    return path


def reports_in(directory: Path) -> list[dict]:
    """Every report below a directory."""
    return [json.loads(path.read_text()) for path in sorted(directory.glob("oomdoctor-*/rank*-*/report.json"))]


@pytest.mark.parametrize("python", PYTHONS, ids=lambda python: Path(python).parents[1].name)
def test_a_script_dies_of_a_real_oom_and_leaves_a_report(
    oomdoctor: Run, script: Path, tmp_path: Path, python: str
) -> None:
    """With the torch of whatever Python the command names: its own output first, then where the report is."""
    (tmp_path / "model.py").write_text("")  # which nobody should be sent to
    ended = oomdoctor("run", "--capacity", "1GiB", "--", python, script.name, "200000", timeout=200)

    assert ended.returncode == 1
    assert "model.py" not in ended.stderr
    place = "# {micro_batch} goes where the script takes its batch size"
    for asked in ("probe --target-batch 256 --capacity 1GiB", "prescribe --capacity 1GiB"):
        assert f"oomdoctor {asked} -- {python} train.py 200000 {place}" in flat(ended.stderr)
    again = oomdoctor("diagnose", *map(str, tmp_path.glob("oomdoctor-*")))
    assert "oomdoctor prescribe --capacity 1GiB -- " in flat(again.stdout)
    assert ended.stdout == "step 0\nstep 1\n"
    assert ended.stderr.index("torch.OutOfMemoryError: CUDA out of memory") < ended.stderr.index("oomdoctor-")
    (report,) = reports_in(tmp_path)
    assert report["failures"] == []
    assert report["steps_done"] == 2
    place = {"place": f"{script.name}:16", "text": "loss.isnan()", "effect": "decision"}
    assert report["unknown_reads"] == [place]
    told = "The program reads values that a null GPU does not have, and got zeros: `loss.isnan()` at train.py:16"
    assert told in flat(ended.stderr)
    assert report["traceback"].splitlines()[-1] in ended.stderr
    assert report["argv"] == [python, script.name, "200000"]
    (snapshot,) = tmp_path.glob("oomdoctor-*/rank0-*/snapshot.pickle")
    assert _history(python, snapshot, report) == ["alloc", "oom", True, True]


def flat(text: str) -> str:
    """A text in one line."""
    return " ".join(text.split())


def test_exhausted_address_space_is_told_from_a_full_card(oomdoctor: Run, script: Path, tmp_path: Path) -> None:
    """Under `ulimit -v` the card has room, and the host refused the mapping that a driver asked it for."""
    (tmp_path / "limited.sh").write_text(f"ulimit -v 30000000\nexec {sys.executable} {script.name} 200000\n")
    ended = oomdoctor("run", "--gpu", "a100-sxm4-80gb", "--", "sh", "limited.sh", timeout=200)
    assert "The host refused memory for GPU 0" in ended.stderr
    assert "ulimit -v unlimited" in ended.stderr
    (report,) = reports_in(tmp_path)
    assert report["address_space_bytes"] == 30000000 * 1024


def test_the_line_that_holds_memory_is_never_our_own(oomdoctor: Run, tmp_path: Path) -> None:
    """Frames of the agent between a script's line and PyTorch are passed by, wherever oomdoctor is installed."""
    (tmp_path / "ranges.py").write_text(
        "import torch\n\nkept = []\nwhile True:\n    kept.append(torch.arange(2**26, device='cuda'))\n"
    )
    ended = oomdoctor("run", "--capacity", "1GiB", "--", sys.executable, "ranges.py", timeout=200)
    assert "ranges.py:5 in <module>" in flat(ended.stderr)
    assert re.search(r":\d+ in make\b", flat(ended.stderr)) is None  # of `known_values.py`


CAUGHT = """
import sys
import torch

def main(code, fails_otherwise):
    try:
        kept = [torch.empty(2**28, device="cuda") for _ in range(100)]
    except torch.OutOfMemoryError:
        if code > 1:
            raise SystemExit(code)
    if fails_otherwise:
        raise ValueError("no such column")
    return code

sys.exit(main(int(sys.argv[1]), len(sys.argv) > 2))
"""


@pytest.mark.parametrize("code", [1, 7], ids=["returned", "raised"])
def test_an_oom_that_the_program_caught_before_it_failed_is_told(oomdoctor: Run, tmp_path: Path, code: int) -> None:
    """Where the error is gone there is no report, and the figures are told with what to do; nothing else is left."""
    (tmp_path / "caught.py").write_text(CAUGHT)
    ended = oomdoctor("run", "--capacity", "1GiB", "-o", "died", "--", sys.executable, "caught.py", str(code))
    assert ended.returncode == code
    assert "GPU memory ran out (1.00 GiB asked for, " in ended.stderr
    assert f"ended with exit code {code}" in ended.stderr
    assert "hint: for a report and the diagnosis, let the error pass" in ended.stderr
    assert not (tmp_path / "died").exists()


@pytest.mark.parametrize("arguments", [["0"], ["0", "otherwise"]], ids=["success", "another error"])
def test_an_oom_that_did_not_end_the_program_is_not_told(oomdoctor: Run, tmp_path: Path, arguments: list[str]) -> None:
    """A program that succeeds, or dies of another error, has nothing said of an OOM that it got over."""
    (tmp_path / "caught.py").write_text(CAUGHT)
    ended = oomdoctor("run", "--capacity", "1GiB", "-o", "died", "--", sys.executable, "caught.py", *arguments)
    assert "oomdoctor" not in ended.stderr.replace(str(tmp_path), "")
    assert not (tmp_path / "died").exists()


def _history(python: str, snapshot: Path, report: dict) -> list[object]:
    """Kinds of events, whether frames name the script, and whether every weight's address is a live block's."""
    addresses = [int(address) for address, name in report["categories"].items() if name == "weights"]
    code = f"""
import json, pickle
snapshot = pickle.load(open({str(snapshot)!r}, "rb"))
events = snapshot["device_traces"][0]
live = {{block["address"] for segment in snapshot["segments"] for block in segment["blocks"]
        if block["state"] == "active_allocated"}}
print(json.dumps([
    *sorted({{event["action"] for event in events}} & {{"alloc", "oom"}}),
    any("train.py" in frame["filename"] for event in events for frame in event.get("frames", ())),
    len({addresses!r}) == 4 and set({addresses!r}) <= live,
]))
"""
    return json.loads(subprocess.check_output([python, "-c", code], text=True))


def test_a_run_that_succeeds_adds_nothing(oomdoctor: Run, script: Path, tmp_path: Path) -> None:
    """The card is played, and output, files and the peak to the byte are what they are without us."""
    base = choose_engine(engine="null", gpu="rtx-4090", device=None, memory_bytes=None, base=os.environ).environment
    plain = subprocess.run(
        [sys.executable, script.name, "3000"], cwd=tmp_path, env=base, capture_output=True, text=True, check=True
    )

    ended = oomdoctor("run", "--gpu", "rtx-4090", "--", sys.executable, script.name, "3000")

    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout == plain.stdout
    assert "peak " in ended.stdout
    assert [path.name for path in tmp_path.iterdir() if path.name != "__pycache__"] == ["train.py"]


def test_every_worker_of_torchrun_writes_its_own(oomdoctor: Run, script: Path, tmp_path: Path) -> None:
    """Launchers start Pythons of their own, each of which is hooked; the exit code is the launcher's."""
    torchrun = str(Path(sys.executable).parent / "torchrun")

    ended = oomdoctor(
        "run", "--capacity", "1GiB", "-o", "oomdoctor-here", "--no-history",
        torchrun, "--nproc-per-node", "1", "--master-port", "0", script.name, "200000",
    )  # fmt: skip

    assert ended.returncode == 1
    (report,) = reports_in(tmp_path)
    assert (report["rank"], report["world_size"], report["steps_done"]) == (0, 1, 2)
    assert report["history_entries"] == 0
    assert "oomdoctor-here/rank0-" in ended.stderr


RANK = """
import sys
import torch
import torch.distributed as dist

dist.init_process_group("nccl")
torch.cuda.set_device(0)
model = torch.nn.Linear(1024, 1024).cuda()
model(torch.zeros(int(sys.argv[1].partition("=")[2]), 1024, device="cuda")).square().mean().backward()
"""


def test_advice_about_a_rank_asks_about_that_rank(oomdoctor: Run, tmp_path: Path) -> None:
    """What to type next has the world and the rank of the run, at the time and from the folder afterwards."""
    (tmp_path / "train.py").write_text(RANK)
    torchrun = str(Path(sys.executable).parent / "torchrun")

    ended = oomdoctor(
        "run", "--gpu", "t4", "--world-size", "4", "--rank", "1", "-o", "died", "--no-history",
        "--", torchrun, "--nproc-per-node", "1", "train.py", "--batch-size=8000000",
    )  # fmt: skip
    later = oomdoctor("diagnose", "died")

    assert ended.returncode == 1
    for text in (ended.stderr, later.stdout):
        said = " ".join(text.split())
        assert "oomdoctor probe --target-batch 32000000 --gpu t4 --world-size 4 --rank 1 --" in said
        assert "oomdoctor prescribe --gpu t4 --world-size 4 --need 8000000 --" in said
