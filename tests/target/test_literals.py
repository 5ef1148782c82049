"""Literals of a script: where they stand, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from oomdoctor.command.template import check_command
from oomdoctor.errors import TargetError, UsageError
from oomdoctor.request import read_override
from oomdoctor.target.literals import (
    batch_size_literals,
    batch_size_variables,
    find_literals,
    literal_places,
    set_options,
)
from oomdoctor.target.script import refuse_script

_SOURCE = """\
BATCH = 16
a, (b, c) = 1, (2, 3)
x = y = -2 ** 3
cfg.rate = 0.5
cfg["depth"] = "é"; after = None
typed: int = 4
def f(p, q=5, *, r=6, s): return g(k=7, *[], **{"z": 8})
one = int(os.environ.get("ONE", "1"))
two = BATCH * 2
"""
_READS = """\
c = int(os.environ.get("BATCH_SIZE", "32"))
d = os.environ["BS"], getenv("MICRO_BATCH")
loss.backward()
"""


def _refusal(text: str, directory: Path) -> UsageError:
    with pytest.raises(UsageError) as caught:
        find_literals([read_override(text)], directory)
    return caught.value


def test_every_form_of_a_literal_is_found() -> None:
    """Variables, attributes, keys, defaults and keyword arguments; what is computed is none."""
    found = {place.name: (place.line, place.text) for place in literal_places(_SOURCE.encode())}

    assert found == {
        "BATCH": (1, "16"),
        "a": (2, "1"),
        "b": (2, "2"),
        "c": (2, "3"),
        "x": (3, "-2 ** 3"),
        "y": (3, "-2 ** 3"),
        "rate": (4, "0.5"),
        "depth": (5, '"é"'),
        "after": (5, "None"),
        "typed": (6, "4"),
        "q": (7, "5"),
        "r": (7, "6"),
        "k": (7, "7"),
        "z": (7, "8"),
    }


@pytest.mark.parametrize("data", [b"# -*- coding: latin-1 -*-\r\nN = '\xe9'; B = 3\r\n", b"\xef\xbb\xbfB = 3\n"])
def test_other_encodings_and_line_ends_are_read(data: bytes) -> None:
    """A source is read as Python reads it."""
    assert literal_places(data)[-1].text == "3"


def test_a_name_with_two_literals_is_refused_and_its_line_chooses(tmp_path: Path) -> None:
    """Neither is guessed: both are named, and so is the form that tells them apart."""
    (tmp_path / "t.py").write_text("a = f(batch_size=16)\nb = f(batch_size=32)\n")

    refusal = _refusal("t.py:batch_size={micro_batch}", tmp_path)
    assert refusal.message == "`t.py` gives `batch_size` a literal in 2 places: line 1 (`16`), line 2 (`32`)"
    assert "--set 't.py:1:batch_size={micro_batch}'" in (refusal.hint or "")
    assert "in other lines: line 1" in _refusal("t.py:3:batch_size=1", tmp_path).message
    (found,) = find_literals([read_override("t.py:2:batch_size={micro_batch}")], tmp_path)
    assert (found.place.line, found.place.text) == (2, "32")
    with pytest.raises(UsageError, match="is set twice"):
        find_literals([read_override("t.py:2:batch_size=1")] * 2, tmp_path)


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("t.py:BACH=1", "gives `BACH` no literal", "`BATCH = 16` in line 1"),
        ("t.py:other=1", "gives `other` no literal", "`BATCH = 16` in line 1"),
        ("u.py:BATCH=1", "cannot be read: No such file", "relative to where the command runs"),
        ("c.yaml:batch=1", "cannot be read as Python", "give the command its own option"),
        ("t.py", "names no literal", "`train.py:BATCH={micro_batch}`"),
        ("t.py:BATCH={batch}", "`{batch}` in `set t.py:BATCH={batch}` is no literal", "`{micro_batch}`"),
        ("t.py:BATCH=f()", "is no literal of Python", "give a number"),
    ],
)
def test_what_cannot_be_set_is_refused(tmp_path: Path, text: str, message: str, hint: str) -> None:
    """Each refusal says what is wrong, where, and what to do."""
    (tmp_path / "t.py").write_text("BATCH = 16\nother = f(16)\n")
    (tmp_path / "c.yaml").write_text("batch: [16\n")

    refusal = _refusal(text, tmp_path)

    assert message in refusal.message
    assert hint in (refusal.hint or "")


def test_batch_sizes_are_told_from_other_literals(tmp_path: Path) -> None:
    """Names of the batch size of training, with a number; each with the option that sets it."""
    path = tmp_path / "my train.py"
    path.write_text(
        "BATCH_SIZE = 16\nn_batches = 4\nbatch_first = True\neval_batch_size = 8\nbs = 'x'\n"
        "f(batch_size=3)\nf(batch_size=4)\nper_device_train_batch_size = 2\nval_bs = 4\nembs = 3\n"
    )

    assert set_options(path.name, batch_size_literals(path)) == [
        "--set 'my train.py:BATCH_SIZE={micro_batch}'",
        "--set 'my train.py:6:batch_size={micro_batch}'",
        "--set 'my train.py:7:batch_size={micro_batch}'",
        "--set 'my train.py:per_device_train_batch_size={micro_batch}'",
    ]
    path.write_bytes(b"\0")
    assert batch_size_literals(path) == batch_size_variables(path) == []


def test_variables_of_the_environment_are_found(tmp_path: Path) -> None:
    """A script whose batch size is a variable is answered with the command that sets it, by either way."""
    path = tmp_path / "t.py"
    path.write_text("import os, torch\na = os.environ['RANK']\nb = int(os.getenv('EVAL_BATCH', 1))\n" + _READS)

    assert batch_size_variables(path) == ["BATCH_SIZE", "BS", "MICRO_BATCH"]
    with pytest.raises(UsageError) as missing:
        check_command(["python", "t.py"], tmp_path, {})
    assert "`-- env BATCH_SIZE={micro_batch} python t.py`" in (missing.value.hint or "")
    with pytest.raises(TargetError) as script:
        refuse_script(path, "t.py", "build_model")
    assert (script.value.hint or "").endswith("oomdoctor probe -- env BATCH_SIZE={micro_batch} python t.py")
