"""Tables of patterns and texts, which lie as TOML beside the modules that read them."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any


def read_table(module_file: str) -> dict[str, Any]:
    """Read the table of a module, such as `phases.toml` for `phases.py`.

    Args:
        module_file: The module's `__file__`.
    """
    return tomllib.loads(Path(module_file).with_suffix(".toml").read_text(encoding="utf-8"))


def compiled(patterns: str | list[str], flags: re.RegexFlag = re.NOFLAG) -> re.Pattern[str]:
    """Compile a pattern, or a list of alternatives as one."""
    return re.compile(patterns if isinstance(patterns, str) else "|".join(patterns), flags)
