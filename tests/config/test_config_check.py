"""What is asked of each entry of a check, who says so, and what is refused before anything runs."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from oomdoctor.config.check import CheckConfiguration, configure_check
from oomdoctor.config.lint import configure_lint
from oomdoctor.config.schema import CheckEntry, CheckKeys, LintTable
from oomdoctor.errors import UsageError

DEFAULTS = CheckEntry(world_size=1, precision="fp32", tolerance=0.02, baseline=False)
ENTRY = '[[check]]\nname = "pretrain"\ntarget = "model.py"\n'


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory: an empty repository."""
    (tmp_path / ".git").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def configured(text: str, command_line: CheckKeys | None = None, **environment: str) -> CheckConfiguration:
    """What holds with this `oomdoctor.toml`, command line and environment."""
    Path("oomdoctor.toml").write_text(text)
    return configure_check(command_line or CheckKeys(), environment, config=None, defaults=DEFAULTS)


def refused(text: str, command_line: CheckKeys | None = None, **environment: str) -> UsageError:
    """Why that cannot be."""
    with pytest.raises(UsageError) as caught:
        configured(text, command_line, **environment)
    return caught.value


# --- who says what ---------------------------------------------------------------------------------------------------


def test_the_strongest_source_wins_and_each_is_named() -> None:
    """The command line comes before both kinds of variables, they before the entry, and that before the file's top."""
    found = configured(
        'world-size = 2\ntolerance = "9%"\noptimizer = "SGD"\nmemory = "1GiB"\nprecision = "bf16"\ntrial-timeout = 9\n'
        + ENTRY
        + 'tolerance = "8%"\noptimizer = "Adam"\nmemory = "2GiB"\nprecision = "fp16"\n',
        CheckKeys(tolerance="5%"),
        OOMDOCTOR_CHECK_TOLERANCE="6%",
        OOMDOCTOR_CHECK_OPTIMIZER="Adagrad",
        OOMDOCTOR_OPTIMIZER="RMSprop",
        OOMDOCTOR_MEMORY="3GiB",
    )
    assert list(found.lines()) == [
        "configuration: oomdoctor.toml",
        "pretrain:",
        '  memory = "3GiB"  (from OOMDOCTOR_MEMORY)',
        "  world-size = 2  (from the top of oomdoctor.toml)",
        '  precision = "fp16"  (from oomdoctor.toml)',
        '  optimizer = "Adagrad"  (from OOMDOCTOR_CHECK_OPTIMIZER)',
        "  baseline = false  (default)",
        '  tolerance = "5%"  (from the command line)',
        "  trial-timeout = 9.0  (from the top of oomdoctor.toml)",
        '  name = "pretrain"  (from oomdoctor.toml)',
        '  target = "model.py"  (from oomdoctor.toml)',
    ]


@pytest.mark.parametrize(
    ("top", "entry", "command_line", "expected"),
    [
        ('gpus = ["t4", "l40s"]', 'gpu = "a10g"', CheckKeys(), ("a10g", None)),
        ('gpu = "t4"', 'gpus = ["l40s"]', CheckKeys(), (None, ("l40s",))),
        ('gpu = "t4"', 'gpu = "l40s"', CheckKeys(gpus=("h200",)), (None, ("h200",))),
        ('gpus = ["t4"]', "", CheckKeys(), (None, ("t4",))),
    ],
)
def test_whoever_names_a_card_first_names_them_all(
    top: str, entry: str, command_line: CheckKeys, expected: tuple[str | None, tuple[str, ...] | None]
) -> None:
    """One card in an entry hides several at the top, and the other way round."""
    values = configured(f"{top}\n{ENTRY}{entry}", command_line).entries[0].settled.values
    assert (values.gpu, values.gpus) == expected


def test_targets_start_at_the_file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Targets are relative to the configuration's folder, from wherever the command runs, and with `--config` too."""
    (folder / "a").mkdir()
    (folder / "a/strict.toml").write_text(ENTRY)
    (folder / "oomdoctor.toml").write_text(ENTRY)
    monkeypatch.chdir(folder / "a")
    found = configure_check(CheckKeys(), {}, config=None, defaults=DEFAULTS)
    assert (found.file, found.folder.resolve()) == ("../oomdoctor.toml", folder.resolve())
    monkeypatch.chdir(folder)
    named = configure_check(CheckKeys(), {"OOMDOCTOR_CONFIG": "a/strict.toml"}, config=None, defaults=DEFAULTS)
    assert (named.file, named.folder) == ("a/strict.toml", folder / "a")


def test_lint_minds_none_of_it() -> None:
    """A file with all that check knows is a file that lint reads, and the other way round."""
    text = 'gpu = "t4"\njobs = 2\nselect = ["OOM1"]\n' + ENTRY + 'gpus = ["t4"]\n[lint]\nfail-on = "error"\n'
    assert configured(text).jobs == 2
    found = configure_lint(LintTable(), {"OOMDOCTOR_GPU": "t4", "OOMDOCTOR_CHECK_GPU": "t4"})
    assert found.settled.values.select == ("OOM1",)


def test_variables_of_others_are_left_alone() -> None:
    """What only begins like one of our variables is nobody's mistake."""
    others = dict.fromkeys(
        ("OOMDOCTOR_LINT_SELECT", "OOMDOCTOR_NULL_NAME", "OOMDOCTOR_TEST_PYTHONS", "OOMDOCTOR_CACHE_DIR"), "x"
    )
    more = dict.fromkeys(
        ("OOMDOCTOR_RUN_MEMORY_BYTES", "OOMDOCTOR_GPU_MEMORY_LIMIT", "OOMDOCTOR_NULL_TOTAL_BYTES"), "x"
    )
    assert configured(ENTRY, **others, **more).entries[0].name == "pretrain"


def test_an_entry_without_a_name_is_called_as_its_target() -> None:
    """The target is the name then, and a note says so."""
    found = configured('[[check]]\ntarget = " model.py:build(depth=2) "\n')
    assert found.entries[0].name == "model.py:build(depth=2)"
    assert found.notes[1] == "an entry without a name is called as its target, `model.py:build(depth=2)`"


# --- what is refused -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("", "`oomdoctor.toml` has no `[[check]]`, and so nothing to check", '[[check]]\nname = "pretrain"\n'),
        (ENTRY + "gpuu = 3", "unknown key `gpuu` in `[check.pretrain]` of `oomdoctor.toml`", "did you mean `gpu`?"),
        ("gpuu = 3\n" + ENTRY, "unknown key `gpuu` in `oomdoctor.toml`", "did you mean `gpu`?"),
        ("target = 'x'\n" + ENTRY, "unknown key `target` in `oomdoctor.toml`", "`target` belongs in `[[check]]`"),
        (
            ENTRY + "jobs = 2",
            "unknown key `jobs` in `[check.pretrain]` of `oomdoctor.toml`",
            "known are `gpu`, `gpus`, `memory`",
        ),
        (
            ENTRY + "headroom = true",
            "`check.pretrain.headroom` in `oomdoctor.toml` is `true`, not a number or a string",
            'for example `headroom = "5%"`',
        ),
        (
            ENTRY + 'min-micro-batch = "8"',
            '`check.pretrain.min-micro-batch` in `oomdoctor.toml` is `"8"`, not an integer',
            "for example `min-micro-batch = 8`",
        ),
        (
            '[check]\ntarget = "model.py"',
            "`check` in `oomdoctor.toml` is a table, not a list of tables",
            "write `[[check]]`, with two brackets",
        ),
        ('[[check]]\nname = "a"', "`[[check]]` 1 of `oomdoctor.toml`, called `a`, has no `target`", "for example"),
        ('[[check]]\ntarget = " "', "`[[check]]` 1 of `oomdoctor.toml` has no `target`", "for example"),
        (ENTRY + ENTRY, "two entries of `oomdoctor.toml` are called `pretrain`", "a `name` of its own"),
        (
            '[[check]]\ntarget = "x"\nname = "a\\nb"',
            "`[[check]]` 1 of `oomdoctor.toml` needs another `name`",
            "one line of at most 200 characters",
        ),
        (
            'gpu = "t4"\ngpus = ["t4"]\n' + ENTRY,
            "`gpu` and `gpus` exclude each other, and both come from the top of oomdoctor.toml",
            "keep one",
        ),
        ("jobs = 0\n" + ENTRY, "`jobs` is 0, not 1 or more, and comes from the top of oomdoctor.toml", ""),
    ],
)
def test_what_cannot_be_is_named(text: str, message: str, hint: str) -> None:
    """The message has the file, the entry and the key, and the hint what to write instead."""
    error = refused(text)
    assert error.message == message
    assert hint in (error.hint or "")


def test_without_a_file_there_is_something_to_add() -> None:
    """Where there is no configuration at all the hint has the lines of a first entry, for `pyproject.toml`."""
    with pytest.raises(UsageError, match="there is no configuration here") as caught:
        configure_check(CheckKeys(), {}, config=None, defaults=DEFAULTS)
    lines = (caught.value.hint or "").split("\n\n")[1]
    Path("pyproject.toml").write_text(lines)
    assert configure_check(CheckKeys(), {}, config=None, defaults=DEFAULTS).entries[0].name == "pretrain"


@pytest.mark.parametrize(
    ("variable", "value", "message", "hint"),
    [
        ("OOMDOCTOR_CHECK_GPUU", "x", "unknown variable `OOMDOCTOR_CHECK_GPUU`", "`OOMDOCTOR_CHECK_GPU`"),
        ("OOMDOCTOR_CHECK_TARGET", "x", "unknown variable `OOMDOCTOR_CHECK_TARGET`", "OOMDOCTOR_CHECK_TARGET_BATCH"),
        ("OOMDOCTOR_TOLERANC", "x", "unknown variable `OOMDOCTOR_TOLERANC`", "`OOMDOCTOR_TOLERANCE`"),
        ("OOMDOCTOR_TARGETBATCH", "8", "unknown variable `OOMDOCTOR_TARGETBATCH`", "`OOMDOCTOR_TARGET_BATCH`"),
        ("OOMDOCTOR_JOBS", "many", '`OOMDOCTOR_JOBS` in the environment is `"many"`, not an integer', "jobs = 2"),
        ("OOMDOCTOR_PRECISION", "fp8", '`OOMDOCTOR_PRECISION` in the environment is `"fp8"`, not one of', "bf16"),
    ],
)
def test_a_wrong_variable_is_named(variable: str, value: str, message: str, hint: str) -> None:
    """A slip in a name, and a value of a wrong form, are errors that name the variable."""
    error = refused(ENTRY, **{variable: value})
    assert error.message.startswith(message)
    assert hint in (error.hint or "")


_texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=200)
@given(name=_texts, target=_texts)
def test_any_name_is_taken_or_refused(name: str, target: str) -> None:
    """Whatever stands there, an entry has a name that fits one line of a report, or the configuration is refused."""
    try:
        (entry,) = configured(f"[[check]]\nname = {toml(name)}\ntarget = {toml(target)}\n").entries
    except UsageError as error:
        is_named = "oomdoctor.toml" in error.message
    else:
        is_named = entry.name == name == name.strip() != "" and name.isprintable()
    assert is_named


def toml(text: str) -> str:
    """A text as a TOML string."""
    letters = "".join(rf"\U{ord(letter):08x}" for letter in text)
    return f'"{letters}"'
