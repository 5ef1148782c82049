"""Runs pytest as a user would, in a folder with test files, and reads what it says."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent

import pytest
from sharing import directory_of, shared

_DROPPED = ("PYTEST_", "COV_", "GITHUB_", "FORCE_COLOR", "NO_COLOR", "LD_PRELOAD", "OOMDOCTOR_", "CUDA_VISIBLE_DEVICES")


@dataclass(frozen=True)
class PytestRun:
    """How a run of pytest ended.

    Attributes:
        code: Its exit code.
        output: What it printed, on either stream.
        cases: What its JUnit file says, by the test's name; empty where it wrote none.
    """

    code: int
    output: str
    cases: Mapping[str, ET.Element]

    def outcome(self, name: str) -> str:
        """`passed`, `failure`, `error` or `skipped`."""
        found = [child.tag for child in self.cases[name] if child.tag in {"failure", "error", "skipped"}]
        return found[0] if found else "passed"

    def text(self, name: str) -> str:
        """What the report of a test says that did not pass."""
        return "".join(child.text or "" for child in self.cases[name] if child.tag in {"failure", "error", "skipped"})

    def properties(self, name: str) -> dict[str, str]:
        """What a test recorded."""
        return {found.attrib["name"]: found.attrib["value"] for found in self.cases[name].iter("property")}

    def section(self, title: str) -> str:
        """What was printed below a heading of equals signs."""
        lines = self.output.splitlines()
        start = next(index for index, line in enumerate(lines) if line.startswith("=") and f" {title} " in line)
        rest = lines[start + 1 :]
        return "\n".join(rest[: next(index for index, line in enumerate(rest) if line.startswith("=="))])


def run_pytest(folder: Path, *arguments: str, environment: Mapping[str, str] | None = None) -> PytestRun:
    """Run pytest in a folder, with a JUnit file."""
    base = {name: value for name, value in os.environ.items() if not name.startswith(_DROPPED)}
    junit = folder / "junit.xml"
    finished = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", f"--junitxml={junit}", *arguments],
        cwd=folder,
        env={**base, "COLUMNS": "200", **(environment or {})},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        text=True,
        timeout=240,
        check=False,
    )
    return PytestRun(finished.returncode, finished.stdout, _cases(junit))


def run_once(
    factory: pytest.TempPathFactory,
    name: str,
    files: Mapping[str, str],
    *arguments: str,
    environment: Mapping[str, str] | None = None,
) -> PytestRun:
    """Run pytest on files once, also where several workers of xdist want the result."""
    folder = directory_of(factory) / name

    def make() -> str:
        folder.mkdir()
        run = run_pytest(write_files(folder, **files), *arguments, environment=environment)
        return json.dumps([run.code, run.output])

    code, output = json.loads(shared(folder.with_suffix(".json"), make))
    return PytestRun(code, output, _cases(folder / "junit.xml"))


def _cases(junit: Path) -> dict[str, ET.Element]:
    if not junit.exists():
        return {}
    return {case.get("name", ""): case for case in ET.parse(junit).iter("testcase")}  # noqa: S314 - our own file


def write_files(folder: Path, **files: str) -> Path:
    """Write Python files, by their names without the ending, and `pytest_ini`."""
    for name, text in files.items():
        path = folder / ("pytest.ini" if name == "pytest_ini" else f"{name}.py")
        path.write_text(dedent(text), encoding="utf-8")
    return folder
