"""Where runs are kept that the tests share."""

from __future__ import annotations

from pathlib import Path

import pytest
from sharing import directory_of


@pytest.fixture(scope="session")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory of this run of the suite, the same in each of its processes."""
    return directory_of(tmp_path_factory)
