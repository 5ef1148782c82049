"""Reports and warnings on their way between two processes."""

from __future__ import annotations

import json
import warnings

from hypothesis import given
from hypothesis import strategies as st

from oomdoctor.pytest_plugin.protocol import GpuMemoryWarning, pack, pack_warning, unpack, unpack_warning

_PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(st.text(), inner, max_size=4)
    ),
    max_leaves=20,
)


@given(_PLAIN)
def test_plain_data_comes_back_as_it_was(value: object) -> None:
    """Whatever a report holds comes back equal through JSON, tuples as tuples and lists as lists."""
    back = unpack(json.loads(json.dumps(pack(value))))
    assert back == value
    assert repr(back) == repr(value)


def test_what_no_format_holds_is_its_text() -> None:
    """An object that a plugin adds to a report arrives as its text."""
    assert unpack(json.loads(json.dumps(pack({"path": object, "set": {1}})))) == {"path": str(object), "set": "{1}"}


def test_dictionary_that_looks_like_a_tuple_comes_back() -> None:
    """A dictionary whose key is the mark of a tuple comes back as the dictionary that it is."""
    for value in ({"__tuple__": [1, 2]}, {"__dictionary__": {"a": (1,)}}, {"__tuple__": 1, "other": {"__tuple__": 5}}):
        assert unpack(json.loads(json.dumps(pack(value)))) == value


def _sent(category: type[Warning]) -> warnings.WarningMessage:
    message = warnings.WarningMessage(category("careful"), category, "test_it.py", 7)
    return unpack_warning(json.loads(json.dumps(pack_warning(message))))


def test_warning_keeps_its_kind_and_place() -> None:
    """A warning keeps its text, its kind, its file and its line."""
    for category in (DeprecationWarning, GpuMemoryWarning):
        found = _sent(category)
        assert (str(found.message), found.category) == ("careful", category)
        assert (found.filename, found.lineno) == ("test_it.py", 7)


def test_warning_of_an_unknown_kind_is_a_users_warning() -> None:
    """A kind that the receiving process has not loaded becomes `UserWarning`."""
    unknown = type("Unknown", (Warning,), {"__module__": "nowhere"})
    assert _sent(unknown).category is UserWarning
