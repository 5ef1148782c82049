"""The configuration file: found, read as TOML, decoded."""

from __future__ import annotations

import os
import re
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from oomdoctor.config.decoding import TomlDecoder
from oomdoctor.config.schema import Configuration
from oomdoctor.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


_HINT: Final = "correct it"
_PLACE = re.compile(r" \(at (?:line (?P<line>\d+), column (?P<column>\d+)|end of document)\)$")


class UnreadableConfigurationError(UsageError):
    """A configuration is not there, or is no TOML; a command that can do without it may say so in its hint."""


def read_toml(path: Path, source: str) -> dict[str, Any]:
    """Return the tables of a TOML file.

    Args:
        path: The file.
        source: What to call it in messages.

    Raises:
        UsageError: It cannot be read, or is not TOML; the message has the line and the column.
    """
    text = _read_text(path, source)
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UnreadableConfigurationError(_explained(str(error), text, source), hint=_HINT) from None
    except RecursionError:
        raise UnreadableConfigurationError(f"{source} is nested too deeply", hint=_HINT) from None
    except ValueError as error:  # an integer with more digits than Python reads
        raise UnreadableConfigurationError(f"{source} holds a value that cannot be read: {error}", hint=_HINT) from None


def _read_text(path: Path, source: str) -> str:
    try:
        return path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UnreadableConfigurationError(
            f"{source} is not TOML: byte {error.start} is not UTF-8", hint="save it as UTF-8"
        ) from None
    except OSError as error:
        raise UnreadableConfigurationError(f"{source} cannot be read: {error.strerror}", hint=_HINT) from None


def _explained(message: str, text: str, source: str) -> str:
    """Return the line and column where the parser stopped, and its reason."""
    found = _PLACE.search(message)
    reason = message[: found.start()] if found else message
    line, column = (text.count("\n") + 1, len(text) - text.rfind("\n"))
    if found and found["line"]:
        line, column = int(found["line"]), int(found["column"])
    return f"{source} is not TOML, line {line}, column {column}: {reason[:1].lower()}{reason[1:]}"


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
    """Return the configuration that is named, on the command line before `OOMDOCTOR_CONFIG`, or else the nearest.

    Args:
        config: What the command line names.
        environment: Variables by name.

    Raises:
        UsageError: It is not there where it is named, or is none.
    """
    named = config or (Path(environment["OOMDOCTOR_CONFIG"]) if environment.get("OOMDOCTOR_CONFIG") else None)
    return find_configuration(Path.cwd()) if named is None else read_configuration(named)


def find_configuration(directory: Path) -> ConfigurationFile | None:
    """Return the nearest configuration from `directory` up to the root of its repository or of the file system.

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
    """Return the configuration that `--config` names; its globs are relative to the working directory, as ruff has it.

    Raises:
        UsageError: It is no file, cannot be read, is not TOML, has no section for oomdoctor or does not fit the schema.
    """
    if not _is_file(path):
        there = os.path.exists(path)  # noqa: PTH110 - `Path.exists` raises for a name that is too long
        problem = "is not a file" if there else "does not exist"
        hint = "name a file that is there"
        raise UnreadableConfigurationError(f"the configuration `{path}` {problem}", hint=hint)
    if path.name == SHARED and not _has_section(read_toml(path, _shown(path))):
        raise UsageError(f"{_shown(path)} has no `[tool.oomdoctor]`", hint="for example `[tool.oomdoctor.lint]`")
    return _read(path, folder=Path.cwd())


def _upwards(directory: Path) -> Iterator[Path]:
    for folder in (directory, *directory.parents):
        yield folder
        if (folder / ".git").exists():  # a folder, or a file in a worktree or a submodule
            return


def _is_file(path: Path) -> bool:
    """Return whether it is a regular file, and not a folder or a pipe that reading would wait for."""
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
    values = TomlDecoder(_shown(path), Configuration, keys).table(Configuration, data, keys)
    return ConfigurationFile(_shown(path).strip("`"), folder or path.absolute().parent, values, notes)


def _shown(path: Path) -> str:
    return f"`{os.path.relpath(path)}`"
