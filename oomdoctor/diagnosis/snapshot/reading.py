"""Open a snapshot file, be it a pickle or JSON."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from oomdoctor.diagnosis.snapshot.collections_off import without_collections
from oomdoctor.diagnosis.snapshot.layout import read_layout
from oomdoctor.diagnosis.snapshot.pickled import load_plain
from oomdoctor.errors import UsageError
from oomdoctor.units import GIB, format_size

if TYPE_CHECKING:
    from pathlib import Path

    from oomdoctor.diagnosis.snapshot.raw import RawSnapshot

_LARGEST_FILE: Final = 4 * GIB
_PICKLE_PROTOCOLS: Final = (b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05")
_JSON_KEYS: Final = (b'"segments"', b'"device_traces"', b'"total_size"', b'"blocks"', b'"allocator_settings"')


def looks_like_snapshot(head: bytes) -> bool:
    """Whether a file that begins like this is a pickle or a snapshot as JSON, and not a log.

    Args:
        head: The file's first bytes; a few kilobytes are enough.
    """
    if head.startswith(_PICKLE_PROTOCOLS):
        return True
    text = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    return text[:1] in {b"{", b"["} and any(key in text for key in _JSON_KEYS)


def read_snapshot(data: bytes | Path, source: str) -> RawSnapshot:
    """Read a memory snapshot, as `torch.cuda.memory._dump_snapshot` writes it, or the same as JSON.

    Args:
        data: The file, or what it holds.
        source: The file as it was given, for errors and for the result.

    Raises:
        UsageError: It cannot be read, is not a snapshot, or asks for more than plain data. Nothing in it is run.
    """
    content = data if isinstance(data, bytes) else _content(data, source)
    with without_collections():
        return read_layout(_plain(content, source), source, len(content))


def _content(path: Path, source: str) -> bytes:
    try:
        if not path.is_file():  # a device or a pipe may never end
            raise UsageError(f"`{source}` is not a file", hint="give the file that `_dump_snapshot` wrote")
        size = path.stat().st_size
        if size > _LARGEST_FILE:
            raise UsageError(
                f"`{source}` is {format_size(size)}, and nothing beyond {format_size(_LARGEST_FILE)} is read",
                hint="record fewer events: `torch.cuda.memory._record_memory_history(max_entries=100_000)`",
            )
        with path.open("rb") as file:
            return file.read(_LARGEST_FILE)
    except OSError as error:
        raise UsageError(f"`{source}` cannot be read: {error.strerror or error}") from error


def _plain(content: bytes, source: str) -> Any:  # noqa: ANN401 - what the file holds
    if content.startswith(_PICKLE_PROTOCOLS):
        return load_plain(content, source)
    try:
        return json.loads(content)
    except (ValueError, RecursionError) as error:
        raise UsageError(
            f"`{source}` is not a memory snapshot: it is neither a pickle nor JSON",
            hint='record one with `torch.cuda.memory._dump_snapshot("snapshot.pickle")`',
        ) from error
