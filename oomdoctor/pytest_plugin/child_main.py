"""Starts the pytest session on a null GPU: the script that its process runs.

pytest marks plugins for rewriting before it loads them, and warns of one that is imported already, which `-W error`
makes an error. So pytest starts first here, and oomdoctor is imported when pytest has got that far.
"""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Generator

    import pytest


def main() -> int:
    """Run the session; the command line has the descriptors of its start, its requests and its answers."""
    start_fd, requests_fd, answers_fd = map(int, sys.argv[1:])
    with os.fdopen(start_fd, encoding="utf-8") as file:
        start = json.load(file)
    sys.path[:], sys.argv[:] = start["path"], start["argv"]
    import pytest  # noqa: PLC0415 - from where the session that people started has it

    return int(pytest.main(start["arguments"], plugins=[_late_plugin(start, requests_fd, answers_fd)]))


def _late_plugin(start: dict[str, Any], requests_fd: int, answers_fd: int) -> object:
    import pytest  # noqa: PLC0415 - see above

    class Late:
        """Before any other plugin's `pytest_load_initial_conftests`, with which pytest-cov starts."""

        @pytest.hookimpl(wrapper=True, tryfirst=True)
        def pytest_load_initial_conftests(self, early_config: pytest.Config) -> Generator[None, object, object]:
            from oomdoctor.pytest_plugin.child_session import serve  # noqa: PLC0415 - see the module
            from oomdoctor.trial.process import WorkerChannel  # noqa: PLC0415 - see the module

            serve(early_config, start, WorkerChannel(requests_fd, answers_fd))
            return (yield)

    return Late()


if __name__ == "__main__":
    sys.exit(main())
