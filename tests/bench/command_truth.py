"""The largest micro-batch of the scripts in tests/command/scripts, by their own runs, and their peaks.

Nothing of oomdoctor runs in the scripts' processes: each run is the script itself on a null GPU, which ends by itself
after three optimizer steps or in PyTorch's OutOfMemoryError. The contract's probe of the same model stands beside.

Usage: python tests/bench/command_truth.py [SCRIPT ...]
"""

from __future__ import annotations

import importlib.metadata
import json
import resource
import subprocess
import sys
import time
from pathlib import Path

from measuring import RESULTS, machine, save

sys.path.insert(0, str(Path(__file__).parents[1] / "command"))

from truth import FRAMEWORKS, OTHERS, SCRIPTS, TARGET_BATCH, Script, fits, largest, null_environment, peaks

COMMAND = str(Path(sys.executable).parent / "oomdoctor")
CARDS = ("rtx-4090", "rtx-3060-12gb")
PEAK_SIZES = (2, 4)
PACKAGES = ("torch", "transformers", "accelerate", "lightning", "hydra-core")
FILE = RESULTS / "command_truth.json"


def bisection(script: Script, gpu: str) -> dict[str, object]:
    """The script's largest micro-batch on a card, and what it took to find it."""
    environment = null_environment(gpu)
    tried: dict[int, bool] = {}

    def fits_at(size: int) -> bool:
        if size not in tried:
            tried[size] = fits(script, size, environment)
        return tried[size]

    started, before = time.perf_counter(), _cpu_seconds()
    maximum, runs = largest(fits_at), len(tried)
    seconds, cpu_seconds = time.perf_counter() - started, _cpu_seconds() - before
    for size in range(maximum + 1, max(tried)):  # memory need not grow with the batch, and bisection takes it to
        fits_at(size)
    return {
        "gpu": gpu,
        "maximum": maximum,
        "larger_that_fit": [size for size in sorted(tried) if size > maximum and tried[size]],
        "tried": {str(size): tried[size] for size in sorted(tried)},
        "runs": runs,
        "seconds": round(seconds, 1),
        "cpu_seconds": round(cpu_seconds, 1),
    }


def _cpu_seconds() -> float:
    """Processor time of all that was started and has ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def row(script: Script) -> dict[str, object]:
    """All that is measured of one script."""
    environment = null_environment(CARDS[0])
    return {
        "script": script.name,
        "peaks": {str(size): peaks(script, size, environment) for size in PEAK_SIZES},
        "cards": [bisection(script, gpu) for gpu in CARDS],
    }


def contract(gpu: str) -> dict[str, object]:
    """What the contract's probe of the same model says."""
    target = str(SCRIPTS / "gpt2_contract.py")
    command = [COMMAND, "probe", target, "--target-batch", str(TARGET_BATCH), "--precision", "bf16", "--gpu", gpu]
    started = time.perf_counter()
    printed = subprocess.run([*command, "--json", "--quiet"], check=True, capture_output=True, text=True).stdout
    result = json.loads(printed)["result"]
    return {
        "gpu": gpu,
        "maximum": result["micro_batch"]["maximum"],
        "trials": [
            {name: trial[name] for name in ("micro_batch", "outcome", "peak_allocated_bytes", "peak_reserved_bytes")}
            for trial in result["trials"]
        ],
        "seconds": round(time.perf_counter() - started, 1),
    }


def main() -> int:
    """Run the bench: all scripts, or those that are named."""
    names = sys.argv[1:]
    before = json.loads(FILE.read_text(encoding="utf-8"))["scripts"] if names else []
    versions = {name: importlib.metadata.version(name) for name in PACKAGES}
    rows = [known for known in before if known["script"] not in names]
    document = {"machine": machine() | versions, "target_batch": TARGET_BATCH, "scripts": rows}
    document["contract"] = [contract(gpu) for gpu in CARDS]
    for script in (*FRAMEWORKS, *OTHERS):
        if not names or script.name in names:
            rows.append(row(script))
            print(rows[-1], flush=True)
            save(FILE, document)
    return 0


if __name__ == "__main__":
    sys.exit(main())
