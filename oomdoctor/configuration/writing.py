"""Values and keys as TOML writes them, for messages and for `--verbose`."""

from __future__ import annotations

import json


def dotted(keys: tuple[str | int, ...]) -> str:
    """Keys from table to table, bare where TOML allows that and quoted elsewhere; indexes stand in brackets."""
    parts = [f"[{key}]" if isinstance(key, int) else f".{_key(key)}" for key in keys]
    return "".join(parts).removeprefix(".")


def toml_value(value: object) -> str:
    """A value on one line; a tuple is a list and a dict an inline table."""
    if isinstance(value, tuple):
        return f"[{', '.join(toml_value(item) for item in value)}]"
    if isinstance(value, dict):
        inner = ", ".join(f"{_key(key)} = {toml_value(item)}" for key, item in value.items())
        return f"{{ {inner} }}" if inner else "{}"
    # JSON leaves the one control character as it is that TOML does not take.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _key(key: str) -> str:
    is_bare = key.isascii() and key.replace("-", "").replace("_", "").isalnum()
    return key if is_bare else toml_value(key)
