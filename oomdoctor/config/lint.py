"""Lint's settings: the command line, then the environment, then the file, then the defaults."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from oomdoctor.config.decoding import key_of
from oomdoctor.config.files import UnreadableConfigurationError, chosen_configuration
from oomdoctor.config.layers import COMMAND_LINE, Layer, Settled, read_environment, settle
from oomdoctor.config.schema import LintTable, RuleChoice
from oomdoctor.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import PurePath

    from oomdoctor.config.files import ConfigurationFile


_SPECIAL: Final = re.compile(r"[*?\[\]\\!#]")


def below(folder: PurePath, glob: str) -> str:
    """Return a glob that matches in a folder above what `glob` matches in `folder`.

    Args:
        folder: Relative to the folder above; `.` changes nothing.
        glob: One without a slash, but for its last character, matches at any depth; any other only from where it is.
    """
    if not folder.parts:
        return glob
    negation, pattern = ("!", glob[1:]) if glob.startswith("!") else ("", glob)
    start = _SPECIAL.sub(r"\\\g<0>", folder.as_posix())
    anywhere = "" if "/" in pattern.rstrip("/") else "**/"
    return f"{negation}{start}/{anywhere}{pattern.removeprefix('/')}"


DEFAULTS: Final = LintTable(ignore=(), extend_select=(), per_file_ignores={}, exclude=(), fail_on="warning")
"""What holds where nobody says anything; nothing selected is the default set of rules."""


@dataclass(frozen=True, slots=True)
class LintConfiguration:
    """All that was said about lint.

    Attributes:
        settled: What holds, key by key.
        layers: What each source says, the weakest first; of the rules each goes on from what the ones before it left.
        root: The folder that globs are relative to.
        notes: Sentences for `--verbose`.
    """

    settled: Settled[LintTable]
    layers: tuple[Layer[LintTable], ...]
    root: Path
    notes: tuple[str, ...]


def configure_lint(
    command_line: LintTable, environment: Mapping[str, str], *, config: Path | None = None, isolated: bool = False
) -> LintConfiguration:
    """Lay the command line over the environment, and both over the configuration file.

    Args:
        command_line: What was given there; None where nothing was.
        environment: Variables by name.
        config: The file to read instead of looking for one.
        isolated: Whether to read none.

    Raises:
        UsageError: A file or a variable has what the schema does not.
    """
    if isolated and config is not None:
        raise UsageError("`--isolated` and `--config` exclude each other", hint="give one of them")
    try:
        file = None if isolated else chosen_configuration(config, environment)
    except UnreadableConfigurationError as error:
        hint = f"{error.hint}; `oomdoctor lint --isolated` goes without one"
        raise UsageError(error.message, hint=hint) from None
    root = file.folder if file else Path.cwd()
    here = [Layer.of(command_line, COMMAND_LINE), read_environment(LintTable, "lint", environment)]
    layers = [*(_rooted(layer, root) for layer in here), *([file_layer(file)] if file else [])]
    notes = (f"configuration: {file.name}", *file.notes) if file else ("configuration: none",)
    return LintConfiguration(settle(layers, DEFAULTS), tuple(reversed(layers)), root, notes)


def file_layer(file: ConfigurationFile) -> Layer[LintTable]:
    """Return the settings of a file, both in `[lint]` and at the top.

    Raises:
        UsageError: A key stands in both places.
    """
    outer, inner = file.values, file.values.lint
    values = {field.name: getattr(inner, field.name) for field in fields(LintTable)}
    for field in fields(RuleChoice):
        above = getattr(outer, field.name)
        if above is not None and values[field.name] is not None:
            raise UsageError(f"`{file.name}` has `{key_of(field)}` twice: in `[lint]` and above it", hint="keep one")
        values[field.name] = above if values[field.name] is None else values[field.name]
    return Layer.of(LintTable(**values), file.name)


def _rooted(layer: Layer[LintTable], root: Path) -> Layer[LintTable]:
    """Return a layer with its globs relative to `root` instead of the working directory, which lies at or below it."""
    folder = Path.cwd().relative_to(root)
    exclude, ignores = layer.values.exclude, layer.values.per_file_ignores
    values = replace(
        layer.values,
        exclude=None if exclude is None else tuple(below(folder, glob) for glob in exclude),
        per_file_ignores=None if ignores is None else {below(folder, glob): codes for glob, codes in ignores.items()},
    )
    return replace(layer, values=values)
