"""Code that reads or changes gradients itself."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from oomdoctor.lint.code.functions import Module

_HANDLED: Final = re.compile(r"\.grad\b(?!\s*(?:=\s*None|is\b|\())")


def handles_gradients(module: Module) -> bool:
    """Whether a file does more with some `.grad` than to set it to None or to ask whether it is: it may scale it."""
    return _HANDLED.search(module.text) is not None
