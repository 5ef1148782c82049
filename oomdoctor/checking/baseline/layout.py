"""How figures lie in a baseline file: one line a figure, sorted, whole numbers, so that its diff is what moved.

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

from dataclasses import fields
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, TypeAlias

from oomdoctor.checking.baseline.figures import Circumstances, Figures, MemoryFigures
from oomdoctor.checking.baseline.trials import TrialFigures
from oomdoctor.results import Category

if TYPE_CHECKING:
    from collections.abc import Mapping

    from oomdoctor.checking.baseline.tables import Table

Plain: TypeAlias = "Mapping[str, Plain] | str | int | None"

# PyTorch allows no full stop in a module's name, so that no module can be called one of these.
_MODULE_KEYS: Final[Mapping[str | None, str]] = MappingProxyType({"": ".model", None: ".elsewhere"})
_MODULES: Final[Mapping[str, str | None]] = MappingProxyType({key: module for module, key in _MODULE_KEYS.items()})
_LONGEST_SIZE: Final = 18
_LIMITS: Final = ("limit", "memory", "target")


def to_plain(figures: Figures) -> Plain:
    """What stands in the file for an entry."""
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
    """An entry's figures out of the file.

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
