"""What lint finds in well-known projects, against what was judged by hand: true and false findings a rule.

Usage: python tests/bench/lint_precision.py FOLDER...

Each folder is an installed project (`pip install --no-deps --target FOLDER PROJECT`). Every finding has to be in
`lint_judgements.toml`, by project, path, rule and the text of its line; one that nobody has judged is printed and fails
the bench, as a false one does.
"""

from __future__ import annotations

import os
import sys
import tomllib
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from lint_projects import installed
from measuring import RESULTS, machine, save

from oomdoctor.lint.engine import lint
from oomdoctor.lint.rules import ALL
from oomdoctor.lint.settings import LintSettings

if TYPE_CHECKING:
    from lint_projects import InstalledProject

    from oomdoctor.results import Finding

JUDGEMENTS: Final = Path(__file__).parent / "lint_judgements.toml"
VERDICTS: Final = ("true", "false", "doubtful")
NOBODYS: Final = "not judged"

Key = tuple[str, str, str, str]


@dataclass(frozen=True, slots=True)
class Judgement:
    """What a reader of the code said of a finding.

    Attributes:
        verdict: One of `VERDICTS`.
        reason: Why.
    """

    verdict: str
    reason: str


def judgements() -> dict[Key, Judgement]:
    """The table, by project, path, code and text of the line."""
    rows = tomllib.loads(JUDGEMENTS.read_text(encoding="utf-8"))["judged"]
    table = {
        (row["project"], row["path"], row["code"], row["text"]): Judgement(row["verdict"], row["reason"])
        for row in rows
    }
    assert all(judged.verdict in VERDICTS and judged.reason for judged in table.values())
    return table


def findings(project: InstalledProject) -> tuple[tuple[Finding, ...], dict[str, object]]:
    """What lint says of a project, with paths relative to it, and what was looked at."""
    here = Path.cwd()
    os.chdir(project.folder)
    try:
        result = lint(["."], LintSettings(root=Path.cwd())).result
    finally:
        os.chdir(here)
    looked_at = {"files": result.files, "lines": result.lines, "unreadable": len(result.unreadable)}
    return result.findings, {"project": project.name, "version": project.version, **looked_at}


def judge(
    project: InstalledProject, found: tuple[Finding, ...], table: dict[Key, Judgement]
) -> Counter[tuple[str, str]]:
    """How often each rule got each verdict; what is not right is printed."""
    counts: Counter[tuple[str, str]] = Counter()
    for one in found:
        judged = table.get((project.name, one.path, one.code, one.source.strip()))
        verdict = NOBODYS if judged is None else judged.verdict
        counts[one.code, verdict] += 1
        if verdict != "true":
            print(f"{verdict}: {project.name} {one.path}:{one.line} {one.code} {one.severity} {one.source.strip()!r}")
    return counts


def main() -> int:
    """Run the bench; 1 where a finding is false or was judged by nobody."""
    table = judgements()
    rows: list[dict[str, object]] = []
    whole: Counter[tuple[str, str]] = Counter()
    for project in installed(sys.argv[1:]):
        found, row = findings(project)
        counts = judge(project, found, table)
        whole.update(counts)
        rows.append({**row, "findings": _nested(counts)})
        print(rows[-1], flush=True)
    document = {
        "machine": machine(),
        "projects": rows,
        "rules": {rule.code: {"name": rule.name, **_nested(whole).get(rule.code, {})} for rule in ALL if rule.default},
        "verdicts": _by_verdict(whole),
    }
    print(document["verdicts"])
    save(RESULTS / "lint_precision.json", document)
    return int(any(verdict in {NOBODYS, "false"} for _, verdict in whole))


def _nested(counts: Counter[tuple[str, str]]) -> dict[str, dict[str, int]]:
    nested: dict[str, dict[str, int]] = {}
    for (code, verdict), count in sorted(counts.items()):
        nested.setdefault(code, {})[verdict] = count
    return nested


def _by_verdict(counts: Counter[tuple[str, str]]) -> dict[str, int]:
    verdicts = dict.fromkeys(VERDICTS, 0)
    for (_, verdict), count in counts.items():
        verdicts[verdict] = verdicts.get(verdict, 0) + count
    return verdicts


if __name__ == "__main__":
    sys.exit(main())
