"""A command as an entry of a check: what the configuration may say of it, and what is said of one that cannot be."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from running import run_here

from oomdoctor.check.entries import DEFAULTS, Entry, chosen_entries
from oomdoctor.check.runner import check_program
from oomdoctor.config.check import CheckConfiguration, configure_check
from oomdoctor.config.schema import CheckKeys
from oomdoctor.errors import UsageError
from oomdoctor.request import LiteralOverride, ProbeRequest

COMMAND = 'command = ["python", "train.py", "--batch-size", "{micro_batch}"]\n'
WORDS = ("python", "train.py", "--batch-size", "{micro_batch}")


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty folder to be in."""
    monkeypatch.chdir(tmp_path)


def configured(text: str, **environment: str) -> CheckConfiguration:
    """What a file says."""
    Path("oomdoctor.toml").write_text(text)
    return configure_check(CheckKeys(), environment, config=None, defaults=DEFAULTS)


def entries(keys: str, top: str = "") -> tuple[Entry, ...]:
    """The entries of a file with one `[[check]]`."""
    return chosen_entries(configured(f"{top}\n[[check]]\ntarget-batch = 64\n{keys}"))


def refused(keys: str, top: str = "") -> UsageError:
    """Why the file cannot be."""
    with pytest.raises(UsageError) as raised:
        entries(keys, top)
    return raised.value


def test_a_command_reaches_the_probe(tmp_path: Path) -> None:
    """Its words, its steps and its freshness are in the question, which runs in the folder of the file."""
    (found,) = entries(COMMAND + 'name = "plain"\nsteps = 5\nfresh = true\ngpu = "t4"\nmin-micro-batch = 8\n')
    request = found.request
    assert (request.command, request.steps, request.fresh, request.gpu) == (WORDS, 5, True, "t4")
    assert (request.directory, request.target) == (tmp_path, "python train.py --batch-size {micro_batch}")
    assert (found.name, found.min_micro_batch, request.variant.optimizer) == ("plain", 8, None)


def test_an_entry_sets_literals_and_counts_backward_passes() -> None:
    """Both are in the question, and a placeholder among the literals is as good as one among the words."""
    keys = 'command = ["python", "train.py"]\nset = ["train.py:3:BATCH={micro_batch}"]\ncount-steps = "backward"\n'
    (found,) = entries(keys)

    assert found.request.literals == (LiteralOverride("train.py", 3, "BATCH", "{micro_batch}"),)
    assert found.request.count_steps == "backward"


@pytest.mark.parametrize(
    ("keys", "problem"),
    [
        (COMMAND + 'set = ["train.py=3"]\n', "`set train.py=3` names no literal of a file"),
        (COMMAND + 'set = "train.py:B=3"\n', "set` in `oomdoctor.toml` is"),
        (COMMAND + 'count-steps = "forward"\n', "count-steps` in `oomdoctor.toml` is"),
        ('target = "m.py"\nset = ["m.py:B={micro_batch}"]\n', "`set` of `m.py` in `oomdoctor.toml` cannot be said of"),
        ('target = "m.py"\ncount-steps = "backward"\n', "`count-steps` of `m.py` in `oomdoctor.toml` cannot"),
        ('command = ["python", "t.py"]\nset = ["t.py:B=3"]\n', "has no `{micro_batch}`"),
    ],
)
def test_what_cannot_be_said_of_literals_and_steps_is_refused(keys: str, problem: str) -> None:
    """The entry and the key are named."""
    assert problem in refused(keys).message


def test_an_entry_without_a_target_asks_about_plain_steps() -> None:
    """No limit but that of accumulation needs a target, and any size may be asked for."""
    (found,) = chosen_entries(configured(f"[[check]]\nmin-micro-batch = 9999\n{COMMAND}"))

    assert found.request.target_batch is None
    assert found.min_micro_batch == 9999


def test_a_command_is_an_entry_on_each_card() -> None:
    """Several cards make several entries, as they do of a file."""
    found = entries(COMMAND + 'name = "plain"\ngpus = ["t4", "l4"]\n')
    assert [(one.name, one.request.gpu) for one in found] == [("plain on t4", "t4"), ("plain on l4", "l4")]


def test_a_command_without_a_name_is_called_as_its_words() -> None:
    """They are the name, and a note says so; `--verbose` shows them as the file has them."""
    found = configured(f"[[check]]\ntarget-batch = 64\n{COMMAND}")
    assert found.entries[0].name == "python train.py --batch-size {micro_batch}"
    lines = list(found.lines())
    assert "an entry without a name is called as its command, `python train.py --batch-size {micro_batch}`" in lines
    assert f"  {COMMAND.strip()}  (from oomdoctor.toml)" in lines


def test_what_is_said_of_chosen_entries_is_said_of_files() -> None:
    """A precision at the top does not speak of a command, and is not shown as if it did."""
    top = 'precision = "bf16"\noptimizer = "SGD"\n'
    files = '[[check]]\nname = "f"\ntarget = "m.py"\ntarget-batch = 2\n'
    found = configured(f'{top}[[check]]\nname = "c"\ntarget-batch = 64\n{COMMAND}{files}', OOMDOCTOR_PRECISION="fp16")
    command, file = chosen_entries(found)
    assert (command.request.variant.precision, command.request.variant.optimizer) == ("fp32", None)
    assert (file.request.variant.precision, file.request.variant.optimizer) == ("fp16", "SGD")
    shown = [line.split(" = ")[0].strip() for line in found.entries[0].settled.lines()]
    assert "precision" not in shown
    assert "optimizer" not in shown


@pytest.mark.parametrize(
    ("keys", "message", "hint"),
    [
        (
            "command = \"python train.py --name 'a b' --batch-size {micro_batch}\"",
            "not a list of strings",
            '`command = ["python", "train.py", "--name", "a b", "--batch-size", "{micro_batch}"]`',
        ),
        ('command = "echo \'"', "not a list of strings", "for example `command = ["),
        ('command = ["python", 3]', "`check[0].command[1]` in `oomdoctor.toml` is `3`", ""),
        ("command = []", "`command` of `[[check]]` 1 of `oomdoctor.toml` has no words", "for example"),
        (
            COMMAND + 'target = "model.py"',
            "`[[check]]` 1 of `oomdoctor.toml` has both `target` and `command`",
            "keep one",
        ),
        ('name = "a"', "called `a`, has no `target`", '`command = ["python", '),
        (
            'name = "a"\ncommand = ["python", "train.py", "{batch}"]',
            "`command` of `a` in `oomdoctor.toml` has no `{micro_batch}`",
            "put it where the batch size goes",
        ),
        ('name = "a"\ncommand = ["py\\u0000thon", "{micro_batch}"]', "`command` of `a`", None),
        (COMMAND + 'name = "a"\nsteps = 0', "`steps` of `a` in `oomdoctor.toml` is 0, not 1 or more", None),
        (
            COMMAND + 'name = "a"\nprecision = "bf16"',
            "`precision` of `a` in `oomdoctor.toml` cannot be said of a command",
            "drop it; give the command the option of its own",
        ),
        (
            COMMAND + 'name = "a"\noptimizer = "SGD"',
            "`optimizer` of `a` in `oomdoctor.toml` cannot be said of a",
            "drop",
        ),
        (
            'target = "m.py"\nname = "a"\nsteps = 3',
            "`steps` of `a` in `oomdoctor.toml` cannot be said of a file",
            "drop",
        ),
        (
            'target = "m.py"\nname = "a"\nfresh = false',
            "`fresh` of `a` in `oomdoctor.toml` cannot be said of a file",
            "",
        ),
    ],
)
def test_what_cannot_be_is_named(keys: str, message: str, hint: str | None) -> None:
    """The message has the file, the entry and the key, and the hint what to write instead."""
    error = refused(keys)
    assert message in error.message
    assert (error.hint is None) == (hint is None)
    assert (hint or "") in (error.hint or "")


@pytest.mark.parametrize(
    ("program", "hint"),
    [
        ("no-such-program", "activate the environment"),
        ("train.py", '`command = ["python", "train.py", ...]`'),
        ("./bin/train", "the folder of the configuration file"),
    ],
)
def test_a_program_that_is_not_there_is_said_of_its_entry(program: str, hint: str, tmp_path: Path) -> None:
    """It is that entry's error, with what to do, and exits as a wrong configuration does."""
    Path("oomdoctor.toml").write_text(
        f'gpu = "t4"\ntarget-batch = 2\n[[check]]\nname = "a"\ncommand = ["{program}", "{{micro_batch}}"]\n'
    )
    finished = run_here(["check"], tmp_path)
    shown = " ".join(finished.stdout.split())
    assert finished.returncode == 2
    assert f"command not found: `{program}`" in shown
    assert hint in shown


def test_a_program_beside_the_configuration_is_found(tmp_path: Path) -> None:
    """A path with a slash starts at the folder of the configuration, wherever the check runs."""
    script = tmp_path / "train"
    script.write_text("#!/bin/sh\n")
    script.chmod(0o755)
    check_program(ProbeRequest("x", tmp_path, 2, command=("./train", "{micro_batch}")))
    os.chdir("/")
    check_program(ProbeRequest("x", tmp_path, 2, command=("./train", "{micro_batch}")))
