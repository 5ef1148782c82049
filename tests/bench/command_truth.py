"""The largest micro-batch of the scripts in tests/command/scripts, by their own runs and by the probe.

By hand nothing of a probe runs in the scripts' processes: each run is the script itself on a null GPU that knows what
the host has made, as under `oomdoctor run`; it ends by itself after three optimizer steps or in PyTorch's
OutOfMemoryError. The probe is the installed command, and the contract's probe of the same model stands beside.

Usage: python tests/bench/command_truth.py [--probes] [SCRIPT ...]

`--probes` asks the probe alone and keeps what was found by hand.
"""

from __future__ import annotations

import importlib.metadata
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from measuring import RESULTS, machine, save

sys.path.insert(0, str(Path(__file__).parents[1] / "command"))

from truth import FRAMEWORKS, OTHERS, SCRIPTS, TARGET_BATCH, Script, fits, largest, null_environment, peaks

COMMAND = str(Path(sys.executable).parent / "oomdoctor")
CONTRACT = ("--precision", "bf16", str(SCRIPTS / "gpt2_contract.py"))
CARDS = ("rtx-4090", "rtx-3060-12gb")
PEAK_SIZES = (2, 4)
PACKAGES = ("torch", "transformers", "accelerate", "lightning", "hydra-core")
FILE = RESULTS / "command_truth.json"

Row = dict[str, Any]


def by_hand(script: Script, gpu: str) -> Row:
    """The script's largest micro-batch on a card by bisection, what it took to find it, and what it overlooked."""
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
        "bisection": maximum,
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


def probed(words: Sequence[str], gpu: str) -> Row:
    """What the installed command answers; its first trial starts from nothing, the others are forked."""
    options = ["--target-batch", str(TARGET_BATCH), "--gpu", gpu, "--json", "--quiet"]
    started, before = time.perf_counter(), _cpu_seconds()
    with tempfile.TemporaryDirectory() as directory:
        printed = subprocess.run(
            [COMMAND, "probe", *options, *words], cwd=directory, check=True, stdout=subprocess.PIPE, text=True
        ).stdout
    seconds, cpu_seconds = time.perf_counter() - started, _cpu_seconds() - before
    result = json.loads(printed)["result"]
    kept = ("micro_batch", "outcome", "seconds", "allowed_bytes", "peak_allocated_bytes", "peak_reserved_bytes")
    return {
        "probed": result["micro_batch"]["maximum"],
        "trials": [{name: trial[name] for name in kept} for trial in result["trials"]],
        "probe_seconds": round(seconds, 1),
        "probe_cpu_seconds": round(cpu_seconds, 1),
        "trial_seconds_first": round(result["trials"][0]["seconds"], 2),
        "trial_seconds_forked": round(statistics.median(trial["seconds"] for trial in result["trials"][1:]), 2),
    }


def contract(gpu: str) -> Row:
    """The same of the contract, whose trials share a process instead of being forked."""
    return {name: value for name, value in probed(CONTRACT, gpu).items() if not name.startswith("trial_")}


def row(script: Script, known: Row, *, probes_alone: bool) -> Row:
    """All that is measured of one script, by hand and by the probe."""
    environment = null_environment(CARDS[0])
    found = known
    if not probes_alone:
        sizes = {str(size): peaks(script, size, environment) for size in PEAK_SIZES}
        found = {"script": script.name, "peaks": sizes, "cards": {gpu: by_hand(script, gpu) for gpu in CARDS}}
    for gpu, card in found["cards"].items():
        card.update(probed(["--", *script.template()], gpu))
        print(script.name, gpu, {name: value for name, value in card.items() if name != "trials"}, flush=True)
    return found


def main() -> int:
    """Run the bench, of all scripts or of those that are named; 1 where the probe contradicts a run by hand."""
    names = [word for word in sys.argv[1:] if word != "--probes"]
    known = (
        {row["script"]: row for row in json.loads(FILE.read_text(encoding="utf-8"))["scripts"]} if FILE.exists() else {}
    )
    rows = dict(known)
    document: Row = {"target_batch": TARGET_BATCH, "contract": {gpu: contract(gpu) for gpu in CARDS}}
    for script in (*FRAMEWORKS, *OTHERS):
        if not names or script.name in names:
            rows[script.name] = row(script, known.get(script.name, {}), probes_alone="--probes" in sys.argv)
            versions = {name: importlib.metadata.version(name) for name in PACKAGES}
            save(FILE, {"machine": machine() | versions, **document, "scripts": list(rows.values())})
    return int(any(contradicts(card) for row in rows.values() for card in row["cards"].values()))


def contradicts(card: Row) -> bool:
    """Whether the probe's answer did not fit by hand, or the next size did."""
    tried, answer = card["tried"], card["probed"]
    return not tried.get(str(answer)) or bool(tried.get(str(answer + 1)))


if __name__ == "__main__":
    sys.exit(main())
