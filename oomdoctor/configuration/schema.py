"""What may stand in a configuration: each key is a field, with `-` for `_`, and each type says what it takes.

None is a key that was not given. A table is a dataclass, a list of tables a tuple of one, and a mapping with free keys
a dict; `oomdoctor.configuration.decoding` reads all of it by these annotations.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Mapping

SeverityName: TypeAlias = Literal["note", "warning", "error"]

EXAMPLE = "example"
"""Key in a field's metadata for a value, in TOML, to show where a wrong one was given."""

_CODES: Mapping[str, str] = MappingProxyType({EXAMPLE: '["OOM102", "OOM2"]'})


@dataclass(frozen=True, slots=True)
class RuleChoice:
    """Which rules are on.

    Attributes:
        select: Codes, prefixes of codes or names, in place of the default set.
        ignore: The same, left out.
        extend_select: The same, on top of `select` or the default set.
        per_file_ignores: Selectors that are left out in files that a glob matches.
    """

    select: tuple[str, ...] | None = field(default=None, metadata=_CODES)
    ignore: tuple[str, ...] | None = field(default=None, metadata=_CODES)
    extend_select: tuple[str, ...] | None = field(default=None, metadata=_CODES)
    per_file_ignores: dict[str, tuple[str, ...]] | None = field(
        default=None, metadata={EXAMPLE: '{ "tests/**" = ["OOM101"] }'}
    )


@dataclass(frozen=True, slots=True)
class LintTable(RuleChoice):
    """`[lint]`: what `oomdoctor lint` looks for, and where.

    Attributes:
        exclude: Globs of files and folders to pass over.
        fail_on: The mildest severity that makes the command exit with 1.
    """

    exclude: tuple[str, ...] | None = field(default=None, metadata={EXAMPLE: '["legacy", "*_test.py"]'})
    fail_on: SeverityName | None = field(default=None, metadata={EXAMPLE: '"error"'})


@dataclass(frozen=True, slots=True)
class Configuration(RuleChoice):
    """A whole configuration. Only lint has rules, so what chooses them may stand at the top as well as in `[lint]`.

    Attributes:
        lint: The table `[lint]`.
    """

    lint: LintTable = field(default_factory=LintTable)
