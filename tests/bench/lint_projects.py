"""Installed projects that lint is measured on: what a folder holds, and in which version."""

from __future__ import annotations

import importlib.util
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

_FIELD: Final = re.compile(r"(?m)^(Name|Version): (\S+)")


@dataclass(frozen=True, slots=True)
class InstalledProject:
    """A folder of scripts.

    Attributes:
        name: The distribution's, or the folder's own where there is no metadata.
        version: As the metadata says; None where there is none.
        folder: Where it lies.
    """

    name: str
    version: str | None
    folder: Path


def installed(folders: list[str]) -> list[InstalledProject]:
    """The projects in these folders, each with its metadata in it, as `pip install --target FOLDER` leaves it.

    Without folders it is PyTorch as it is installed here, which is not imported for that.
    """
    if folders:
        return [_project(Path(folder), Path(folder).glob("*.dist-info/METADATA")) for folder in folders]
    spec = importlib.util.find_spec("torch")
    assert spec is not None
    assert spec.origin is not None
    package = Path(spec.origin).parent
    return [_project(package, package.parent.glob("torch-*.dist-info/METADATA"))]


def _project(folder: Path, metadata: Iterable[Path]) -> InstalledProject:
    for path in metadata:
        fields = dict(_FIELD.findall(path.read_text(encoding="utf-8")))
        return InstalledProject(fields["Name"], fields["Version"], folder)
    return InstalledProject(folder.name, None, folder)
