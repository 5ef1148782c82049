"""What the engines say of the zoo of models: peaks, and the largest micro-batch on cards of 8 to 80 GiB.

Every case goes to every engine; against the null GPU, which is PyTorch itself, the others' signed errors are published,
misses included. The file is written after every case, and what it has from the same versions is kept, so that a run
that was cut short goes on. Engines may be run one after the other, each in an environment of its own.

Usage: python tests/bench/accuracy.py [--engines null,trace] [--only NAME...] [--anew] [--list] [--table]
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import sys
from pathlib import Path
from typing import Any

from accuracy_summary import TRUTH, summary
from accuracy_table import cases as table_of_cases
from accuracy_table import promises as table_of_promises
from accuracy_trials import answer, definition
from measuring import CAPACITIES_GIB, RESULTS, machine, save
from zoo.cases import CASES, LEFT_OUT, Case

from oomdoctor.engines.installed import find_torch

Row = dict[str, Any]
Rows = dict[str, Row]
FILE = RESULTS / "accuracy.json"


def installed(case: Case) -> dict[str, str | None]:
    """Versions of torch and of what the case is built from."""
    build = find_torch()
    versions = {"torch": build.version if build else None}
    return versions | ({case.needs: _version(case.needs)} if case.needs else {})


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def is_runnable(case: Case) -> bool:
    """Whether what the case is built of is installed."""
    return case.needs is None or _version(case.needs) is not None


def earlier(path: Path) -> Rows:
    """Rows of an earlier run that answer the questions of today."""
    if not path.exists():
        return {}
    today = {case.name: definition(case) for case in CASES}
    rows = json.loads(path.read_text(encoding="utf-8"))["cases"]
    return {row["name"]: row for row in rows if today.get(row["name"]) == _definition_in(row)}


def _definition_in(row: Row) -> Row:
    return {name: value for name, value in row.items() if name != "engines"}


def is_known(case: Case, engine: str, rows: Rows) -> bool:
    """Whether the rows hold what the engine says of the case under the versions that are installed."""
    known = rows.get(case.name, {}).get("engines", {}).get(engine, {})
    return bool(known.get("versions") == installed(case))


def document(rows: Rows) -> Row:
    """All that is published, the cases in the order of the zoo."""
    ordered = [rows[case.name] for case in CASES if case.name in rows]
    engines = sorted({engine for row in ordered for engine in row["engines"]})
    return {
        "machine": machine(),
        "capacities_gib": CAPACITIES_GIB,
        "summary": {engine: summary(ordered, engine) for engine in engines if engine != TRUTH},
        "truth": _truth(ordered),
        "left_out": [{"name": name, "reason": reason} for name, reason in LEFT_OUT.items()],
        "cases": ordered,
    }


def _truth(rows: list[Row]) -> Row:
    """What the null GPU itself answered, and why it does no harm that a step read data back, which is zeros there."""
    asked = [row for row in rows if TRUTH in row["engines"]]
    reading = [row["name"] for row in asked if row["engines"][TRUTH].get("zeros_read")]
    reasons = {case.name: case.reads for case in CASES}
    problems = {row["name"]: row["engines"][TRUTH]["problem"] for row in asked if "problem" in row["engines"][TRUTH]}
    return {
        "engine": TRUTH,
        "cases": len(asked),
        "problems": problems,
        "read_back": {name: reasons[name] for name in reading},
    }


def ask(cases: list[Case], engines: list[str], rows: Rows, path: Path) -> None:
    """Put every case to every engine, as far as the rows do not hold the answer, and save after each."""
    for case in cases:
        for engine in engines:
            if is_known(case, engine, rows):
                continue
            row = rows.setdefault(case.name, definition(case) | {"engines": {}})
            row["engines"][engine] = answer(case, engine) | {"versions": installed(case)}
            print(case.name, engine, row["engines"][engine], flush=True)
            save(path, document(rows))


def chosen(names: list[str] | None) -> list[Case]:
    """The cases of these names, or all.

    Raises:
        SystemExit: There is no case of that name.
    """
    if unknown := set(names or ()) - {case.name for case in CASES}:
        raise SystemExit(f"error: no case is named {', '.join(sorted(unknown))}; `--list` lists them")
    return [case for case in CASES if not names or case.name in names]


def runnable(cases: list[Case]) -> list[Case]:
    """The cases whose models can be built here; what is missing for the others is told."""
    for needed in sorted({str(case.needs) for case in cases if not is_runnable(case)}):
        left = ", ".join(case.name for case in cases if case.needs == needed)
        print(f"`{needed}` is not installed, which leaves out: {left}", file=sys.stderr)
    return [case for case in cases if is_runnable(case)]


def line(case: Case) -> str:
    """A case on one line: its name, what it is, and the card that is played."""
    return f"{case.name:32}{case.precision}  {case.optimizer or '-':10}  {case.gpu:16}{case.target}"


def tables(rows: Rows) -> str:
    """The results as Markdown, for each engine that the null GPU is compared with, or for the null GPU alone."""
    found = document(rows)
    engines = list(found["summary"])
    lines = [line for engine in engines for line in (*table_of_promises(found["summary"][engine]), "")]
    for engine in engines or [TRUTH]:
        lines += [*table_of_cases(found["cases"], engine), ""]
    return "\n".join(lines)


def main() -> int:
    """Run the bench; 1 where the null GPU has no honest answer, or an engine does not keep what is promised."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--engines", type=lambda text: text.split(","), default=["null", "trace"])
    parser.add_argument("--only", nargs="+", metavar="NAME", help="cases by name")
    parser.add_argument("--anew", action="store_true", help="keep no answer of the cases and engines that are asked")
    parser.add_argument("--list", action="store_true", help="print the cases and run none")
    parser.add_argument("--table", action="store_true", help="print the results as Markdown and run none")
    parser.add_argument("--results", type=Path, default=FILE, help="file to go on from and to write")
    arguments = parser.parse_args()

    rows, cases = earlier(arguments.results), chosen(arguments.only)
    if arguments.list or arguments.table:
        print("\n".join(map(line, cases)) if arguments.list else tables(rows))
        return 0
    for case in cases if arguments.anew else ():
        for engine in arguments.engines:
            rows.get(case.name, {}).get("engines", {}).pop(engine, None)
    ask(runnable(cases), arguments.engines, rows, arguments.results)
    save(arguments.results, document(rows))
    return report(document(rows))


def report(found: Row) -> int:
    """Print the summaries; 1 where something is not as promised."""
    for engine, said in found["summary"].items():
        print(engine, *table_of_promises(said), f"no answer: {', '.join(said['unanswered']) or 'none'}", sep="\n")
    print("null GPU:", found["truth"])
    kept = all(promise["holds"] for said in found["summary"].values() for promise in said["promises"])
    honest = not found["truth"]["problems"] and all(found["truth"]["read_back"].values())
    return int(not (kept and honest))


if __name__ == "__main__":
    sys.exit(main())
