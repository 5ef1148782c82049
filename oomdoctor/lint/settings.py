"""What a person asks of lint, wherever it came from."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class Settings:
    """What is linted, and by which rules.

    Attributes:
        select: Rules to use, as codes, beginnings of codes, names or `ALL`; empty for those that are on by default.
        ignore: Rules not to use, in the same words.
        extend_select: Rules to use besides.
        per_file_ignores: Rules not to use in files that a glob fits.
        exclude: Globs of files and folders that are not looked for; a file that is named outright is linted anyway.
        stdin_filename: What standard input is called; its ending tells a notebook.
        root: The folder that the globs are relative to.
    """

    select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    extend_select: tuple[str, ...] = ()
    per_file_ignores: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: MappingProxyType({}))
    exclude: tuple[str, ...] = ()
    stdin_filename: str | None = None
    root: Path = field(default_factory=Path.cwd)
