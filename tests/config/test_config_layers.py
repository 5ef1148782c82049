"""What holds where several sources say something, and where it came from."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oomdoctor.config.files import ConfigurationFile
from oomdoctor.config.layers import Layer, pairs, read_environment, settle
from oomdoctor.config.lint import DEFAULTS, file_layer
from oomdoctor.config.schema import Configuration, LintTable
from oomdoctor.errors import UsageError


@dataclass(frozen=True)
class Table:
    """One key of every type that a variable can give."""

    gpu: str | None = None
    strict: bool | None = None
    steps: int | None = None
    tolerance: float | None = None
    engine: Literal["auto", "null"] | None = None
    cards: tuple[str, ...] | None = None
    globs: dict[str, tuple[str, ...]] | None = None


def environment(**variables: str) -> Layer[Table]:
    """What these variables say of a table `check`."""
    return read_environment(Table, "check", variables)


def test_the_first_layer_wins_and_origins_are_kept() -> None:
    """For each key the strongest source that says something counts, and is named."""
    command_line = Layer.of(LintTable(select=("OOM1",)), "the command line")
    file = Layer.of(LintTable(select=("OOM2",), exclude=("a b",), fail_on="error"), "pyproject.toml")
    variables = Layer.of(LintTable(fail_on="note"), "OOMDOCTOR_LINT_FAIL_ON")
    settled = settle([command_line, variables, file], DEFAULTS)
    assert settled.values == LintTable(("OOM1",), (), (), {}, ("a b",), "note")
    assert settled.lines() == [
        'select = ["OOM1"]  (from the command line)',
        "ignore = []  (default)",
        "extend-select = []  (default)",
        "per-file-ignores = {}  (default)",
        'exclude = ["a b"]  (from pyproject.toml)',
        'fail-on = "note"  (from OOMDOCTOR_LINT_FAIL_ON)',
    ]


def test_an_empty_value_is_a_value() -> None:
    """A list that was given empty hides the one below it; None does not."""
    settled = settle([Layer.of(LintTable(ignore=()), "a"), Layer.of(LintTable(ignore=("OOM1",)), "b")], DEFAULTS)
    assert (settled.values.ignore, settled.origins["ignore"]) == ((), "a")


@given(
    st.builds(
        LintTable,
        st.lists(st.text()).map(tuple),
        per_file_ignores=st.dictionaries(st.text(), st.lists(st.text()).map(tuple)),
    )
)
def test_lines_are_toml(table: LintTable) -> None:
    """What `--verbose` shows can be put into a file."""
    lines = settle([Layer.of(table, "x")], DEFAULTS).lines()
    data = tomllib.loads("\n".join(line.rpartition("  (")[0] for line in lines))
    assert data["select"] == list(table.select or ())
    assert data["per-file-ignores"] == {key: list(value) for key, value in (table.per_file_ignores or {}).items()}


# --- the environment -------------------------------------------------------------------------------------------------


def test_variables_of_every_type() -> None:
    """Each type has a form in one variable, and variables of others are left alone."""
    found = environment(
        OOMDOCTOR_CHECK_GPU=" rtx-4090 ",
        OOMDOCTOR_CHECK_STRICT="Yes",
        OOMDOCTOR_CHECK_STEPS="8",
        OOMDOCTOR_CHECK_TOLERANCE="0.05",
        OOMDOCTOR_CHECK_ENGINE="null",
        OOMDOCTOR_CHECK_CARDS="a, b c,,",
        OOMDOCTOR_CHECK_GLOBS="tests/**:OOM1,tests/**:OOM2, C:/x:OOM3",
        OOMDOCTOR_NULL_NAME="x",
        PATH="/bin",
    )
    assert found.values == Table(
        "rtx-4090",
        strict=True,
        steps=8,
        tolerance=0.05,
        engine="null",
        cards=("a", "b c"),
        globs={"tests/**": ("OOM1", "OOM2"), "C:/x": ("OOM3",)},
    )
    assert found.origins["cards"] == "OOMDOCTOR_CHECK_CARDS"


def test_an_empty_variable_says_nothing() -> None:
    """`OOMDOCTOR_CHECK_GPU=` is as if it were not set."""
    assert environment(OOMDOCTOR_CHECK_GPU="", OOMDOCTOR_CHECK_GPUS=" ") == Layer(Table(), {})


@pytest.mark.parametrize(
    ("name", "value", "message", "hint"),
    [
        ("STEPS", "many", '`OOMDOCTOR_CHECK_STEPS` in the environment is `"many"`, not an integer', None),
        ("STRICT", "maybe", '`OOMDOCTOR_CHECK_STRICT` in the environment is `"maybe"`, not true or false', None),
        ("ENGINE", "nul", '`OOMDOCTOR_CHECK_ENGINE` in the environment is `"nul"`, not one of `auto`, `null`', None),
        ("GLOBS", "OOM1", "`OOMDOCTOR_CHECK_GLOBS` takes pairs of a pattern and a code, and not `OOM1`", "tests/**"),
        ("GLOBS", ":OOM1", "`OOMDOCTOR_CHECK_GLOBS` takes pairs of a pattern and a code, and not `:OOM1`", "tests/**"),
        ("CARD", "x", "unknown variable `OOMDOCTOR_CHECK_CARD` in the environment", "OOMDOCTOR_CHECK_CARDS"),
        (
            "QQQ",
            "x",
            "unknown variable `OOMDOCTOR_CHECK_QQQ` in the environment",
            "known are `OOMDOCTOR_CHECK_` and one of GPU,",
        ),
    ],
)
def test_a_wrong_variable_is_named(name: str, value: str, message: str, hint: str | None) -> None:
    """The message has the variable and what it should be."""
    with pytest.raises(UsageError) as caught:
        environment(**{f"OOMDOCTOR_CHECK_{name}": value})
    assert caught.value.message == message
    assert (hint or "") in (caught.value.hint or "")


def test_pairs_of_nothing_are_nothing() -> None:
    """Commas alone name no pair."""
    assert pairs(" , ,", "--per-file-ignores") == {}


# --- the file --------------------------------------------------------------------------------------------------------


def test_rules_may_be_chosen_at_the_top() -> None:
    """What chooses rules counts at the top of the file as it does in `[lint]`."""
    above = Configuration(select=("OOM1",), per_file_ignores={"tests/**": ("OOM101",)}, lint=LintTable(fail_on="error"))
    layer = file_layer(ConfigurationFile("x.toml", Path(), above))
    assert layer.values == LintTable(select=("OOM1",), per_file_ignores={"tests/**": ("OOM101",)}, fail_on="error")
    assert layer.origins == dict.fromkeys(("select", "per_file_ignores", "fail_on"), "x.toml")


def test_a_key_in_two_places_is_refused() -> None:
    """The same key at the top and in `[lint]` is a contradiction, even where one is empty."""
    both = Configuration(extend_select=("OOM1",), lint=LintTable(extend_select=()))
    with pytest.raises(UsageError, match=r"`x.toml` has `extend-select` twice: in `\[lint\]` and above it"):
        file_layer(ConfigurationFile("x.toml", Path(), both))
