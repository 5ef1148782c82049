"""Code that reads or changes gradients itself."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from oomdoctor.lint.code.functions import Module

_HANDLED: Final = re.compile(r"\.grad\b(?!\s*(?:=\s*None|is\b|\())")


def handles_gradients(module: Module) -> bool:
    """Whether a file does more with some `.grad` than to set it to None or to ask whether it is: it may scale it."""
    return _in_text(module.text)


@lru_cache(maxsize=16)
def _in_text(text: str) -> bool:
    return ".grad" in text and _HANDLED.search(text) is not None
