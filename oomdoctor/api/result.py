"""Saved results, as every command writes them with `--json`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from oomdoctor.serialisation import read_document

if TYPE_CHECKING:
    from os import PathLike

    from oomdoctor.results import Document


def load_result(path: str | PathLike[str]) -> Document:
    """Read what a command wrote with `--json`.

        plan = load_result("oomdoctor.json").plan

    Args:
        path: The file.

    Returns:
        The document, with the command's name in `command` and what it found in `result`; `plan` is the accumulation
        plan of a probe.

    Raises:
        UsageError: There is no such file, it cannot be read, or it does not hold a document of oomdoctor.
    """
    return read_document(str(path))
