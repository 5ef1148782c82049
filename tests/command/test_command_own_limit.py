"""A part of the GPU's memory that a command sets for itself holds in its trials, and lifts no limit of theirs."""

from __future__ import annotations

from pathlib import Path

import pytest
from command_running import PYTHON, answer

MIB = 2**20

pytestmark = pytest.mark.null_gpu

# One MiB a sample, and nothing else to speak of.
_SCRIPT = """
import sys
import torch

torch.cuda.set_per_process_memory_fraction({fraction})
weight = torch.nn.Parameter(torch.zeros(1, device="cuda"))
optimizer = torch.optim.SGD([weight], 0.1)
for step in range(9):
    batch = torch.empty(int(sys.argv[1]), 2**20, dtype=torch.uint8, device="cuda")
    (weight * batch[0, 0]).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    del batch
"""


@pytest.mark.parametrize("fraction", [0.5, 0.98])
def test_the_commands_own_limit_is_the_capacity(tmp_path: Path, fraction: float) -> None:
    """The recommended size leaves its part of that free, in few trials, and the reasons name the call."""
    (tmp_path / "train.py").write_text(_SCRIPT.format(fraction=fraction))
    found = answer(tmp_path, "--capacity", "512MiB", "--", PYTHON, "train.py", "{micro_batch}")
    capacity, answered = int(fraction * found["device"]["total_bytes"]), found["micro_batch"]
    assert found["capacity_bytes"] == capacity
    assert capacity - 6 * MIB <= answered["maximum"] * MIB <= capacity
    assert answered["recommended"] * MIB <= capacity * 0.95
    assert len(found["trials"]) <= 8
    call = f"`torch.cuda.set_per_process_memory_fraction({fraction})` in the target's command allows"
    assert any(call in reason["text"] for reason in found["reasons"])
