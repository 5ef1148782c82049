"""An interrupted `oomdoctor probe` prints the answer where it had it."""

from __future__ import annotations

import json
import re
import signal
import sys
from pathlib import Path

import jsonschema
import pytest
from running import interrupt_once_begun

import oomdoctor

pytestmark = [pytest.mark.null_gpu, pytest.mark.slow]

SCHEMA = Path(oomdoctor.__file__).parent / "schemas" / "probe.schema.json"
MODEL = """\
import pathlib
import time
import traceback

import torch

SIZES = []


def build_model():
    return torch.nn.Linear(256, 256)


def make_batch(batch_size):
    return torch.randn(batch_size, 64, 256)


def training_step(model, batch):
    if {stuck}:
        pathlib.Path(__file__).with_name("begun").touch()
        time.sleep(300)
    return model(batch).square().mean()
"""
RECORDED = 'any("trial/profile" in frame.filename for frame in traceback.extract_stack())'
"""Whether the step is one whose memory is recorded, which is done once the answer is known."""
AGAIN = "SIZES.append(len(batch)) or (len(batch) in SIZES[:-1] and len(batch) != SIZES[-2])"
"""Whether the step is of a size that is run once more, which a trace does once the answer is known."""
CALLER = """\
import oomdoctor

try:
    oomdoctor.probe("model.py", gpu="rtx-4090", capacity="512MiB")
except KeyboardInterrupt as interrupt:
    print(interrupt.document.status, interrupt.document.result.micro_batch.maximum)
"""
# It keeps memory, so that more steps than those of a trial are taken once the answer is known.
COMMAND = """\
import os
import pathlib
import sys
import time

import torch

model, kept = torch.nn.Linear(256, 256).cuda(), []
optimizer = torch.optim.SGD(model.parameters())
while True:
    batch = torch.randn(int(sys.argv[1]), 64, 256, device="cuda")
    kept.append(torch.empty_like(batch))
    model(batch).sum().backward()
    optimizer.step()
    if os.environ["OOMDOCTOR_TRIAL_STEPS"] == "8":
        pathlib.Path("begun").touch()
        time.sleep(300)
"""
TARGET = ("--target-batch", "100000")
CARD = ("--gpu", "rtx-4090", "--capacity", "512MiB", "-q")


def test_an_interrupt_after_the_answer_prints_it(tmp_path: Path) -> None:
    """Ctrl-C while memory is recorded: exit code 130, the answer with its plan, and that the rest is missing."""
    (tmp_path / "model.py").write_text(MODEL.format(stuck=RECORDED))
    done = interrupt_once_begun(tmp_path, signal.SIGINT, "probe", "model.py", *CARD)
    assert (done.returncode, done.stderr) == (130, "interrupted\n")
    assert re.search(r"micro-batch \d+ fits; \d+ runs out", done.stdout)
    assert "the probe was interrupted when it had its answer: what it does after" in done.stdout
    assert re.search(r"\d+ trials in ", done.stdout)
    assert "Memory at micro-batch" not in done.stdout


def test_a_polite_end_after_the_answer_writes_it(tmp_path: Path) -> None:
    """SIGTERM, as a time limit sends it: the document has the answer, the status `interrupted`, and no memory."""
    (tmp_path / "model.py").write_text(MODEL.format(stuck=RECORDED))
    done = interrupt_once_begun(tmp_path, signal.SIGTERM, "probe", "model.py", "--json", "-o", "report.json", *CARD)
    assert (done.returncode, done.stdout) == (130, "")
    document = json.loads((tmp_path / "report.json").read_text())
    jsonschema.validate(document, json.loads(SCHEMA.read_text()))
    result = document["result"]
    assert (document["status"], document["exit_code"], result["memory"]) == ("interrupted", 130, None)
    assert result["micro_batch"]["maximum"] >= result["micro_batch"]["recommended"] > 0
    assert result["warnings"][0].startswith("the probe was interrupted")


def test_an_interrupt_of_a_trace_after_the_answer_writes_it(tmp_path: Path) -> None:
    """The trace engine, interrupted while it runs a size once more, writes the answer that it had."""
    (tmp_path / "model.py").write_text(MODEL.format(stuck=AGAIN))
    words = ("probe", "model.py", "--engine", "trace", "--json", "-o", "report.json", *CARD)
    done = interrupt_once_begun(tmp_path, signal.SIGINT, *words)
    assert (done.returncode, done.stdout) == (130, "")
    document = json.loads((tmp_path / "report.json").read_text())
    assert (document["status"], document["exit_code"]) == ("interrupted", 130)
    assert document["result"]["micro_batch"]["maximum"] > 0
    assert document["result"]["warnings"][0].startswith("the probe was interrupted")


def test_an_interrupt_of_the_python_api_has_the_answer(tmp_path: Path) -> None:
    """`oomdoctor.probe` raises a `KeyboardInterrupt` whose `document` has the answer and the status `interrupted`."""
    (tmp_path / "model.py").write_text(MODEL.format(stuck=RECORDED))
    (tmp_path / "caller.py").write_text(CALLER)
    done = interrupt_once_begun(tmp_path, signal.SIGINT, "caller.py", program=[sys.executable])
    assert (done.returncode, done.stderr) == (0, "")
    assert re.fullmatch(r"interrupted \d+\n", done.stdout)


def test_an_interrupt_before_the_answer_tells_what_is_proven(tmp_path: Path) -> None:
    """Nothing is printed or written but the sizes that are known to fit, on standard error."""
    (tmp_path / "model.py").write_text(MODEL.format(stuck="len(batch) > 1000"))
    done = interrupt_once_begun(tmp_path, signal.SIGINT, "probe", "model.py", "--json", "-o", "report.json", *CARD)
    assert (done.returncode, done.stdout) == (130, "")
    assert done.stderr.startswith("interrupted\nproven so far: micro-batch ")
    assert not (tmp_path / "report.json").exists()


def test_an_interrupt_after_the_answer_of_a_command_prints_it(tmp_path: Path) -> None:
    """A command whose memory grows is interrupted in the steps beyond its trials, and what to start is told."""
    (tmp_path / "train.py").write_text(COMMAND)
    command = (sys.executable, "train.py", "{micro_batch}")
    done = interrupt_once_begun(tmp_path, signal.SIGINT, "probe", *TARGET, *CARD, "--", *command)
    assert (done.returncode, done.stderr) == (130, "interrupted\n")
    assert re.search(r"micro-batch (\d+) fits", done.stdout)
    assert "the probe was interrupted when it had its answer: what it does after" in done.stdout
    assert re.search(r"train.py \d+\n", done.stdout)
