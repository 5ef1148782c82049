"""Names that both sides of the plugin use, the session that people start and the one on a null GPU."""

from __future__ import annotations

from typing import Final

import pytest

IN_CHILD: Final = pytest.StashKey[bool]()
"""In the configuration of a session on a null GPU."""

PEAK: Final = "gpu_memory_peak_bytes"
LIMIT: Final = "gpu_memory_limit_bytes"
DEVICE: Final = "gpu_memory_device"
"""Names of what is measured among a report's `user_properties`, which JUnit files show too."""


class GpuMemoryWarning(pytest.PytestWarning):
    """A test asks for a limit and cannot be held to it."""


def key_of(item: pytest.Item) -> str:
    """A name of a test that is the same in both sessions; xdist adds groups to `nodeid`."""
    return item.nodeid if item.parent is None else f"{item.parent.nodeid}::{item.name}"
