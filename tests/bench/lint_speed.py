"""Lines a second that the whole of lint takes in on one core, and the memory that it needs.

Usage: python tests/bench/lint_speed.py [--rounds N] [FOLDER...]

Each folder is an installed project (`pip install --no-deps --target FOLDER PROJECT`); without any it is PyTorch's own
package. Only lines of files that are linted count: files that have nothing to do with torch are passed over quickly.
Each round is a process of its own on one core, so that start-up counts and the peak of memory is that project's.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from typing import TYPE_CHECKING, Final

from lint_projects import installed
from measuring import RESULTS, machine, save

if TYPE_CHECKING:
    from lint_projects import InstalledProject

ABOVE_LINES: Final = 40_000
BELOW_MEGABYTES: Final = 300

LINT: Final = """
import json, resource, sys, time
from pathlib import Path
from oomdoctor.lint.engine import lint
from oomdoctor.lint.settings import LintSettings
result = lint(sys.argv[1:], LintSettings(root=Path(sys.argv[1]))).result
print(json.dumps({
    "files": result.files,
    "skipped_files": result.skipped_files,
    "unreadable": len(result.unreadable),
    "lines": result.lines,
    "rules": len(result.rules),
    "seconds": time.process_time(),
    "megabytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
}))
"""


def measure(project: InstalledProject, rounds: int) -> dict[str, object]:
    """Lint one project some times over; seconds are of the processor, since a shared machine's clock counts others."""
    runs = []
    for _ in range(rounds):
        command = [sys.executable, "-c", LINT, project.folder]
        runs.append(json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout))
    seconds = statistics.median(run["seconds"] for run in runs)
    return {
        "project": project.name,
        "version": project.version,
        **{key: runs[0][key] for key in ("files", "skipped_files", "unreadable", "lines", "rules")},
        "seconds": round(seconds, 2),
        "lines_per_second": round(runs[0]["lines"] / seconds),
        "peak_megabytes": round(max(run["megabytes"] for run in runs)),
    }


def main() -> int:
    """Run the bench; 1 where a claim does not hold."""
    arguments = sys.argv[1:]
    rounds = int(arguments[1]) if arguments[:1] == ["--rounds"] else 3
    rows = []
    for project in installed(arguments[2:] if arguments[:1] == ["--rounds"] else arguments):
        rows.append(measure(project, rounds))
        print(rows[-1], flush=True)
    lines, seconds = (sum(float(str(row[key])) for row in rows) for key in ("lines", "seconds"))
    whole = {
        "lines": int(lines),
        "seconds": round(seconds, 2),
        "lines_per_second": round(lines / seconds),
        "peak_megabytes": max(int(str(row["peak_megabytes"])) for row in rows),
    }
    print(whole)
    claims = {"lines_per_second_above": ABOVE_LINES, "peak_megabytes_below": BELOW_MEGABYTES}
    document = {"machine": machine(), "rounds": rounds, "claims": claims, "whole": whole, "projects": rows}
    save(RESULTS / "lint_speed.json", document)
    return int(whole["lines_per_second"] < ABOVE_LINES or whole["peak_megabytes"] >= BELOW_MEGABYTES)


if __name__ == "__main__":
    sys.exit(main())
