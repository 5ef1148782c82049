"""Ways to run Pythons with the agent in them."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

from running import python_path

from oomdoctor.run.environment import AGENT_DIRECTORY

SCENARIOS = Path(__file__).with_name("scenarios.py")


def agent_environment(directory: Path, base: Mapping[str, str] = os.environ, **more: str) -> dict[str, str]:
    """What `oomdoctor run` adds to an environment, and `more`."""
    return {
        **base,
        "PYTHONPATH": python_path(AGENT_DIRECTORY),
        "OOMDOCTOR_RUN_DIRECTORY": str(directory),
        "OOMDOCTOR_RUN_MAX_ENTRIES": "1000",
        "PYTHONDONTWRITEBYTECODE": "1",
        **more,
    }


def run_python(
    arguments: list[str], environment: dict[str, str], *, cwd: Path | None = None, timeout: float = 120
) -> subprocess.CompletedProcess[str]:
    """Run a program with that environment."""
    return subprocess.run(
        arguments, env=environment, cwd=cwd, capture_output=True, text=True, timeout=timeout, check=False
    )


def read_reports(directory: Path) -> dict[int, dict]:
    """The reports in a directory by process id."""
    found = [json.loads(path.read_text(encoding="utf-8")) for path in directory.glob("rank*-*/report.json")]
    return {report["pid"]: report for report in found}
