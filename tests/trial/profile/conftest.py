"""Profiles that the tests share, the processes of a parallel run included."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from profiles import CASES, PLAIN, SETTINGS, Case, Profiled, profile, read, run
from sharing import directory_of, shared


@pytest.fixture(scope="session")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory of this run of the suite, the same in each of its processes."""
    return directory_of(tmp_path_factory)


@pytest.fixture(scope="session")
def profiled(directory: Path) -> Callable[..., Profiled]:
    """What came of a case on some Python; other Pythons than this one profile the plain case alone."""

    @cache
    def answers(python: str) -> dict[Case, Profiled]:
        cases = CASES if python == sys.executable else PLAIN[:2]
        file = directory / f"profiles-{Path(python).parents[1].name}.json"
        found = json.loads(shared(file, lambda: profile(cases, python)))
        return {case: read(found[str(number)]) for number, case in enumerate(cases)}

    return lambda case, python=sys.executable: answers(python)[case]


@pytest.fixture(scope="session")
def random_blocks(directory: Path) -> Callable[[str, str], dict[str, object]]:
    """What came of random allocations under one of the allocator's settings, on some Python."""

    def found(python: str, settings: str) -> dict[str, object]:
        file = directory / f"random-blocks-{Path(python).parents[1].name}.json"
        found: dict[str, dict[str, object]] = json.loads(
            shared(file, lambda: run("random_blocks.py", *SETTINGS, python=python))
        )
        return found[settings]

    return found
