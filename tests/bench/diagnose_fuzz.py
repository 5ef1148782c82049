"""Inputs that nobody meant, by the ten thousands: no crash, no hang, bounded memory.

Usage: python tests/bench/diagnose_fuzz.py [INPUTS]
"""

from __future__ import annotations

import io
import multiprocessing
import os
import resource
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "diagnose"))

from measuring import RESULTS, machine, save
from mutating import mutated

from oomdoctor.cli.diagnose import document_of
from oomdoctor.diagnose.diagnose import diagnose
from oomdoctor.diagnose.sources import sources
from oomdoctor.errors import UsageError
from oomdoctor.results.saved import to_json

INPUTS = 100_000
LIMIT_BYTES = 200 * 10**6
LIMIT_SECONDS = 2.0


def run(numbers: range) -> dict[str, object]:
    """Diagnose these inputs; a crash ends the bench with its number."""
    slowest, refused, found = (0.0, -1), 0, 0
    for number in numbers:
        started = time.perf_counter()
        try:
            result = diagnose(sources(["-"], io.BytesIO(mutated(number))))
            to_json(document_of(result))
            found += result.is_oom
        except UsageError:
            refused += 1
        except Exception as error:
            message = f"input {number} crashed"
            raise RuntimeError(message) from error
        slowest = max(slowest, (time.perf_counter() - started, number))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {"peak_rss_bytes": peak, "slowest": slowest, "refused": refused, "out_of_memory": found}


def main() -> int:
    """Run the bench; 1 where a limit does not hold."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else INPUTS
    workers = os.cpu_count() or 1
    with multiprocessing.get_context("spawn").Pool(workers) as pool:
        parts = pool.map(run, [range(start, count, workers) for start in range(workers)])
    seconds, number = max(part["slowest"] for part in parts)  # type: ignore[type-var]
    row = {
        "inputs": count,
        "crashes": 0,
        "refused": sum(int(str(part["refused"])) for part in parts),
        "out_of_memory": sum(int(str(part["out_of_memory"])) for part in parts),
        "slowest_seconds": round(seconds, 3),
        "slowest_input": number,
        "peak_rss_bytes": max(int(str(part["peak_rss_bytes"])) for part in parts),
    }
    print(row)
    save(RESULTS / "diagnose_fuzz.json", {"machine": machine(), **row})
    return int(int(str(row["peak_rss_bytes"])) > LIMIT_BYTES or seconds > LIMIT_SECONDS)


if __name__ == "__main__":
    sys.exit(main())
