"""Issues in files: their paths as GitHub and code scanning expect them."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from typing import Final

_LONGEST_PATH: Final = 4096  # no system has longer ones; what a saved document has is anybody's


def target_file(target: str) -> str | None:
    """The file of a reference such as `train/model.py:build(depth=2)`; None where it is a module or an example."""
    file, ending, rest = target.partition(".py")
    return f"{file}{ending}" if ending and rest[:1] in ("", ":") else None


def repository_path(path: str) -> str:
    """A path from the root of the repository that the working directory lies in.

    GitHub puts annotations and results at paths from there, wherever the command ran.

    Args:
        path: A file's path, absolute or from the working directory, as a report gives it.

    Returns:
        The path from the root; an absolute one that does not lie below it as it is.
    """
    working = os.getcwd()  # noqa: PTH109 - no link is followed, as for the paths themselves
    return _from_root(path[:_LONGEST_PATH], working, os.environ.get("GITHUB_WORKSPACE", ""))


@cache
def _from_root(path: str, working: str, workspace: str) -> str:
    whole, root = os.path.normpath(os.path.join(working, path)), _root(working, workspace)  # noqa: PTH118 - texts, not files
    if whole.startswith(root.rstrip(os.sep) + os.sep):
        return os.path.relpath(whole, root).replace(os.sep, "/")
    return whole.replace(os.sep, "/")


@cache
def _root(working: str, workspace: str) -> str:
    """The workspace of a job, or the nearest directory above that is a repository's; else the working directory."""
    here = Path(working)
    if workspace and here.is_relative_to(workspace):
        return os.path.normpath(workspace)
    return str(next((place for place in (here, *here.parents) if (place / ".git").exists()), here))
