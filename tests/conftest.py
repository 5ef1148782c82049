"""What every test shares: a calm environment, and ways to run the real command."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
_LOUD = ("FORCE_COLOR", "NO_COLOR", "GITHUB_ACTIONS", "PY_COLORS", "CUDA_VISIBLE_DEVICES", "PYTORCH_CUDA_ALLOC_CONF")

INVOCATIONS = {
    "oomdoctor": [str(Path(sys.executable).parent / "oomdoctor")],
    "python -m oomdoctor": [sys.executable, "-m", "oomdoctor"],
}

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(autouse=True)
def _calm_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """No colour, 80 columns, nothing of the developer's own settings."""
    for name in [*_LOUD, *(name for name in os.environ if name.startswith("OOMDOCTOR_") and "TEST" not in name)]:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setenv("COLUMNS", "80")


def run_command(
    arguments: Sequence[str],
    *,
    cwd: Path | None = None,
    invocation: str = "python -m oomdoctor",
    timeout: float = 120,
    **environment: str,
) -> subprocess.CompletedProcess[str]:
    """Run oomdoctor as a user would, in a process of its own."""
    return subprocess.run(
        [*INVOCATIONS[invocation], *arguments],
        cwd=cwd,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
        stdin=subprocess.DEVNULL,
    )


@pytest.fixture
def oomdoctor(tmp_path: Path) -> Run:
    """Run oomdoctor in an empty directory."""

    def run(*arguments: str, **options: str) -> subprocess.CompletedProcess[str]:
        return run_command(arguments, cwd=tmp_path, **options)

    return run


@pytest.fixture
def null_environment() -> Callable[[int], dict[str, str]]:
    """A worker's environment with a null GPU of so many bytes."""
    from oomdoctor.devices.choice import choose_engine

    def environment(memory_bytes: int) -> dict[str, str]:
        engine = choose_engine(engine="null", gpu=None, device=None, memory_bytes=memory_bytes, base=os.environ)
        return engine.environment

    return environment
