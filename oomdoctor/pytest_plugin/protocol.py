"""Messages between the session that people started and the session on a null GPU."""

from __future__ import annotations

import builtins
import sys
import warnings
from typing import Any, Final

import pytest

IN_CHILD: Final = pytest.StashKey[bool]()
"""In the configuration of a session on a null GPU."""

PEAK: Final = "gpu_memory_peak_bytes"
LIMIT: Final = "gpu_memory_limit_bytes"
DEVICE: Final = "gpu_memory_device"
"""Names of what is measured among a report's `user_properties`, which JUnit files show too."""


class GpuMemoryWarning(pytest.PytestWarning):
    """A test asks for a limit and cannot be held to it."""


def key_of(item: pytest.Item) -> str:
    """Return a name of a test that is the same in both sessions; xdist adds groups to `nodeid`."""
    return item.nodeid if item.parent is None else f"{item.parent.nodeid}::{item.name}"


_TUPLE: Final = "__tuple__"
_DICTIONARY: Final = "__dictionary__"


def pack(value: object) -> Any:  # noqa: ANN401 - plain data of any shape
    """Return plain data as JSON can hold it; what is not plain, such as what a plugin adds to a report, is its text."""
    if value is None or type(value) in {bool, int, float, str}:
        return value
    if isinstance(value, dict):
        packed = {str(key): pack(item) for key, item in value.items()}
        # A dictionary that would be taken for something else is marked.
        return {_DICTIONARY: packed} if packed.keys() in ({_TUPLE}, {_DICTIONARY}) else packed
    if isinstance(value, list):
        return [pack(item) for item in value]
    if isinstance(value, tuple):
        return {_TUPLE: [pack(item) for item in value]}
    return str(value)


def unpack(value: Any) -> Any:  # noqa: ANN401 - as above
    """Return the data that `pack` was given."""
    if isinstance(value, list):
        return [unpack(item) for item in value]
    if not isinstance(value, dict):
        return value
    if value.keys() == {_TUPLE}:
        return tuple(unpack(item) for item in value[_TUPLE])
    plain = value[_DICTIONARY] if value.keys() == {_DICTIONARY} else value
    return {key: unpack(item) for key, item in plain.items()}


def pack_warning(message: warnings.WarningMessage) -> dict[str, Any]:
    """Return a warning that pytest recorded."""
    category = message.category
    return {
        "text": str(message.message),
        "module": category.__module__,
        "category": category.__qualname__,
        "filename": message.filename,
        "lineno": message.lineno,
    }


def unpack_warning(data: dict[str, Any]) -> warnings.WarningMessage:
    """Return the warning again, of its own kind where that is known here."""
    module = sys.modules.get(data["module"], builtins)
    category = getattr(module, data["category"], None)
    if not (isinstance(category, type) and issubclass(category, Warning)):
        category = UserWarning
    # A kind of warning may want other arguments than a text.
    return warnings.WarningMessage(UserWarning(data["text"]), category, data["filename"], data["lineno"])
