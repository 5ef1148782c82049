"""The baseline file: the same bytes for the same figures, one line a figure, and read strictly."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sample_figures import FIGURES, MEMORY, MIB, any_baseline, figures

from oomdoctor.check.baseline.figures import Baseline
from oomdoctor.check.baseline.file import ParsingError, parse, read_baseline, write_baseline
from oomdoctor.errors import UsageError
from oomdoctor.results import Category

BASELINE = Baseline({"pretrain": FIGURES})


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where the baseline is written."""
    return tmp_path / "oomdoctor-baseline.json"


@pytest.fixture
def text(path: Path) -> str:
    """What a sound baseline of one entry looks like."""
    write_baseline(path, BASELINE)
    return path.read_text(encoding="utf-8")


def refusal(path: Path, text: str) -> UsageError:
    """The error that reading a text gives."""
    path.write_bytes(text.encode())
    with pytest.raises(UsageError) as caught:
        read_baseline(path)
    return caught.value


def line_of(text: str, part: str) -> int:
    """The line on which a part of a text first stands."""
    return text[: text.index(part)].count("\n") + 1


@given(any_baseline)
@settings(max_examples=60, deadline=None)
def test_what_is_written_is_read_again(baseline: Baseline) -> None:
    """Any baseline comes back as it was, and written again it has the same bytes."""
    with TemporaryDirectory() as folder:
        first, second = Path(folder) / "first.json", Path(folder) / "second.json"
        write_baseline(first, baseline)
        found = read_baseline(first)
        assert found == baseline
        write_baseline(second, found)
        assert second.read_bytes() == first.read_bytes()


def test_the_order_of_figures_does_not_matter(path: Path, text: str) -> None:
    """Figures that were found in another order give the same bytes."""
    turned = figures(
        phases=dict(reversed(MEMORY.phases.items())),
        categories=dict(reversed(MEMORY.categories.items())),
        modules={category: dict(reversed(rows.items())) for category, rows in reversed(MEMORY.modules.items())},
    )
    write_baseline(path, Baseline({"pretrain": turned}))
    assert path.read_text(encoding="utf-8") == text


def test_a_figure_that_moves_changes_one_line(path: Path, text: str) -> None:
    """A diff of two baselines has a line for each figure that moved, and no others."""
    categories = {**MEMORY.categories, Category.ACTIVATIONS: 1412 * MIB}
    write_baseline(path, Baseline({"pretrain": figures(categories=categories)}))
    before, after = text.splitlines(), path.read_text(encoding="utf-8").splitlines()
    assert len(before) == len(after)
    moved = [new for old, new in zip(before, after, strict=True) if old != new]
    assert moved == [f'          "activations": {1412 * MIB},']


def test_no_line_has_more_than_one_figure(text: str) -> None:
    """Each line is a key with a whole number, a text or null, or a bracket; there is no decimal and no list."""
    for line in text.splitlines():
        key, _, value = line.strip().rpartition('": ')
        value = value.removesuffix(",")
        assert value in {"{", "}", "null"} or value.isdecimal() or value[0] == value[-1] == '"', line
        assert key.count('"') <= 1


def test_entries_are_sorted_by_name(path: Path) -> None:
    """Two entries stand in the order of their names, whatever the configuration's order was."""
    write_baseline(path, Baseline({"b": FIGURES, "a": FIGURES}))
    assert list(json.loads(path.read_text(encoding="utf-8"))["entries"]) == ["a", "b"]


def test_a_baseline_is_replaced_and_not_written_over(path: Path, text: str) -> None:
    """Whoever has the old file open, under another name as well, keeps reading the old one."""
    other = path.with_name("linked.json")
    other.hardlink_to(path)
    write_baseline(path, Baseline({}))
    assert other.read_text(encoding="utf-8") == text != path.read_text(encoding="utf-8")


def test_a_failed_write_leaves_the_old_file(path: Path, text: str) -> None:
    """Where the new file cannot be put together the old one stays as it is, and nothing is left beside it."""
    with pytest.raises(AttributeError):
        write_baseline(path, Baseline({"pretrain": FIGURES, "broken": None}))  # type: ignore[dict-item]
    assert path.read_text(encoding="utf-8") == text
    assert [one.name for one in path.parent.iterdir()] == [path.name]


# --- what is refused -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ('"maximum": 12', '"maximum": "12"', "`maximum` is a text, not a whole number"),
        ('"maximum": 12', '"maximum": -1', "`maximum` is not between 0 and"),
        ('"maximum": 12', f'"maximum": {2**63}', "`maximum` is not between 0 and"),
        ('"maximum": 12', '"maximum": null', "`maximum` is `null`, not a whole number"),
        ('"maximum": 12', '"maximum": {}', "`maximum` is an object, not a whole number"),
        ('"card": "NVIDIA', '"card": 4, "other": "', "`card` is a number, not a text"),
        ('"limited_by": "memory"', '"limited_by": "magic"', "`limited_by` is `magic`, not one of"),
        ('"maximum": 12', '"maximum": 12, "minimum": 3', "unknown key `minimum` in `micro_batch`"),
        ('"micro_steps": 2', '"micro_step": 2', "unknown key `micro_step`"),
        ('"input": 512,\n', '"snacks": 512,\n', "unknown key `snacks` in `categories`"),
        ('"schema_version": 1', '"schema_version": "1"', "`schema_version` is a text"),
    ],
)
def test_wrong_values_are_refused_with_their_line(path: Path, text: str, old: str, new: str, problem: str) -> None:
    """A value of another kind, and a key that no baseline has, are named with the line that they stand on."""
    error = refusal(path, text.replace(old, new, 1))
    if "micro_step`" not in problem:  # of two faults in one object either may be named
        assert problem in error.message
        assert f", line {line_of(text, old)}: " in error.message
    assert error.exit_code == 2
    assert "oomdoctor check --update" in (error.hint or "")


@pytest.mark.parametrize("key", ["maximum", "card", "phases", "peak_reserved_bytes", "memory", "limited_by"])
def test_a_missing_figure_is_named(path: Path, text: str, key: str) -> None:
    """A figure that is not there is named, with the line of the object that lacks it."""
    data = json.loads(text)
    entry = data["entries"]["pretrain"]
    holder = next(part for part in (entry, *filter(None, entry.values())) if key in part)
    del holder[key]
    assert f"`{key}` is missing in `" in refusal(path, json.dumps(data, indent=2, sort_keys=True)).message


def test_a_key_that_stands_twice_is_refused(path: Path, text: str) -> None:
    """Of two equal keys neither is preferred: a merge that kept both sides is an error that names both lines."""
    line = next(line for line in text.splitlines() if '"maximum": 12' in line)
    error = refusal(path, text.replace(line, f"{line.replace('12', '13')},\n{line}"))
    at = line_of(text, line)
    assert f"line {at + 1}: `maximum` stands there again, after line {at}" in error.message


def test_another_schema_version_is_refused(path: Path, text: str) -> None:
    """A file of a later oomdoctor is not guessed at."""
    error = refusal(path, text.replace('"schema_version": 1', '"schema_version": 2'))
    assert "`schema_version` 2, and this oomdoctor reads 1" in error.message


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_a_merge_conflict_is_called_one(path: Path, text: str, newline: str) -> None:
    """Conflict markers are named as such with their line, and the way out is told."""
    line = '        "maximum": 12\n'
    conflict = f"<<<<<<< HEAD\n{line}=======\n{line.replace('12', '11')}>>>>>>> wider\n"
    assert line in text
    error = refusal(path, text.replace(line, conflict).replace("\n", newline))
    assert f"line {line_of(text, line)}: git left a merge conflict there" in error.message
    assert "take one side whole" in (error.hint or "")


@pytest.mark.parametrize(
    "broken",
    [
        "",
        "   \n",
        "{",
        "[]",
        "{}",
        "null",
        "12",
        '"x"',
        '{"schema_version": 1}',
        "{'a': 1}",
        "00",
        '{"a": 1.5}',
        "\0" * 64,
    ],
)
def test_what_is_no_baseline_is_refused(path: Path, broken: str) -> None:
    """Empty files, other JSON and no JSON at all end in an error with a line."""
    assert ", line " in refusal(path, broken).message


def test_a_file_that_was_cut_short_is_refused(path: Path, text: str) -> None:
    """Wherever a file was cut, reading it is an error."""
    for length in range(0, len(text) - 2, 97):
        assert refusal(path, text[:length])


def test_bytes_that_are_no_text_are_refused_with_their_line(path: Path) -> None:
    """The line of the first byte that is not UTF-8 is told."""
    path.write_bytes(b'{\n"schema_version": 1,\n"\xff')
    with pytest.raises(UsageError, match="line 3: it is not UTF-8"):
        read_baseline(path)


def test_a_huge_file_is_refused_unread(path: Path) -> None:
    """A file of 100 MB is refused for its size and not read."""
    with path.open("wb") as stream:
        stream.truncate(100_000_000)
    with pytest.raises(UsageError, match="larger than 16 MiB"):
        read_baseline(path)


def test_a_file_as_large_as_is_read_takes_no_more_than_seconds(path: Path) -> None:
    """A deep nest of objects and a number without end are refused at once, and not by Python's own limits."""
    assert "nested too deeply" in refusal(path, '{"a": ' * 100_000).message
    assert "too many digits" in refusal(path, f'{{"a": {"9" * 1_000_000}}}').message


@pytest.mark.parametrize("kind", ["folder", "pipe"])
def test_what_is_no_file_is_refused(path: Path, kind: str) -> None:
    """A folder, and a pipe that reading would wait for, are refused."""
    path.mkdir() if kind == "folder" else os.mkfifo(path)
    with pytest.raises(UsageError, match="is not a file"):
        read_baseline(path)


def test_a_missing_file_tells_how_to_write_it(path: Path) -> None:
    """Where there is no baseline yet the hint is the command that writes it."""
    with pytest.raises(UsageError, match="there is no baseline") as caught:
        read_baseline(path)
    assert "oomdoctor check --update" in (caught.value.hint or "")


def test_windows_line_ends_and_a_byte_order_mark_are_read(path: Path, text: str) -> None:
    """What git's autocrlf and Windows editors make of the file is the same baseline."""
    path.write_bytes(b"\xef\xbb\xbf" + text.replace("\n", "\r\n").encode())
    assert read_baseline(path) == BASELINE


# --- the parser ------------------------------------------------------------------------------------------------------

VALUES = st.recursive(
    st.none() | st.integers(-(10**29), 10**29) | st.text(max_size=10),
    lambda values: st.dictionaries(st.text(max_size=10), values, max_size=4),
    max_leaves=15,
)


def plain(node: object) -> object:
    """What a parsed value holds, without its lines."""
    value = getattr(node, "value", node)
    return {key: plain(member) for key, member in value.items()} if isinstance(value, dict) else value


@given(VALUES, st.sampled_from([None, 1, 2]))
def test_the_parser_reads_what_json_writes(value: object, indent: int | None) -> None:
    """Objects, texts, whole numbers and null are read as `json` reads them, whatever the white space."""
    assert plain(parse(json.dumps(value, indent=indent))) == value


@given(st.text(alphabet='{}":,0123456789-nul \n\\abu.<=>', max_size=40))
@settings(max_examples=300)
def test_the_parser_accepts_nothing_that_json_refuses(text: str) -> None:
    """Any text is either read as `json` reads it, or refused with one of its lines."""
    try:
        found: object = plain(parse(text))
    except ParsingError as error:
        found = error
    if isinstance(found, ParsingError):
        assert 1 <= found.line <= text.count("\n") + 1
    else:
        assert found == json.loads(text)


def test_the_parser_knows_the_line_of_each_value() -> None:
    """Each value has the line on which it begins."""
    root = parse('{\n  "a":\n 1,\n\n "b": {"c": null}\n}')
    assert isinstance(root.value, dict)
    assert (root.line, root.value["a"].line, root.value["b"].line) == (1, 3, 5)


def test_figures_of_nothing_that_fits_are_kept(path: Path) -> None:
    """Where not one sample fits the baseline says so, with null for what there is not."""
    figures = replace(FIGURES, maximum=0, accumulation_steps=None, memory=None)
    write_baseline(path, Baseline({"": figures}))
    assert read_baseline(path).entries[""] == figures
    assert read_baseline(path).entries[""].profiled_micro_batch is None
