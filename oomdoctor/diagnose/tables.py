"""Tables of patterns and texts, which lie as TOML beside the modules that read them."""

from __future__ import annotations

import re
import tomllib
from functools import cache
from pathlib import Path
from typing import Any, Final

_FORM: Final = re.compile(r"\{([a-z_]+)\}")  # and no count of repetitions


def read_table(module_file: str) -> dict[str, Any]:
    """Read the table of a module, such as `phases.toml` for `phases.py`.

    Args:
        module_file: The module's `__file__`.
    """
    return tomllib.loads(Path(module_file).with_suffix(".toml").read_text(encoding="utf-8"))


@cache
def _text_patterns() -> dict[str, Any]:
    return tomllib.loads((Path(__file__).parent / "text" / "patterns.toml").read_text(encoding="utf-8"))


class Patterns:
    """Expressions that `text/patterns.toml` has for a module.

    Args:
        module: The module's `__name__`, whose last part names the table.
        forms: Expressions besides the table's own forms.

    Attributes:
        table: The table as it was read.
    """

    def __init__(self, module: str, **forms: str) -> None:
        self.table: dict[str, Any] = _text_patterns()[module.rpartition(".")[2]]
        self._forms = {**self.table.get("forms", {}), **forms}

    def __call__(self, name: str, flags: re.RegexFlag = re.NOFLAG) -> re.Pattern[str]:
        """Compile the expression of a name; of several alternatives, all as one."""
        return re.compile(self.filled(self.table[name]), flags)

    def filled(self, patterns: str | list[str]) -> str:
        """Return an expression, or alternatives as one, with the table's forms in the place of their names."""
        text = _alternatives(patterns)
        while _FORM.search(text):
            text = _FORM.sub(lambda name: _alternatives(self._forms[name[1]]), text)
        return text


def compiled(patterns: str | list[str], flags: re.RegexFlag = re.NOFLAG) -> re.Pattern[str]:
    """Compile a pattern, or a list of alternatives as one."""
    return re.compile(_alternatives(patterns), flags)


def _alternatives(patterns: str | list[str]) -> str:
    return patterns if isinstance(patterns, str) else "|".join(patterns)
