"""What a check found, as a terminal shows it."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from check_documents import (
    ACTIVATIONS,
    LOST,
    MOVED,
    TIMED_OUT,
    WEIGHTS,
    any_check,
    broken,
    check,
    endless,
    filled_with,
    many,
    passed,
    without_answer,
)
from clock import within
from documents import gpt2
from every_format import SAMPLES, WICKED
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len

from oomdoctor.engines.catalogue import find_card
from oomdoctor.output import Terminal
from oomdoctor.report import verdicts as words
from oomdoctor.report.check import text as render
from oomdoctor.report.terminal import MINIMUM_WIDTH
from oomdoctor.results import CheckDocument, Limit, LimitName, Variant
from oomdoctor.results.variant import Mode

REPORT_AT_80 = """\
verdict  entry                 card       micro-batch  steps
error    vision                local GPU            -      -
    `train/vision.py` has no `make_batch`
    | Traceback (most recent call last):
    |   File "train/vision.py", line 3, in <module>
    | NameError: name 'x'
    hint: add these lines:

        def make_batch(batch_size):
            ...
failed   pretrain on rtx-4090  rtx-4090             6     43
    min-micro-batch: micro-batch 6 fits, and at least 8 is asked for
    baseline: 2 figures are worse than the baseline by more than 2%
      activations +412.00 MiB at micro-batch 8, +61 % in `encoder.layers.*`
      maximum micro-batch 9 -> 6
    also changed:
      weights -1.00 MiB
passed   finetune              a100                32      8

2 of 3 entries did not pass: 1 in error, 1 failed.
hint:  if these changes are intended, `oomdoctor check --update` writes them to
       the baseline; commit that file
hint:  `oomdoctor prescribe 'train/model.py:build_model(depth=24)' --gpu
       rtx-4090 --precision bf16 --capacity 23700MiB --need 8` measures what
       makes it fit, and writes the patch
hint:  `oomdoctor check --format html -o check.html` draws where the memory is
"""
PASSED = """\
verdict  entry     card  micro-batch  steps
passed   finetune  a100           32      8

1 entry passed.
"""


def plain(document: CheckDocument, width: int = 120) -> str:
    """The report without colour."""
    return render(document, Terminal(width=width, color=False, unicode=False))


def test_whole_report_at_80_columns() -> None:
    """An entry is a line, worst first; below it stand what broke, what moved and what to do."""
    assert plain(check(), 80) == REPORT_AT_80


def test_quiet_where_all_is_well() -> None:
    """Entries that passed and did not move are a line each, and the sum is the last."""
    assert plain(check(passed())) == PASSED
    assert plain(SAMPLES["check, no entry"]) == "There was no entry to check.\n"  # type: ignore[arg-type]


def test_colour_adds_nothing_but_styles() -> None:
    """Without its escape sequences the coloured report is the plain one."""
    colored = render(check(), Terminal(width=80, color=True))
    assert "\x1b[1;31mfailed" in colored
    stripped = re.sub(r"\x1b\[[0-9;]*m", "", colored)
    assert [line.rstrip() for line in stripped.splitlines()] == REPORT_AT_80.splitlines()


def test_every_verdict_has_its_place() -> None:
    """Errors come before entries without an answer, and those before failures; like verdicts keep their order."""
    entries = (
        passed(name="a"),
        broken(name="b"),
        without_answer(TIMED_OUT, name="c"),
        broken(name="d"),
        without_answer(name="e"),
    )
    text = plain(check(*entries))
    assert re.findall(r"^(\S.*?)  +([a-e]) ", text, re.MULTILINE) == [
        ("error", "e"),
        ("no answer", "c"),
        ("failed", "b"),
        ("failed", "d"),
        ("passed", "a"),
    ]
    assert "4 of 5 entries did not pass: 1 in error, 1 without an answer, 2 failed.\n" in text
    assert "    the trial at micro-batch 4 took longer than 300 s\n    hint: raise `trial-timeout`\n" in text


def test_movements_that_fail_nothing() -> None:
    """What moved within the tolerance is shown, and nobody is asked to update."""
    text = plain(check(passed(movements=(WEIGHTS,))))
    assert "    changed since the baseline, but fails no limit:\n      weights -1.00 MiB\n" in text
    assert "--update" not in text


def test_figures_beyond_without_a_limit_are_said_to_be() -> None:
    """Where no broken limit says that the baseline moved too far the list does."""
    text = plain(check(broken(limits=())))
    assert "    worse than the baseline by more than 2%:\n      activations +412.00 MiB" in text


def test_many_movements_are_counted() -> None:
    """Of endless movements the first are shown."""
    text = plain(check(broken(movements=(ACTIVATIONS, WEIGHTS) * 100)))
    assert (text.count("activations +412.00 MiB"), text.count("weights -1.00 MiB")) == (12, 3)
    assert "      and 88 more; `--json` has them\n" in text
    assert "      and 97 more; `--json` has them\n" in text


def test_end_of_a_long_traceback() -> None:
    """Of a long traceback the end is shown, which says the most, and how much came before it."""
    problem = replace(LOST, details="\n".join(f"line {number}" for number in range(100)))
    text = plain(check(without_answer(problem)))
    assert "(70 lines before these)\n    | line 70\n" in text
    assert "    | line 99\n" in text


def test_warnings_are_shown_for_entries_that_passed() -> None:
    """What makes a verdict less sure is said whatever the verdict is, the probe's own warnings included."""
    entry = passed(warnings=("profiled at 6, not at 8",))
    assert entry.probe is not None
    entry = replace(entry, probe=replace(entry.probe, stable=False, warnings=("the loss was NaN",)))
    text = plain(check(entry))
    for said in ("profiled at 6, not at 8", "the loss was NaN", "the memory of other processes moved"):
        assert f"    warning: {said}" in text


def test_baseline_that_is_missing_or_written() -> None:
    """A baseline that was written is named; one that is missing comes with the command that writes it."""
    text = plain(check(passed(baseline="updated", movements=(WEIGHTS,)), passed(baseline="missing", name="new")))
    assert "    changed, and is in the baseline now:\n      weights -1.00 MiB\n" in text
    assert "The baseline of 1 entry is in `oomdoctor-baseline.json`.\n" in text
    assert "hint:  `oomdoctor check --update` writes the baseline of `new`, which the file does not have yet\n" in text
    assert "of 2 entries, which" in plain(check(passed(baseline="missing"), passed(baseline="missing")))


def test_control_sequences_never_reach_the_terminal() -> None:
    """Text of a document can neither colour the terminal, nor move its cursor, nor be read as Rich's markup."""
    text = plain(filled_with("\x1b]0;title\x07\x1b[2Jev\x9b31mil\r[red]x[/red] :tada: \u202e"))
    assert "ev\\x9b31mil\\r[red]x[/red] :tada: \\u202e" in text
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]", text)


@pytest.mark.parametrize("width", [60, 80, 120])
@pytest.mark.parametrize("text", [WICKED, "::error::x", "x\n::error::x", "y " * 60 + "::error::x", "##[error]x"])
def test_no_line_is_a_command(text: str, width: int) -> None:
    """In a job of GitHub's no line is a command of its own, wherever a text is broken into lines."""
    for line in plain(filled_with(text), width).splitlines():
        assert not line.lstrip().startswith("::")
        assert "##[" not in line


@settings(deadline=None)
@given(any_check, st.integers(1, 200), st.booleans(), st.booleans())
def test_never_raises_and_fits_the_width(document: CheckDocument, width: int, color: bool, unicode: bool) -> None:
    """Whatever a document holds, it renders, and no line is wider than the terminal."""
    text = render(document, Terminal(width=width, color=color, unicode=unicode))
    lines = re.sub(r"\x1b\[[0-9;]*m", "", text).split("\n")
    assert max(map(cell_len, lines)) <= max(width, MINIMUM_WIDTH)
    assert text.strip()
    text.encode("utf-8")


@pytest.mark.parametrize("document", [many(10_000), endless(10_000)], ids=["entries", "limits"])
def test_ten_thousand(document: CheckDocument) -> None:
    """Ten thousand entries, or limits and movements of one, take seconds."""
    with within(10):
        plain(document)


@pytest.mark.parametrize(
    ("limit", "options"),
    [
        (Limit(LimitName.FITS, 1, 0, holds=False, text=""), "--target-batch 256 --capacity 23700MiB --need 1"),
        (
            Limit(LimitName.MAX_ACCUMULATION_STEPS, 24, 43, holds=False, text=""),
            "--target-batch 256 --capacity 23700MiB --need 11",
        ),
        (
            Limit(LimitName.MAX_MEMORY, 2**33, 2**34, holds=False, text=""),
            "--target-batch 256 --capacity 8GiB --need 8",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_broken_limit_names_the_line_that_prescribes(limit: Limit, options: str) -> None:
    """With the file from here, the card and its capacity, the batch, and the size or memory that the limit asks for."""
    probe = replace(gpt2(precision="fp32").result, target_samples=256)
    line = words.prescription(broken(target="model.py", limits=(limit,), probe=probe), "train/oomdoctor.toml")
    assert line == f"oomdoctor prescribe train/model.py --gpu rtx-4090 {options}"
    assert words.prescription(broken(limits=(MOVED,)), "oomdoctor.toml") is None


def test_a_card_with_its_own_capacity_is_prescribed_for_without_one() -> None:
    """The capacity is named only where the entry asked for another than the card has."""
    probe = replace(gpt2(precision="fp32").result, capacity_bytes=find_card("rtx-4090").capacity_bytes)
    limit = Limit(LimitName.FITS, 1, 0, holds=False, text="")
    line = words.prescription(broken(target="model.py", limits=(limit,), probe=probe), "oomdoctor.toml")
    assert line == "oomdoctor prescribe model.py --gpu rtx-4090 --need 1"


@pytest.mark.parametrize("mode", ["eval", "generate"])
def test_nothing_is_prescribed_for_what_does_not_train(mode: Mode) -> None:
    """Remedies are measured in training, which an evaluation that does not fit is not."""
    probe = replace(gpt2().result, variant=Variant(mode=mode))
    limit = Limit(LimitName.FITS, 1, 0, holds=False, text="")
    assert words.prescription(broken(target="model.py", limits=(limit,), probe=probe), "oomdoctor.toml") is None


@pytest.mark.parametrize(
    ("configuration", "option"),
    [
        ("oomdoctor.toml", ""),
        ("../../pyproject.toml", ""),
        ("other.toml", " --config other.toml"),
        ("deep/oomdoctor.toml", " --config deep/oomdoctor.toml"),
        ("/srv/a b/oomdoctor.toml", " --config '/srv/a b/oomdoctor.toml'"),
    ],
)
def test_advice_names_a_configuration_that_is_not_found_unnamed(configuration: str, option: str) -> None:
    """A pasted hint checks the same file: one of another name or place is given with `--config`."""
    advice = list(words.advice(check(broken(limits=(MOVED,)), configuration=configuration).result))
    assert any(text.startswith(f"`oomdoctor check{option} --format html -o check.html`") for text in advice)
