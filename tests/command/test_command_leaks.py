"""Memory that a command keeps from step to step is never an answer in silence."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from command_running import BATCH, PYTHON, answer, small_copy

pytestmark = pytest.mark.null_gpu

# What is kept of each step is 512 KiB or 1 MiB a sample.
_SCRIPT = """
import argparse
from collections import deque
import torch
from tiny import build_model, loss_of, make_batch

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int)
size = parser.parse_args().batch_size


class Trainer:
    def __init__(self):
        self.model = build_model().cuda()
        self.optimizer = torch.optim.AdamW(self.model.parameters())
        self.outputs = {kept}

    def step(self):
        loss_of(self.model, make_batch(size)).backward()
        self.optimizer.step()
        self.optimizer.zero_grad()


def main():
    trainer, kept = Trainer(), {kept}
    while True:
        trainer.step()
        {after}


main()
"""


def _probed(tmp_path: Path, after: str, kept: str = "[]") -> dict[str, Any]:
    directory = small_copy(tmp_path)
    (directory / "keeps.py").write_text(_SCRIPT.format(after=after, kept=kept))
    return answer(directory, "--target-batch", "16", "--", PYTHON, "keeps.py", *BATCH)


def test_a_leak_of_a_command_is_reported(tmp_path: Path) -> None:
    """Bytes a step, what holds them, and the step in which the answer runs out; the answer is that of plain steps."""
    found = _probed(tmp_path, "trainer.outputs.append(torch.empty(size << 19, dtype=torch.uint8, device='cuda'))")
    maximum = found["micro_batch"]["maximum"]
    leaked = re.fullmatch(
        rf"a leak: micro-batch {maximum} keeps ([\d.]+) MiB more with each optimizer step, and runs out of "
        rf"memory in step (\d+)( at the latest)?; `Trainer.outputs` \(keeps.py:28\) holds it",
        found["warnings"][0],
    )
    assert leaked, found["warnings"]
    assert float(leaked[1]) == pytest.approx(maximum / 2, rel=0.02)
    assert int(leaked[2]) > 3
    assert not any("last step" in warning for warning in found["warnings"])


def test_growth_of_a_command_that_ends_raises_the_peak(tmp_path: Path) -> None:
    """A queue of 20 outputs is full after some steps, and the answer is what fits then."""
    made = "torch.empty(size << 20, dtype=torch.uint8, device='cuda')"
    found = _probed(tmp_path, f"kept.append({made})", "deque(maxlen=20)")
    assert found["warnings"][0].startswith("growth ends in optimizer step 2")
    peaks = {trial["micro_batch"]: trial["peak_allocated_bytes"] for trial in found["trials"]}
    assert peaks[found["micro_batch"]["maximum"]] >= 20 * found["micro_batch"]["maximum"] << 20
