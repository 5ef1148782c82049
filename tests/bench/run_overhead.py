"""What `oomdoctor run` adds to a training step's processor time, measured side by side in interleaved processes.

The GPT-2 example on a null GPU, as an unmodified script: a null GPU does no arithmetic, so a step is nothing but
PyTorch's own work on the host, and what is added shows at its largest. On a real GPU that work goes on beside the
kernels.

Usage: python tests/bench/run_overhead.py [ROUNDS]
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
from pathlib import Path

from measuring import RESULTS, machine, save

from oomdoctor.cli.run import DEFAULT_MAX_ENTRIES
from oomdoctor.engines.choice import choose_engine
from oomdoctor.engines.installed import find_torch

COMMAND = str(Path(sys.executable).parent / "oomdoctor")
GPU = "rtx-4090"

# Warm-up is long enough for the history to be full, which is when an entry costs most.
SCRIPT = """
import os, statistics, time
import torch
from oomdoctor.examples.gpt2 import build_model, make_batch, training_step

model = build_model().cuda()
optimizer = torch.optim.AdamW(model.parameters())
batch = tuple(part.cuda() for part in make_batch(4))

def step():
    started = time.process_time()
    loss = training_step(model, batch)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return time.process_time() - started

for _ in range(40):
    step()
print(statistics.median(step() for _ in range(100)), flush=True)
os._exit(0)  # how long a process takes to end is not measured
"""

# Name, what stands before the script, and the ratio that the README claims to stay below.
WAYS = [
    ("without oomdoctor", [], None),
    ("oomdoctor run --no-history", [COMMAND, "run", "--no-history", "--"], 1.05),
    ("oomdoctor run", [COMMAND, "run", "--"], 1.20),
]


def step_seconds(before: list[str], environment: dict[str, str]) -> float:
    """The median processor time of a step in a process of its own: other work on the machine is not in it."""
    command = [*before, sys.executable, "-c", SCRIPT]
    return float(subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True).stdout)


def measure(rounds: int) -> dict[str, list[float]]:
    """Run the ways in turns, each time in another order, so that a slow moment meets all of them."""
    environment = choose_engine(engine="null", gpu=GPU, device=None, memory_bytes=None, base=os.environ).environment
    found: dict[str, list[float]] = {name: [] for name, _, _ in WAYS}
    for index in range(rounds):
        shift = index % len(WAYS)
        for name, before, _ in (*WAYS[shift:], *WAYS[:shift]):
            found[name].append(step_seconds(before, environment))
        print({name: f"{1000 * values[-1]:.2f} ms" for name, values in found.items()}, flush=True)
    return found


def main() -> int:
    """Run the bench; 1 where a claim does not hold."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 9
    found = measure(rounds)
    plain = found[WAYS[0][0]]
    rows = []
    for name, _, below in WAYS:
        ratios = [ours / theirs for ours, theirs in zip(found[name], plain, strict=True)]
        median = 1000 * statistics.median(found[name])
        rows.append(
            {"way": name, "below": below, "step_milliseconds": round(median, 2),
             "ratio": round(statistics.median(ratios), 3), "ratios": [round(ratio, 3) for ratio in ratios]}
        )  # fmt: skip
        print(rows[-1], flush=True)
    build = find_torch()
    about = {"torch": build.version if build else None, "gpu": f"null GPU as {GPU}", "max_entries": DEFAULT_MAX_ENTRIES}
    save(RESULTS / "run_overhead.json", {"machine": machine() | about, "rounds": rounds, "ways": rows})
    return int(any(row["below"] is not None and float(str(row["ratio"])) >= row["below"] for row in rows))


if __name__ == "__main__":
    sys.exit(main())
