"""Time of a verdict on a model of ten million parameters, beside that of its plain training steps.

    .venv/bin/python tests/bench/verify_speed.py

Both run on two threads and in double precision. A verdict takes some thirty forward and backward passes of the batch or
its parts, and starts a process that imports torch; the limit in seconds is for two cores that do nothing else. The
ratio is of processors' seconds, which other work on the machine changes least.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

RESULT = Path(__file__).parent / "results" / "verify_speed.json"
LIMIT_SECONDS = 30.0
BATCHES = 14
MODEL = """\
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(8000, 320)
        layer = nn.TransformerEncoderLayer(320, 5, 1280, dropout=0.1, batch_first=True)
        self.blocks, self.output = nn.TransformerEncoder(layer, 4), nn.Linear(320, 8000)

    def forward(self, tokens):
        return self.output(self.blocks(self.words(tokens)))

def build_model():
    return Net()

def make_batch(batch_size):
    tokens = torch.randint(8000, (batch_size, 32))
    return tokens, tokens.roll(-1, 1)

def training_step(model, batch):
    return nn.functional.cross_entropy(model(batch[0]).flatten(0, 1), batch[1].flatten())
"""
PLAIN = f"""\
import torch
torch.set_default_dtype(torch.float64)
from model import build_model, make_batch, training_step
model, batch = build_model(), make_batch(8)
print(sum(parameter.numel() for parameter in model.parameters()))
for _ in range({BATCHES}):
    training_step(model, batch).backward()
"""


def _timed(command: list[str], directory: Path) -> tuple[float, float, str]:
    """Return the seconds, the processors' seconds, and the output of a program."""
    environment = {**os.environ, "OMP_NUM_THREADS": "2", "CUDA_VISIBLE_DEVICES": ""}
    begin, before = time.perf_counter(), _cpu_seconds()
    done = subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True, check=True)
    return time.perf_counter() - begin, _cpu_seconds() - before, done.stdout


def _cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> int:
    """Measure both, write the result, and return 1 where the limit is passed."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        (directory / "model.py").write_text(MODEL, encoding="utf-8")
        verdict_seconds, verdict_cpu, shown = _timed(
            [sys.executable, "-m", "oomdoctor", "verify", "model.py", "--json"], directory
        )
        plain_seconds, plain_cpu, parameters = _timed([sys.executable, "-c", PLAIN], directory)
    result = {
        "parameters": int(parameters),
        "verdict": json.loads(shown)["result"]["verdict"],
        "verdict_seconds": round(verdict_seconds, 1),
        "verdict_cpu_seconds": round(verdict_cpu, 1),
        "plain_batches": BATCHES,
        "plain_seconds": round(plain_seconds, 1),
        "plain_cpu_seconds": round(plain_cpu, 1),
        "ratio": round(verdict_cpu / plain_cpu, 2),
        "limit_seconds": LIMIT_SECONDS,
        "load": round(os.getloadavg()[0], 1),
    }
    RESULT.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(result, indent=1))
    return 0 if verdict_seconds < LIMIT_SECONDS else 1


if __name__ == "__main__":
    sys.exit(main())
