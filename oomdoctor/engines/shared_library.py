"""Reader of ELF files: the libraries and symbols that a shared library imports and exports.

No tool of the system is needed. Builds of torch and CUDA libraries for Linux are 64-bit little-endian ELF only.
"""

from __future__ import annotations

import mmap
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_IDENT = b"\x7fELF\x02\x01"
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_DYNAMIC = struct.Struct("<qQ")
_SHT_DYNAMIC = 6
_SHT_DYNSYM = 11
_DT_NEEDED = 1
_DT_RPATH = 15
_DT_RUNPATH = 29
_SHN_UNDEF = 0


@dataclass(frozen=True, slots=True)
class SharedLibrary:
    """The dynamic section and symbols of a shared library.

    Attributes:
        needed: Sonames of the libraries that it loads.
        search_path: Directories in which they are searched, with `$ORIGIN` replaced.
        undefined: Symbols that it imports.
        defined: Symbols that it defines.
    """

    needed: tuple[str, ...]
    search_path: tuple[str, ...]
    undefined: frozenset[str]
    defined: frozenset[str]


@dataclass(frozen=True, slots=True)
class _Section:
    kind: int
    offset: int
    size: int
    link: int


def read_shared_library(path: Path) -> SharedLibrary:
    """Read the dynamic section and the dynamic symbols of `path`.

    Raises:
        ValueError: `path` is not a 64-bit little-endian ELF file.
        OSError: `path` cannot be read.
    """
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        if data[: len(_IDENT)] != _IDENT:
            raise ValueError(f"`{path}` is not a 64-bit ELF file")
        (offset,) = struct.unpack_from("<Q", data, 0x28)
        entry_size, count = struct.unpack_from("<HH", data, 0x3A)
        headers = (_SECTION.unpack_from(data, offset + index * entry_size) for index in range(count))
        sections = [_Section(kind, start, size, link) for _, kind, _, _, start, size, link, *_ in headers]
        origin = str(path.parent)
        needed: list[str] = []
        search_path: list[str] = []
        for content, strings in _of_kind(data, sections, _SHT_DYNAMIC):
            for tag, value in _DYNAMIC.iter_unpack(content):
                if tag == _DT_NEEDED:
                    needed.append(_string(strings, value))
                elif tag in (_DT_RPATH, _DT_RUNPATH):
                    search_path += _string(strings, value).replace("$ORIGIN", origin).split(":")
        undefined, defined = _symbols(data, sections)
        return SharedLibrary(tuple(needed), tuple(search_path), undefined, defined)


def _of_kind(data: mmap.mmap, sections: list[_Section], kind: int) -> Iterator[tuple[bytes, bytes]]:
    """Yield the content of each section of a kind, with that of its string table."""
    for section in sections:
        if section.kind == kind:
            strings = sections[section.link]
            yield (
                data[section.offset : section.offset + section.size],
                data[strings.offset : strings.offset + strings.size],
            )


def _string(strings: bytes, offset: int) -> str:
    return strings[offset : strings.index(b"\0", offset)].decode("utf-8", "replace")


def _symbols(data: mmap.mmap, sections: list[_Section]) -> tuple[frozenset[str], frozenset[str]]:
    undefined: set[str] = set()
    defined: set[str] = set()
    for content, strings in _of_kind(data, sections, _SHT_DYNSYM):
        for name, _, _, section, _, _ in _SYMBOL.iter_unpack(content):
            (undefined if section == _SHN_UNDEF else defined).add(_string(strings, name))
    return frozenset(undefined), frozenset(defined)
