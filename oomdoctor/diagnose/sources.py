"""Sources of evidence: files, folders, standard input, and the reports that `oomdoctor run` leaves."""

from __future__ import annotations

import io
import json
import os
import stat
import sys
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING, BinaryIO, Final, get_args

from oomdoctor.agent.messages import UnknownRead
from oomdoctor.agent.unknown_reads import Effect
from oomdoctor.errors import UsageError
from oomdoctor.output import is_closed
from oomdoctor.results import Category

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


STANDARD_INPUT: Final = "-"
_HEAD_BYTES: Final = 4096
_MOST_FILES: Final = 4096
_READABLE_DEVICES: Final = (Path("/dev/stdin"), Path(os.devnull))
_HINT: Final = "give a log, a memory snapshot, the folder that `oomdoctor run` wrote, or `-` for standard input"


@dataclass(frozen=True, slots=True)
class Source:
    """One thing to read.

    Attributes:
        name: The path as it was given, or `standard input`.
        path: The file; None for standard input.
        problem: Why there is nothing to open, which opening it raises; None where it was found.
    """

    name: str
    path: Path | None
    stdin: BinaryIO | None = field(default=None, compare=False)
    problem: UsageError | None = field(default=None, compare=False)

    def is_file(self, other: Path) -> bool:
        """Return whether `other`, which exists, is the same file."""
        return self.path is not None and self.problem is None and self.path.samefile(other)

    @contextmanager
    def opened(self) -> Iterator[io.BufferedReader]:
        """Open it for reading.

        Raises:
            UsageError: It cannot be read.
        """
        if self.problem is not None:
            raise self.problem
        try:
            if self.path is None:
                if self.stdin is None and is_closed(0):
                    raise UsageError("standard input is closed", hint="`cat train.log | oomdoctor diagnose -`")
                yield io.BufferedReader(_Unclosed(self.stdin or sys.stdin.buffer))
                return
            with self.path.open("rb") as stream:
                yield stream
        except OSError as error:
            raise UsageError(f"`{self.name}` cannot be read: {error.strerror or error}", hint=_HINT) from error


def sources(
    arguments: Sequence[str], stdin: BinaryIO | None = None, *, refuse_missing: bool = True
) -> tuple[Source, ...]:
    """Return the files that the arguments name, with folders replaced by their files.

    Args:
        arguments: Files and folders, or `-` for standard input.
        stdin: What `-` reads; None for the process's own.
        refuse_missing: Whether one that does not exist, or holds nothing, is an error here; else opening it is.

    Raises:
        UsageError: One does not exist, is an empty folder, or standard input is named twice.
    """
    if list(arguments).count(STANDARD_INPUT) > 1:
        raise UsageError("standard input is named twice", hint="give `-` once")
    found: list[Source] = []
    for argument in arguments:
        if argument == STANDARD_INPUT:
            found.append(Source("standard input", None, stdin))
            continue
        try:
            found += _files(argument)
        except UsageError as error:
            if refuse_missing:
                raise
            found.append(Source(argument, Path(argument), problem=error))
    return tuple(found)


def head(stream: io.BufferedReader) -> bytes:
    """Return the first bytes of a stream, without consuming them."""
    return stream.peek(_HEAD_BYTES)[:_HEAD_BYTES]


def _files(argument: str) -> list[Source]:
    path = Path(argument)
    try:
        if not path.is_dir():
            _refuse_device(path, argument)
            return [Source(argument, path)]
        inside = sorted(Path(folder) / name for folder, _, names in os.walk(path) for name in names)
    except FileNotFoundError:
        hint = _HINT if " " not in argument else "pipe the message itself in: `echo '...' | oomdoctor diagnose -`"
        raise UsageError(f"no such file: `{shorten(argument, 80)}`", hint=hint) from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise UsageError(f"`{argument}` cannot be read: {reason}", hint=_HINT) from None
    if not inside:
        raise UsageError(f"`{argument}` is an empty folder", hint=_HINT)
    if len(inside) > _MOST_FILES:
        raise UsageError(f"`{argument}` holds {len(inside)} files", hint="name the logs or snapshots themselves")
    return [Source(str(file), file) for file in inside]


def _refuse_device(path: Path, argument: str) -> None:
    """Raise for a device such as `/dev/zero`, which has no end; standard input and `/dev/null` are read.

    Raises:
        UsageError: It is a device.
        OSError: There is nothing at the path, or it may not be looked at.
    """
    mode = path.stat().st_mode
    is_device = stat.S_ISCHR(mode) or stat.S_ISBLK(mode)
    if is_device and not any(path.samefile(other) for other in _READABLE_DEVICES if other.exists()):
        raise UsageError(f"`{argument}` is a device, not a log", hint=_HINT)


class _Unclosed(io.RawIOBase):
    """Standard input as a raw stream that stays open when its reader goes."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        read = getattr(self._stream, "read1", self._stream.read)
        data = read(len(buffer))
        buffer[: len(data)] = data
        return len(data)


LARGEST_BYTES: Final = 256 * 1024**2
"""Larger ones are refused; one with the addresses of a million tensors is a tenth of that."""

_MARK: Final = b'"written_by": "oomdoctor run"'
_REPORT_HINT: Final = "give the folder that `oomdoctor run` wrote, as it wrote it"
_CARD_OPTIONS: Final = frozenset({"--gpu", "--device", "--memory", "--capacity", "--reserve", "--world-size", "--rank"})
_CATEGORIES: Final = frozenset(Category)


@dataclass(frozen=True, slots=True)
class RunReport:
    """Contents of a run's report.

    Attributes:
        text: The traceback with the message at its end.
        rank: The process's rank.
        steps_done: Optimizer steps that it finished.
        command: Its command line.
        allocator_settings: What `PYTORCH_CUDA_ALLOC_CONF` or its like was set to; None where nothing was.
        addresses: What the tensors were for that lay at these addresses when memory ran out.
        last_steps: Step and allocated bytes after each of the last steps.
        device_names: Names of the devices that it used.
        address_space_bytes: Limit of its address space; None for none.
        unknown_reads: Lines that read values which a null GPU does not have.
        card_options: Options of `oomdoctor run` that asked for the card and for ranks, each with its value behind it.
    """

    text: str
    rank: int | None
    steps_done: int | None
    command: tuple[str, ...]
    allocator_settings: str | None
    addresses: dict[int, Category]
    last_steps: tuple[tuple[int, int], ...]
    device_names: tuple[str, ...] = ()
    address_space_bytes: int | None = None
    unknown_reads: tuple[UnknownRead, ...] = ()
    card_options: tuple[str, ...] = ()


def looks_like_report(head: bytes) -> bool:
    """Return whether a file that begins like this is a run's report."""
    return head.lstrip()[:1] == b"{" and _MARK in head


def read_report(data: bytes, source: str) -> RunReport:
    """Read a report.

    Raises:
        UsageError: It is not JSON, or was cut short.
    """
    try:
        report = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise UsageError(
            f"`{source}` is not the report of a run, or was cut short: {error}", hint=_REPORT_HINT
        ) from None
    if not isinstance(report, dict):
        raise UsageError(f"`{source}` is not the report of a run", hint=_REPORT_HINT)
    settings, text = report.get("allocator_settings"), report.get("traceback")
    devices = listed if isinstance(listed := report.get("devices"), list) else []
    bare = f"{report.get('type', 'RuntimeError')}: {report.get('message', '')}"
    return RunReport(
        text=text if isinstance(text, str) and text.strip() else bare,
        rank=_integer(report.get("rank")),
        steps_done=_integer(report.get("steps_done")),
        command=tuple(str(word) for word in argv) if isinstance(argv := report.get("argv"), list) else (),
        allocator_settings=",".join(map(str, settings.values())) if isinstance(settings, dict) and settings else None,
        addresses=_addresses(report.get("categories")),
        last_steps=tuple(_steps(report.get("last_steps"))),
        device_names=tuple(str(one["name"]) for one in devices if isinstance(one, dict) and one.get("name")),
        address_space_bytes=_integer(report.get("address_space_bytes")),
        unknown_reads=tuple(_unknown_reads(report.get("unknown_reads"))),
        card_options=tuple(_card_options(report.get("card_options"))),
    )


def _integer(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _steps(entries: object) -> Iterator[tuple[int, int]]:
    for entry in entries if isinstance(entries, list) else []:
        if isinstance(entry, dict):
            step, allocated = _integer(entry.get("step")), _integer(entry.get("allocated_bytes"))
            if step is not None and allocated is not None:
                yield step, allocated


def _unknown_reads(entries: object) -> Iterator[UnknownRead]:
    for entry in entries if isinstance(entries, list) else []:
        if isinstance(entry, dict) and entry.get("effect") in get_args(Effect):
            yield UnknownRead(str(entry.get("place", "")), str(entry.get("text", "")), entry["effect"])


def _card_options(words: object) -> Iterator[str]:
    """Yield the options that are known, each with its value; a report may have been written by anybody."""
    listed = words if isinstance(words, list) and all(isinstance(word, str) for word in words) else []
    for name, value in zip(listed[::2], listed[1::2], strict=False):
        if name in _CARD_OPTIONS:
            yield from (name, value)


def _addresses(categories: object) -> dict[int, Category]:
    """The addresses that can be read; one that cannot makes a block a little less well known, no more."""
    if not isinstance(categories, dict):
        return {}
    return {
        int(address): Category(name)
        for address, name in categories.items()
        if isinstance(address, str) and address.isdecimal() and isinstance(name, str) and name in _CATEGORIES
    }
