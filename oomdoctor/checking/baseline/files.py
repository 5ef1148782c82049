"""The baseline file: read strictly, written whole or not at all, and byte for byte the same for the same figures."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from oomdoctor.checking.baseline.figures import Baseline
from oomdoctor.checking.baseline.layout import from_table, to_plain
from oomdoctor.checking.baseline.parsing import Node, ParsingError, parse
from oomdoctor.checking.baseline.tables import Table
from oomdoctor.errors import UsageError
from oomdoctor.output import write_atomically

if TYPE_CHECKING:
    from pathlib import Path

    from oomdoctor.checking.baseline.figures import Figures

NAME: Final = "oomdoctor-baseline.json"
SCHEMA_VERSION: Final = 1

_MAXIMUM_BYTES: Final = 16 * 1024**2
_HINT: Final = "`oomdoctor check --update` writes it anew; the repository's history has the last good one"
_CONFLICT_HINT: Final = "take one side whole, then run `oomdoctor check --update`, which measures what both changed"


def write_baseline(path: Path, baseline: Baseline) -> None:
    """Write a baseline; the same figures always give the same bytes.

    Raises:
        UsageError: The file cannot be written.
    """
    entries = {name: to_plain(figures) for name, figures in baseline.entries.items()}
    text = json.dumps({"schema_version": SCHEMA_VERSION, "entries": entries}, indent=2, sort_keys=True)
    write_atomically(path, f"{text}\n")


def read_baseline(path: Path) -> Baseline:
    """Read a baseline.

    Raises:
        UsageError: There is no such file, it cannot be read, or it is not a baseline; the message has the line.
    """
    text = _read_text(path)
    try:
        return Baseline(_entries(parse(text)))
    except ParsingError as error:
        hint = _CONFLICT_HINT if error.is_conflict else _HINT
        raise UsageError(
            f"the baseline `{path}` cannot be used, line {error.line}: {error.problem}", hint=hint
        ) from None


def _entries(root: Node) -> dict[str, Figures]:
    with Table(root, "the file") as table:
        version = table.integer("schema_version")
        if version != SCHEMA_VERSION:
            problem = f"it has `schema_version` {version}, and this oomdoctor reads {SCHEMA_VERSION}"
            raise ParsingError(problem, root.line)
        return {name: from_table(entry) for name, entry in table.table("entries").tables().items()}


def _read_text(path: Path) -> str:
    if path.exists() and not path.is_file():
        raise UsageError(f"the baseline `{path}` is not a file", hint="move it away")
    try:
        with path.open("rb") as stream:
            data = stream.read(_MAXIMUM_BYTES + 1)
    except FileNotFoundError:
        raise UsageError(f"there is no baseline `{path}`", hint="`oomdoctor check --update` writes it") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise UsageError(f"the baseline `{path}` cannot be read: {reason}") from None
    if len(data) > _MAXIMUM_BYTES:
        raise UsageError(f"the baseline `{path}` is larger than 16 MiB, which none is", hint=_HINT)
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise UsageError(f"the baseline `{path}` cannot be used, line {line}: it is not UTF-8", hint=_HINT) from None
