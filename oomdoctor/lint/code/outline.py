"""What a file defines and passes on, told from its text without parsing it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

_DEFINED: Final = re.compile(r"^(?:async[ \t]+)?(?:def|class)[ \t]+(\w+)", re.MULTILINE)
_IMPORTED: Final = re.compile(
    r"^[ \t]*from[ \t]+([.\w]+)[ \t]+import[ \t]+(\([^)]{0,4000}\)|[^\n(]{0,1000})", re.MULTILINE
)
_WORK: Final = re.compile(r"backward\(|zero_grad|\.step\(|\.eval\(|\.load\(|\.append\(|no_grad|cycle|OutOfMemory")
_NAME: Final = re.compile(r"(\w+)(?:\s+as\s+(\w+))?\s*(?:,|#[^\n]*|\)|$)")


@dataclass(frozen=True, slots=True)
class Outline:
    """What a file offers to others.

    Attributes:
        defined: Names of its functions and classes at the top level.
        imported: Names that it imports from elsewhere, with what they stand for there.
        has_work: Whether parts of a training loop may be in it.
    """

    defined: frozenset[str]
    imported: Mapping[str, str]
    has_work: bool = False


def outline(text: str) -> Outline:
    """Tell what a file offers."""
    imported: dict[str, str] = {}
    for match in _IMPORTED.finditer(text):
        between = "" if match[1].endswith(".") else "."
        for name in _NAME.finditer(match[2].strip("( \t")):
            imported[name[2] or name[1]] = f"{match[1]}{between}{name[1]}"
    return Outline(frozenset(_DEFINED.findall(text)), imported, _WORK.search(text) is not None)
