"""Which file holds the configuration: `oomdoctor.toml` or `pyproject.toml`, here or above."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from oomdoctor.configuration.decoding import Place, decode
from oomdoctor.configuration.reading import read_toml
from oomdoctor.configuration.schema import Configuration
from oomdoctor.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

OWN: Final = "oomdoctor.toml"
SHARED: Final = "pyproject.toml"
_SECTION: Final = ("tool", "oomdoctor")


@dataclass(frozen=True, slots=True)
class ConfigurationFile:
    """A configuration and where it came from.

    Attributes:
        name: The file as messages call it: relative to the working directory where it lies at or above it.
        folder: What the globs in it are relative to; absolute.
        values: What it says.
        notes: Sentences for `--verbose` about what was passed over.
    """

    name: str
    folder: Path
    values: Configuration = field(default_factory=Configuration)
    notes: tuple[str, ...] = ()


def chosen_configuration(config: Path | None, environment: Mapping[str, str]) -> ConfigurationFile | None:
    """The configuration that is named, on the command line before `OOMDOCTOR_CONFIG`, or else the nearest.

    Args:
        config: What the command line names.
        environment: Variables by name.

    Raises:
        UsageError: It is not there where it is named, or is none.
    """
    named = config or (Path(environment["OOMDOCTOR_CONFIG"]) if environment.get("OOMDOCTOR_CONFIG") else None)
    return find_configuration(Path.cwd()) if named is None else read_configuration(named)


def find_configuration(directory: Path) -> ConfigurationFile | None:
    """The nearest configuration from `directory` up to the root of its repository or of the file system.

    A folder's `oomdoctor.toml` comes before its `pyproject.toml`, and one without `[tool.oomdoctor]` is passed over.

    Raises:
        UsageError: A file that counts cannot be read, is not TOML, or does not fit the schema.
    """
    for folder in _upwards(directory.absolute()):
        own, shared = folder / OWN, folder / SHARED
        if _is_file(own):
            return _read(own, notes=_passed_over(shared))
        if _is_file(shared) and _has_section(read_toml(shared, _shown(shared))):
            return _read(shared)
    return None


def read_configuration(path: Path) -> ConfigurationFile:
    """The configuration that `--config` names; its globs are relative to the working directory, as ruff has it.

    Raises:
        UsageError: It is no file, cannot be read, is not TOML, has no section for oomdoctor or does not fit the schema.
    """
    if not _is_file(path):
        problem = "is not a file" if path.exists() else "does not exist"
        raise UsageError(f"the configuration `{path}` {problem}", hint="`oomdoctor lint --isolated` goes without one")
    if path.name == SHARED and not _has_section(read_toml(path, _shown(path))):
        raise UsageError(f"{_shown(path)} has no `[tool.oomdoctor]`", hint="for example `[tool.oomdoctor.lint]`")
    return _read(path, folder=Path.cwd())


def _upwards(directory: Path) -> Iterator[Path]:
    for folder in (directory, *directory.parents):
        yield folder
        if (folder / ".git").exists():  # a folder, or a file in a worktree or a submodule
            return


def _is_file(path: Path) -> bool:
    """Whether it is a regular file, and not a folder or a pipe that reading would wait for."""
    return os.path.isfile(path)  # noqa: PTH113 - `Path.is_file` raises where a folder above may not be searched


def _has_section(data: dict[str, Any]) -> bool:
    tool = data.get("tool")
    return isinstance(tool, dict) and "oomdoctor" in tool


def _passed_over(shared: Path) -> tuple[str, ...]:
    try:
        is_shadowed = _is_file(shared) and _has_section(read_toml(shared, _shown(shared)))
    except UsageError:
        is_shadowed = False
    return (f"`{OWN}` comes before the `[tool.oomdoctor]` of {_shown(shared)} beside it",) if is_shadowed else ()


def _read(path: Path, *, folder: Path | None = None, notes: tuple[str, ...] = ()) -> ConfigurationFile:
    data: object = read_toml(path, _shown(path))
    keys = _SECTION if path.name == SHARED else ()
    for key in keys:
        data = data[key] if isinstance(data, dict) else data
    values = decode(Configuration, data, Place(_shown(path), Configuration, keys, len(keys)))
    return ConfigurationFile(_shown(path).strip("`"), folder or path.absolute().parent, values, notes)


def _shown(path: Path) -> str:
    return f"`{os.path.relpath(path)}`"
