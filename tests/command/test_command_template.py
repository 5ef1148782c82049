"""A command's words: what is a placeholder is filled in, and nothing else is touched."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from oomdoctor.command.template import (
    ACCUMULATION,
    PLACEHOLDERS,
    REQUIRED,
    Sizes,
    accumulates,
    check_command,
    command_line,
    fill_command,
    near_misses,
)
from oomdoctor.errors import UsageError

_VALUES = {REQUIRED: "12", ACCUMULATION: "34", "{world_size}": "56"}
_SIZES = Sizes(micro_batch=12, accumulation_steps=34, world_size=56)

# What placeholders are made of, so that near misses are common.
_NEARLY = st.sampled_from(
    ["{", "}", "{{", "}}", "micro_batch", "{micro", "world_size", "{batch_size}", "'", '"', "$HOME"]
)
_ANY_WORD = st.one_of(st.text(), st.lists(st.one_of(_NEARLY, st.text(max_size=3)), max_size=8).map("".join))
_NO_PLACEHOLDER = _ANY_WORD.filter(lambda word: not any(name in word for name in PLACEHOLDERS))
_BETWEEN = st.text("{}[]\"'$\\,: =-12\n\t")


@given(st.lists(_NO_PLACEHOLDER))
@example(
    ['{"betas": [0.9, 0.999], "nested": {"a": {}}}', "{}", "{0}", "{micro_batch", "micro_batch}", "{ micro_batch }"]
)
@example(["{MICRO_BATCH}", "{micro_batch!r}", "{micro_batch:d}", "%d", "$micro_batch", "${other}", "", " ", "*.py"])
def test_what_is_no_placeholder_is_passed_through(words: list[str]) -> None:
    """Words without a placeholder stay as they are: braces, JSON, globs, quotes and near misses."""
    assert fill_command(words, _SIZES) == words


@given(st.lists(st.tuples(_BETWEEN, st.sampled_from(PLACEHOLDERS))), _BETWEEN)
@example([("{", REQUIRED), ("}", ACCUMULATION)], "{}")
def test_every_placeholder_is_filled_wherever_it_stands(parts: list[tuple[str, str]], rest: str) -> None:
    """Each placeholder of a word is replaced, several times and between braces too, and the rest is kept."""
    word = "".join(before + name for before, name in parts) + rest

    assert fill_command([word], _SIZES) == ["".join(before + _VALUES[name] for before, name in parts) + rest]


@given(st.lists(st.one_of(_ANY_WORD, st.tuples(_BETWEEN, st.sampled_from(PLACEHOLDERS)).map("".join))))
@example(["python", "my train.py", "--lr='1e-3'", "a;b", "$(rm x)", "`x`", "~", "!", "#", "é", ""])
def test_one_line_is_read_back_by_a_shell(words: list[str]) -> None:
    """The command in one line is split by a shell's rules into the words that it was made of."""
    assert shlex.split(command_line(words)) == words


@pytest.mark.parametrize("name", PLACEHOLDERS)
def test_a_placeholder_is_not_quoted(name: str) -> None:
    """What a reader types again is not cluttered: a placeholder needs no quotes."""
    assert command_line(["python", f"--size={name}"]) == f"python --size={name}"


def test_accumulation_is_seen_within_a_word() -> None:
    """A command is told its accumulation steps wherever the placeholder stands, and by no other."""
    assert accumulates(["python", "train.accumulation={accumulation_steps}"])
    assert not accumulates(["python", "{micro_batch}", "{accumulation}", "accumulation_steps"])


def _refusal(command: list[str], directory: Path, **environment: str) -> UsageError:
    with pytest.raises(UsageError) as caught:
        check_command(command, directory, {"PATH": os.environ["PATH"], **environment})
    return caught.value


@pytest.mark.parametrize(
    "near", ["{microbatch}", "{micro_batches}", "{micro_batch_size}", "{batch_size}", "{bs}", "{n}"]
)
def test_a_near_miss_is_named(tmp_path: Path, near: str) -> None:
    """A placeholder that was meant is answered with the one to write."""
    refusal = _refusal(["python", "train.py", f"--batch={near}"], tmp_path)

    assert "has no `{micro_batch}`" in refusal.message
    assert refusal.hint == f"write `{{micro_batch}}` instead of `{near}`"


@pytest.mark.parametrize("word", ["8", "{accumulation_steps}", '{"a": 1}', "{seed}"])
def test_a_command_without_its_size_is_told_where_to_put_it(tmp_path: Path, word: str) -> None:
    """Where nothing was meant as the size, the hint shows where it goes."""
    refusal = _refusal(["python", "train.py", word], tmp_path)

    assert refusal.hint is not None
    assert "--batch-size {micro_batch}" in refusal.hint


@pytest.mark.parametrize(
    ("program", "hint"),
    [("no-such-program", "after `--`"), ("train.py", "-- python train.py"), ("./train", "after `--`"), ("..", "`--`")],
)
def test_a_program_that_is_not_there_is_refused(tmp_path: Path, program: str, hint: str) -> None:
    """A program that cannot be found is refused before anything starts; a script is told its interpreter."""
    (tmp_path / "train.py").write_text("print()\n")
    refusal = _refusal([program, REQUIRED], tmp_path)

    assert refusal.message == f"command not found: `{program}`"
    assert refusal.hint is not None
    assert hint in refusal.hint


def test_a_program_is_looked_for_where_it_will_run(tmp_path: Path) -> None:
    """A path is taken from the command's directory, and a name from its own `PATH`."""
    program = tmp_path / "bin" / "train"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\n")
    assert _refusal(["bin/train", REQUIRED], tmp_path).message == "command not found: `bin/train`"  # not executable
    program.chmod(0o755)

    check_command(["bin/train", REQUIRED], tmp_path, {"PATH": ""})
    check_command(["train", REQUIRED], Path("/"), {"PATH": str(program.parent)})
    assert _refusal(["train", REQUIRED], tmp_path).message == "command not found: `train`"


def test_a_near_miss_beside_a_placeholder_is_found() -> None:
    """A word in braces that is nearly a placeholder is told from one that is something else."""
    command = ("python", "{micro_batch}", "{acumulation_steps}", "--x={world_sise}", "{name}", '{"a": 1}')
    assert near_misses(command) == {"{acumulation_steps}": "{accumulation_steps}", "{world_sise}": "{world_size}"}
