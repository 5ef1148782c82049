"""The report that `oomdoctor run` leaves of a process that ran out of memory; like any file, it is not trusted."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from oomdoctor.errors import UsageError
from oomdoctor.results import Category

if TYPE_CHECKING:
    from collections.abc import Iterator

LARGEST_BYTES: Final = 256 * 1024**2
"""Larger ones are refused; one with the addresses of a million tensors is a tenth of that."""

_MARK: Final = b'"written_by": "oomdoctor run"'
_HINT: Final = "give the folder that `oomdoctor run` wrote, as it wrote it"
_CATEGORIES: Final = frozenset(Category)


@dataclass(frozen=True, slots=True)
class RunReport:
    """What it says.

    Attributes:
        text: The traceback with the message at its end.
        rank: The process's rank.
        steps_done: Optimizer steps that it finished.
        command: Its command line.
        allocator_settings: What `PYTORCH_CUDA_ALLOC_CONF` or its like was set to; None where nothing was.
        addresses: What the tensors were for that lay at these addresses when memory ran out.
        last_steps: Step and allocated bytes after each of the last steps.
    """

    text: str
    rank: int | None
    steps_done: int | None
    command: tuple[str, ...]
    allocator_settings: str | None
    addresses: dict[int, Category]
    last_steps: tuple[tuple[int, int], ...]


def looks_like_report(head: bytes) -> bool:
    """Whether a file that begins like this is a run's report."""
    return head.lstrip()[:1] == b"{" and _MARK in head


def read_report(data: bytes, source: str) -> RunReport:
    """Read a report.

    Raises:
        UsageError: It is not JSON, or was cut short.
    """
    try:
        report = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"`{source}` is not the report of a run, or was cut short: {error}", hint=_HINT) from None
    if not isinstance(report, dict):
        raise UsageError(f"`{source}` is not the report of a run", hint=_HINT)
    settings = report.get("allocator_settings")
    return RunReport(
        text=_text(report),
        rank=_integer(report.get("rank")),
        steps_done=_integer(report.get("steps_done")),
        command=tuple(str(word) for word in argv) if isinstance(argv := report.get("argv"), list) else (),
        allocator_settings=",".join(map(str, settings.values())) if isinstance(settings, dict) and settings else None,
        addresses=_addresses(report.get("categories")),
        last_steps=tuple(_steps(report.get("last_steps"))),
    )


def _text(report: dict[str, object]) -> str:
    traceback = report.get("traceback")
    if isinstance(traceback, str) and traceback.strip():
        return traceback
    return f"{report.get('type', 'RuntimeError')}: {report.get('message', '')}"


def _integer(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _steps(entries: object) -> Iterator[tuple[int, int]]:
    for entry in entries if isinstance(entries, list) else []:
        if isinstance(entry, dict):
            step, allocated = _integer(entry.get("step")), _integer(entry.get("allocated_bytes"))
            if step is not None and allocated is not None:
                yield step, allocated


def _addresses(categories: object) -> dict[int, Category]:
    """The addresses that can be read; one that cannot makes a block a little less well known, no more."""
    if not isinstance(categories, dict):
        return {}
    return {
        int(address): Category(name)
        for address, name in categories.items()
        if isinstance(address, str) and address.isdecimal() and isinstance(name, str) and name in _CATEGORIES
    }
