"""What asking cuDNN for workspaces adds to a probe, cold and with kept answers, beside a probe that asks nothing.

The three take turns. Figures are processors' seconds of all processes that a probe starts, cuDNN's own included, which
other work on the machine changes least; the least of all rounds counts. What asks nothing is a probe with
`TORCH_CUDNN_V8_API_DISABLED=1`, where PyTorch uses the older interface and workspaces are not counted. A cold probe has
a null GPU that is built and a library that is known to answer, and none of its answers.

Usage: python tests/bench/cudnn_speed.py [ROUNDS]
"""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

from measuring import RESULTS, machine, save

from oomdoctor.engines.installed import find_torch, wheel_version

RESULT: Final = RESULTS / "cudnn_speed.json"
PROBE: Final = (sys.executable, "-m", "oomdoctor", "probe", "resnet50", "--gpu", "rtx-4090", "--quiet", "--json")
AT_MOST: Final = {"cold": 1.15, "kept": 1.03}
_PR_SET_CHILD_SUBREAPER: Final = 36


def probed(cache: Path, **variables: str) -> tuple[float, dict[str, Any]]:
    """Return the processors' seconds and the result of a probe, once all that it started has ended."""
    before = _processor_seconds()
    environment = {**os.environ, "XDG_CACHE_HOME": str(cache), **variables}
    done = subprocess.run(PROBE, env=environment, check=True, capture_output=True, text=True)
    _wait_for_orphans()  # cuDNN's process goes on in a child of its own
    return _processor_seconds() - before, json.loads(done.stdout)["result"]


def _wait_for_orphans() -> None:
    while True:
        try:
            os.wait()
        except ChildProcessError:
            return


def _processor_seconds() -> float:
    used = os.times()
    return used.children_user + used.children_system


def without_answers(cache: Path) -> None:
    """Delete what cuDNN answered; each folder of a driver holds the driver and the answers of a version."""
    for path in (cache / "oomdoctor" / "cudnn").glob("*/[0-9]*"):
        path.unlink()


def measured(cache: Path, rounds: int) -> dict[str, dict[str, Any]]:
    """Return the seconds of each way to ask, and what it found, after all has been built."""
    probed(cache)
    rows: dict[str, dict[str, Any]] = {name: {"seconds": []} for name in ("not asked", "cold", "kept")}
    for _ in range(rounds):
        for name, row in rows.items():
            if name == "cold":
                without_answers(cache)
            variables = {"TORCH_CUDNN_V8_API_DISABLED": "1"} if name == "not asked" else {}
            seconds, result = probed(cache, **variables)
            row["seconds"].append(round(seconds, 2))
            least = result["least_memory"]
            row["trials"] = len(result["trials"])
            row["trials_for_least_memory"] = 0 if least is None else least["trials"]
            row["maximum"] = result["micro_batch"]["maximum"]
            print(name, json.dumps(row), flush=True)
    return rows


def main() -> int:
    """Measure, write the result, and return 1 where a limit is passed."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    with tempfile.TemporaryDirectory() as name:
        rows = measured(Path(name), int(sys.argv[1]) if len(sys.argv) > 1 else 5)
    least = min(rows["not asked"]["seconds"])
    ratios = {name: round(min(rows[name]["seconds"]) / least, 3) for name in AT_MOST}
    build = find_torch()
    version = wheel_version(build, "cudnn") if build else None
    versions = {"torch": build.version if build else None, "cudnn": version and ".".join(map(str, version))}
    save(RESULT, {"machine": machine() | versions, "rows": rows, "ratios": ratios, "at_most": AT_MOST})
    print(json.dumps(ratios))
    return 0 if all(ratios[name] <= limit for name, limit in AT_MOST.items()) else 1


if __name__ == "__main__":
    sys.exit(main())
