"""A table against its schema: every type is read, and whatever does not fit is named with its file and key."""

from __future__ import annotations

import datetime as dt
import tomllib
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oomdoctor.config.decoding import TomlDecoder, dotted
from oomdoctor.config.schema import Configuration
from oomdoctor.errors import UsageError


@dataclass(frozen=True)
class Check:
    """A table of which there may be many, with a key that must be there."""

    target: str
    target_batch: int | None = None
    tolerance: float | None = None


@dataclass(frozen=True)
class Schema:
    """One key of every type."""

    gpu: str | None = None
    strict: bool | None = None
    world_size: int | None = None
    tolerance: float | None = field(default=None, metadata={"example": "0.05"})
    engine: Literal["auto", "null"] | None = None
    cards: tuple[str, ...] | None = None
    sizes: dict[str, tuple[int, ...]] | None = None
    check: tuple[Check, ...] = ()


def read(text: str, schema: type = Schema) -> Any:
    """A schema out of the text of an `oomdoctor.toml`."""
    return TomlDecoder("`x.toml`", schema).table(schema, tomllib.loads(text), ())


def test_every_type_is_read() -> None:
    """Strings, numbers, booleans, choices, lists, free keys and lists of tables come out as the schema has them."""
    found = read("""
        gpu = "rtx-4090"
        strict = true
        world-size = 8
        tolerance = 1
        engine = "null"
        cards = ["a", "b"]
        sizes = { "x y" = [1, 2] }
        [[check]]
        target = "model.py"
        [[check]]
        target = "other.py"
        target-batch = 256
        tolerance = 0.05
    """)
    assert found == Schema(
        "rtx-4090",
        strict=True,
        world_size=8,
        tolerance=1.0,
        engine="null",
        cards=("a", "b"),
        sizes={"x y": (1, 2)},
        check=(Check("model.py"), Check("other.py", 256, 0.05)),
    )
    assert isinstance(found.tolerance, float)
    assert read("") == Schema()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("gpu = 3", "`gpu` in `x.toml` is `3`, not a string"),
        ("strict = 1", "`strict` in `x.toml` is `1`, not true or false"),
        ("world-size = true", "`world-size` in `x.toml` is `true`, not an integer"),
        ("world-size = 1.5", "`world-size` in `x.toml` is `1.5`, not an integer"),
        ("tolerance = '5%'", '`tolerance` in `x.toml` is `"5%"`, not a number'),
        ("engine = 'nul'", '`engine` in `x.toml` is `"nul"`, not one of `auto`, `null`'),
        ("engine = []", "`engine` in `x.toml` is a list, not one of `auto`, `null`"),
        ("cards = 'a'", '`cards` in `x.toml` is `"a"`, not a list of strings'),
        ("cards = ['a', 2]", "`cards[1]` in `x.toml` is `2`, not a string"),
        ("cards = 1979-05-27", "`cards` in `x.toml` is a date or a time, not a list of strings"),
        ("sizes = []", "`sizes` in `x.toml` is a list, not a table"),
        ("sizes.'x y' = [1, 'b']", '`sizes."x y"[1]` in `x.toml` is `"b"`, not an integer'),
        ("check = {}", "`check` in `x.toml` is a table, not a list of tables"),
        ("check = [1]", "`check[0]` in `x.toml` is `1`, not a table"),
        ("[[check]]", "`target` is missing in `[check[0]]` of `x.toml`"),
        ("[[check]]\ntarget = ''\ntarget_batch = 2", "unknown key `target_batch` in `[check[0]]` of `x.toml`"),
        ("gpus = 'x'", "unknown key `gpus` in `x.toml`"),
        ("'a b' = 1", 'unknown key `"a b"` in `x.toml`'),
        (f"gpu = [1]\nx = '{'y' * 99}'", "`gpu` in `x.toml` is a list, not a string"),
        (f"strict = '{'y' * 99}'", f'`strict` in `x.toml` is `"{"y" * 59}...`, not true or false'),
    ],
)
def test_what_does_not_fit_is_named(text: str, message: str) -> None:
    """The message says which key of which file has what, and what it should be."""
    with pytest.raises(UsageError) as caught:
        read(text)
    assert caught.value.message == message


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("gpus = 'x'", "did you mean `gpu`?"),
        ("world_size = 2", "did you mean `world-size`?"),
        ("target = 'model.py'", "`target` belongs in `[[check]]`"),
        ("zzz = 1", "known are `gpu`, `strict`, `world-size`, `tolerance`, `engine`, `cards`, `sizes`, `check`"),
        ("tolerance = 'x'", "for example `tolerance = 0.05`"),
        ("[tool.oomdoctor]", "tables stand at the top level of this file: `[lint]`, not `[tool.oomdoctor.lint]`"),
    ],
)
def test_the_hint_says_what_to_write(text: str, hint: str) -> None:
    """An unknown key gets the nearest, or its own table, or all keys; a wrong value an example."""
    with pytest.raises(UsageError) as caught:
        read(text)
    assert caught.value.hint == hint


def test_a_key_that_is_like_none_is_answered_with_all() -> None:
    """`models` is not taken for `mesh`: whoever guessed a table's name sees `check` among those that there are."""
    with pytest.raises(UsageError, match="unknown key `models`") as caught:
        read("[[models]]\nname = 'x'")
    assert str(caught.value.hint).startswith("known are ")
    assert "`check`" in str(caught.value.hint)


def test_a_key_in_the_wrong_table_of_pyproject_is_sent_to_its_own() -> None:
    """The table is named as `pyproject.toml` has it."""
    top = ("tool", "oomdoctor")
    decoder = TomlDecoder("`pyproject.toml`", Configuration, top)
    with pytest.raises(UsageError, match="unknown key `fail-on`") as caught:
        decoder.table(Configuration, {"fail-on": "error"}, top)
    assert caught.value.message == "unknown key `fail-on` in `[tool.oomdoctor]` of `pyproject.toml`"
    assert caught.value.hint == "`fail-on` belongs in `[tool.oomdoctor.lint]`"


_keys = st.sampled_from(["lint", "select", "ignore", "exclude", "fail-on", "per-file-ignores", "tool"]) | st.text(
    max_size=3
)
_values: st.SearchStrategy[object] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.dates() | st.just(dt.time()),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_keys, inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(_keys, _values, max_size=4))
def test_anything_else_is_a_usage_error(data: dict[str, object]) -> None:
    """Whatever TOML may hold is either read or refused, and nothing else happens."""
    decoder = TomlDecoder("`x.toml`", Configuration)
    with suppress(UsageError):
        assert isinstance(decoder.table(Configuration, data, ()), Configuration)


@given(st.lists(st.text(min_size=1, max_size=6), min_size=1, max_size=3))
def test_keys_are_shown_as_toml_reads_them(keys: list[str]) -> None:
    """A dotted key that a message shows leads a TOML parser to the same place."""
    found: Any = tomllib.loads(f"{dotted(tuple(keys))} = 1")
    for key in keys:
        found = found[key]
    assert found == 1
