"""The baseline file: read strictly, written whole or not at all, and byte for byte the same for the same figures.

It has one line a figure, sorted, whole numbers, so that its diff shows what moved:

"pretrain": {
  "circumstances": {"capacity_bytes": ..., "card": ..., "torch": ..., ...},
  "memory": {
    "categories": {"activations": 706740224, ...},
    "micro_batch": 8,
    "micro_steps": 2,
    "modules": {"activations": {"encoder.layers.*.attention": 432013312, ...}, ...},
    "peak_allocated_bytes": 1180696576,
    "peak_phase": "iteration 2 backward",
    "peak_reserved_bytes": 1244659712,
    "phases": {"iteration 2 backward": {"activations": 706740224, ...}, ...}
  },
  "micro_batch": {"accumulation_steps": 22, "limited_by": "memory", "maximum": 12}
}

An entry that is a command has no `memory`, and `trials` by micro-batch instead, each with `micro_steps`,
`peak_allocated_bytes`, `peak_reserved_bytes` and `phases`, whose values are sizes. One that was traced has both, and
its `memory` is null.
"""

from __future__ import annotations

import json
from dataclasses import fields
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, TypeAlias

from oomdoctor.check.baseline.figures import Baseline, Circumstances, Figures, MemoryFigures, TrialFigures
from oomdoctor.check.baseline.parsing import Node, ParsingError, Table, parse
from oomdoctor.errors import UsageError
from oomdoctor.output import write_atomically
from oomdoctor.results import Category

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


Plain: TypeAlias = "Mapping[str, Plain] | str | int | None"

# PyTorch allows no full stop in a module's name, so that no module can be called one of these.
_MODULE_KEYS: Final[Mapping[str | None, str]] = MappingProxyType({"": ".model", None: ".elsewhere"})
_MODULES: Final[Mapping[str, str | None]] = MappingProxyType({key: module for module, key in _MODULE_KEYS.items()})
_LONGEST_SIZE: Final = 18
_LIMITS: Final = ("limit", "memory", "target")


def to_plain(figures: Figures) -> Plain:
    """Return an entry as the file has it."""
    circumstances = {field.name: getattr(figures.circumstances, field.name) for field in fields(Circumstances)}
    plain: dict[str, Plain] = {
        "circumstances": circumstances,
        "micro_batch": {
            "accumulation_steps": figures.accumulation_steps,
            "limited_by": figures.limited_by,
            "maximum": figures.maximum,
        },
    }
    if figures.is_command or figures.trials:
        plain["trials"] = {str(size): _trial_to_plain(trial) for size, trial in figures.trials.items()}
    if not figures.is_command:
        plain["memory"] = None if figures.memory is None else _memory_to_plain(figures.memory)
    return plain


def _trial_to_plain(trial: TrialFigures) -> Plain:
    return {
        "micro_steps": trial.micro_steps,
        "peak_allocated_bytes": trial.peak_allocated_bytes,
        "peak_reserved_bytes": trial.peak_reserved_bytes,
        "phases": dict(trial.phases),
    }


def from_table(table: Table) -> Figures:
    """Return an entry's figures out of the file.

    Raises:
        ParsingError: Something is missing, unknown or of another kind.
    """
    with table, table.table("micro_batch") as answer:
        is_command = table.has("trials") and not table.has("memory")
        memory = None if is_command else table.optional_table("memory")
        return Figures(
            circumstances=_circumstances(table.table("circumstances")),
            maximum=answer.integer("maximum"),
            limited_by=answer.choice("limited_by", _LIMITS),
            accumulation_steps=answer.optional_integer("accumulation_steps"),
            memory=None if memory is None else _memory(memory),
            is_command=is_command,
            trials=_trials(table.table("trials")) if table.has("trials") else {},
        )


def _trials(table: Table) -> dict[int, TrialFigures]:
    found = {}
    for key, trial in table.tables().items():
        if not key.isascii() or not key.isdecimal() or len(key) > _LONGEST_SIZE:
            table.key(key, ("a micro-batch",))
        with trial:
            found[int(key)] = TrialFigures(
                micro_batch=int(key),
                micro_steps=trial.integer("micro_steps"),
                peak_allocated_bytes=trial.integer("peak_allocated_bytes"),
                peak_reserved_bytes=trial.integer("peak_reserved_bytes"),
                phases=trial.table("phases").integers(),
            )
    return found


def _memory_to_plain(memory: MemoryFigures) -> Plain:
    return {
        "micro_batch": memory.micro_batch,
        "micro_steps": memory.micro_steps,
        "peak_allocated_bytes": memory.peak_allocated_bytes,
        "peak_reserved_bytes": memory.peak_reserved_bytes,
        "peak_phase": memory.peak_phase,
        "phases": {name: _by_value(sizes) for name, sizes in memory.phases.items()},
        "categories": _by_value(memory.categories),
        "modules": {
            category.value: {_MODULE_KEYS.get(module, module or ""): size for module, size in rows.items()}
            for category, rows in memory.modules.items()
        },
    }


def _by_value(sizes: Mapping[Category, int]) -> Plain:
    return {category.value: size for category, size in sizes.items()}


def _circumstances(table: Table) -> Circumstances:
    with table:
        return Circumstances(
            torch=table.optional_text("torch"),
            device=table.text("device"),
            card=table.text("card"),
            capacity_bytes=table.integer("capacity_bytes"),
            precision=table.text("precision"),
            optimizer=table.text("optimizer"),
            target_batch=table.optional_integer("target_batch"),
            world_size=table.optional_integer("world_size"),
        )


def _memory(table: Table) -> MemoryFigures:
    with table:
        return MemoryFigures(
            micro_batch=table.integer("micro_batch"),
            micro_steps=table.integer("micro_steps"),
            peak_allocated_bytes=table.integer("peak_allocated_bytes"),
            peak_reserved_bytes=table.integer("peak_reserved_bytes"),
            peak_phase=table.text("peak_phase"),
            phases={name: _categories(sizes) for name, sizes in table.table("phases").tables().items()},
            categories=_categories(table.table("categories")),
            modules=_modules(table.table("modules")),
        )


def _categories(table: Table) -> dict[Category, int]:
    return {_category(table, name): size for name, size in table.integers().items()}


def _modules(table: Table) -> dict[Category, dict[str | None, int]]:
    return {
        _category(table, name): {_MODULES.get(key, key): size for key, size in rows.integers().items()}
        for name, rows in table.tables().items()
    }


def _category(table: Table, name: str) -> Category:
    return Category(table.key(name, tuple(Category)))


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
