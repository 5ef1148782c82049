"""An executor with the interface of `concurrent.futures`, whose calls are tasks in a Ray cluster."""

from __future__ import annotations

import os
import socket
from concurrent.futures import Executor
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from oomdoctor.errors import UsageError
from oomdoctor.integrations import need
from oomdoctor.multi_card.pool import PooledProbe
from oomdoctor.request import ProbeRequest

need("ray", "ray")

import ray  # noqa: E402
from ray.exceptions import RuntimeEnvSetupError  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future

_OWN_DIRECTORY: Final = Path()
_LONGEST_CONNECT_SECONDS: Final = 10
_ADDRESS_HINT: Final = "`ray start --head` prints the address of a cluster; unset it to start Ray on this machine"
_MOST_RETRIES: Final = 3
"""Nodes that a task may lose; more is the task's own doing."""


class RayExecutor(Executor):
    """Runs calls on the cluster that Ray finds, a core each; without one on this machine.

    Files travel to the nodes as the `working_dir` of Ray's runtime environment. A program that has started Ray itself
    keeps its own: where its job has no `working_dir`, each node needs the files at the same place.

    Args:
        directory: Directory with the files of the cases.

    Raises:
        UsageError: No Ray is where `RAY_ADDRESS` says, or the directory is too large to travel.
    """

    def __init__(self, directory: Path) -> None:
        self._is_own = not ray.is_initialized()
        if self._is_own:
            _start_ray(directory)
        self._travels = bool(ray.get_runtime_context().runtime_env.get("working_dir"))
        self._tasks: list[Any] = []

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:  # noqa: ANN401 - as its base
        """Begin a call on some node, and again on another where that one dies; a case's files are those of the node."""
        moved = [_moved(one, _OWN_DIRECTORY) if self._travels else one for one in args]
        self._tasks.append(_TASK.remote(fn, moved, kwargs))
        future: Future[Any] = self._tasks[-1].future()
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:  # noqa: FBT001, FBT002 - its base's
        """End the tasks that are left, and Ray where it was started here."""
        del wait, cancel_futures
        for task in self._tasks:
            ray.cancel(task, force=True)
        if self._is_own:
            ray.shutdown()


def _start_ray(directory: Path) -> None:
    """Connect to a cluster, or start Ray on this machine.

    Raises:
        UsageError: As `RayExecutor`.
    """
    _check_address(os.environ.get("RAY_ADDRESS", ""))
    try:
        ray.init(runtime_env={"working_dir": str(directory)}, logging_level="ERROR", log_to_driver=False)
    except RuntimeEnvSetupError as error:
        ray.shutdown()
        raise UsageError(
            f"`{directory}` cannot travel to the nodes of Ray: {str(error).splitlines()[-1]}",
            hint="name data and results in a file `.rayignore`, one pattern a line, as in a `.gitignore`",
        ) from None
    except (ConnectionError, ValueError) as error:
        ray.shutdown()
        raise UsageError(f"Ray cannot be reached: {error}", hint=_ADDRESS_HINT) from None


def _check_address(address: str) -> None:
    """See that something listens at an address, which Ray itself would try for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not (host and port.isdecimal()):
        return  # none, or a word such as `auto`
    try:
        socket.create_connection((host, int(port)), _LONGEST_CONNECT_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise UsageError(f"no Ray answers at `RAY_ADDRESS`, {address}: {error}", hint=_ADDRESS_HINT) from None


def _called(function: Callable[..., Any], args: list[Any], kwargs: dict[str, Any]) -> Any:  # noqa: ANN401 - any call's
    return function(*(_moved(one, None) for one in args), **kwargs)


def _moved(one: Any, directory: Path | None) -> Any:  # noqa: ANN401 - any argument
    """Return a case or a question about the files of another directory; of None, with its own as it is found here."""
    if isinstance(one, PooledProbe):
        return replace(one, request=_moved(one.request, directory))
    if isinstance(one, ProbeRequest):
        return replace(one, directory=one.directory.resolve() if directory is None else directory)
    return one


_TASK: Final = ray.remote(num_cpus=1, max_retries=_MOST_RETRIES)(_called)
