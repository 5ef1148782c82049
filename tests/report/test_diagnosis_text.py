"""What a person reads in a terminal after a crash."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from diagnosis_documents import (
    FACTS,
    GIB,
    MIB,
    any_diagnosis,
    comparison,
    not_memory,
    nothing_found,
    occurrence,
    out_of_memory,
    snapshot,
)
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from oomdoctor.output import Terminal
from oomdoctor.report.diagnose.memory import device_memory
from oomdoctor.report.diagnose.text import allocated_by_column, render
from oomdoctor.report.terminal import MINIMUM_WIDTH, cells
from oomdoctor.results import (
    Cause,
    CauseId,
    Confidence,
    DiagnosisDocument,
    Facts,
    ProcessMemory,
    Remedy,
    SourceLine,
    TrainingPhase,
)
from oomdoctor.units import format_size

UPPER_HALF_AT_80 = """\
┏━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━┓
┃                                                                              ┃
┃  GPU 0 ran out of memory in backward, step 412                               ┃
┃  1.92 GiB asked for, 1.41 GiB of 23.64 GiB free, 18.76 GiB in tensors        ┃
┃                                                                              ┃
┗━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━┛

Your line, train/loop.py:112 in train_one_epoch
  loss.backward()

The error, train.log:20417, rank 0
  torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.92 GiB. GPU 0
  has a total capacity of 23.64 GiB of which 1.41 GiB is free. Process 4711 has
  1.70 GiB memory in use. Including non-PyTorch memory, this process has 20.53
  GiB memory in use.

Why
  likely    the batch is too large
            Activations are 10.67 GiB of the 18.76 GiB allocated at the peak,
            and backward asked for 1.92 GiB where 1.41 GiB is free.
  possible  another process holds the device
            Process 4711 holds 1.70 GiB of the card, more than the 523 MiB that
            were missing.
  possible  a leak across steps
            train/loop.py:124 grew from 2 MiB to 80 MiB in 402 steps.

What to change
  1.  Halve the micro-batch and double the accumulation steps.
      per_device_train_batch_size=8, gradient_accumulation_steps=4
      frees up to 5.33 GiB; costs: about 5 % slower: more kernel launches per
      sample
"""
MEMORY_AT_80 = """\
Memory of the device, 23.64 GiB
  █████████████████████████████████████████████████████████▓▓▓▓▒▒░░░░░····
  █  in tensors                      18.76 GiB  79%
  ▓  reserved, in no tensor           1.28 GiB   5%
  ▒  this process, outside PyTorch  507.00 MiB   2%
  ░  process 4711                     1.70 GiB   7%
  ·  free                             1.41 GiB   6%

Also in the error
  asked for            1.92 GiB
  reserved by PyTorch  20.04 GiB
  this process in all  20.53 GiB
"""


def plain(document: DiagnosisDocument, width: int = 100) -> str:
    """The report as one line of words, so that where lines break does not matter."""
    return " ".join(render(document, Terminal(width=width, unicode=False)).replace("|", " ").split())


def test_what_happened_why_and_what_to_change_at_80_columns() -> None:
    """The report of a realistic crash opens with this text, to the character."""
    assert render(out_of_memory(), Terminal(width=80)).startswith(UPPER_HALF_AT_80)


def test_memory_of_the_card_at_80_columns() -> None:
    """The card's memory is a bar and its parts, and what is no part of it stands below."""
    assert MEMORY_AT_80 in render(out_of_memory(), Terminal(width=80))


@pytest.mark.parametrize("width", [60, 80, 120])
def test_nothing_of_the_result_is_left_out(width: int) -> None:
    """Every part of the result is shown at every usual width."""
    text = plain(out_of_memory(comparison=comparison()), width)
    for expected in [
        "Memory rose steadily from 18.49 GiB at step 10 to 18.56 GiB at step 412, 200.00 KiB a step (42 readings).",
        "Memory snapshot of GPU 0: snapshot-rank0.pickle Its history has 4440 events, older ones are lost.",
        "at the peak 18.76 GiB allocated, 20.04 GiB reserved",
        "when taken 15.01 GiB allocated",
        "activations 10.67 GiB 57%",
        "softmax (torch/nn/functional.py:2140)",
        "allocated before recording began",
        "2.00 MiB in 10 blocks to 80.00 MiB in 412 blocks",
        "37 of 214 segments hold live and free blocks at once: 1.08 GiB lie in holes, the largest of 312.00 MiB;",
        "200.00 MiB in segments without a live block can be given back.",
        "the peak v",
        "event 0",
        "4378, 0.36 s",
        "before before.pickle after after.pickle",
        "activations 8.00 GiB 10.67 GiB +2.67 GiB",
        "-950.00 MiB",
        "In a container the process ids are the host's.",
        "$ oomdoctor run -- train.py",
        "out of memory on GPU 1 in backward, step 412: 1.92 GiB asked for, 1.37 GiB free",
        "NCCL error: remote process exited",
        "read train.log, snapshot-rank0.pickle",
        "oomdoctor 0.1.0, python 3.11.9",
    ]:
        assert expected in text


def test_another_error_is_not_called_memory() -> None:
    """Where memory did not run out the first words say so, and nothing speaks of a card."""
    text = plain(not_memory())
    assert "+ Not an out-of-memory error +" in text
    assert "certain something else than memory A kernel's assertion failed: an index is out of range." in text
    assert "Memory of the device" not in text
    assert "What to change" not in text


def test_a_named_cause_that_is_not_memory_is_the_headline() -> None:
    """A size limit is called by its name rather than by what it is not."""
    document = not_memory()
    cause = Cause(CauseId.SIZE_LIMIT, Confidence.CERTAIN, "an index needs more than 32 bits")
    assert "+ A size limit that is not memory +" in plain(
        replace(document, result=replace(document.result, causes=(cause,)))
    )


def test_an_unknown_cause_is_not_likely() -> None:
    """Where the cause is unknown nothing is said about how likely that is."""
    causes = (Cause(CauseId.UNKNOWN, Confidence.LIKELY, "the numbers do not explain it"),)
    assert "Why unknown The numbers do not explain it." in plain(out_of_memory(causes=causes))


def test_nothing_found() -> None:
    """Where nothing was found the report is one statement and what was read."""
    text = plain(nothing_found())
    assert "No error was found" in text
    assert text.endswith("read train.log oomdoctor 0.1.0")


def test_snapshot_without_an_error_says_its_peak() -> None:
    """A snapshot alone is told by what it held."""
    document = nothing_found()
    document = replace(document, status="not_oom", result=replace(document.result, snapshots=(snapshot(),)))
    assert "No error was found; 18.76 GiB were allocated at the peak" in plain(document)


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        (Facts(), "GPU ran out of memory"),
        (Facts(gpu_index=3), "GPU 3 ran out of memory"),
        (Facts(phase=TrainingPhase.CHECKPOINT_LOAD), "ran out of memory while a checkpoint was loaded"),
        (Facts(step=7), "ran out of memory at step 7"),
        (Facts(tried_bytes=2 * GIB), "2.00 GiB asked for"),
        (Facts(free_bytes=0), "0 bytes free"),
        (Facts(total_bytes=8 * GIB), "8.00 GiB on the device"),
    ],
)
def test_headline_says_what_is_known(facts: Facts, expected: str) -> None:
    """The opening names device, phase, step and numbers as far as they are known, and guesses none."""
    text = plain(out_of_memory(facts=facts, occurrences=(), snapshots=(), trend=None))
    assert expected in text.partition("Why")[0]
    assert "None" not in text


def test_numbers_without_a_whole_are_listed() -> None:
    """Where the error does not tell the card's memory there is no bar, and each number is still there once."""
    facts = Facts(tried_bytes=2 * GIB, allocated_bytes=5 * GIB, reserved_unallocated_bytes=GIB)
    text = plain(out_of_memory(facts=facts, occurrences=(), snapshots=(), trend=None))
    assert "What the error tells asked for 2.00 GiB in tensors 5.00 GiB reserved, in no tensor 1.00 GiB" in text
    assert "Memory of the device" not in text


def test_memory_that_no_number_accounts_for_is_a_part() -> None:
    """What the error does not tell is called that, and the bar still has its full length."""
    facts = Facts(total_bytes=10 * GIB, allocated_bytes=4 * GIB, free_bytes=GIB)
    assert "? not in the error's text 5.00 GiB 50% . free 1.00 GiB 10%" in plain(out_of_memory(facts=facts))


def test_more_than_the_card_has() -> None:
    """Windows lets PyTorch allocate beyond the card; shares are then of what is used."""
    facts = Facts(total_bytes=8 * GIB, allocated_bytes=12 * GIB, free_bytes=0)
    assert "# in tensors 12.00 GiB 100%" in plain(out_of_memory(facts=facts))


def test_metal_counts_against_its_own_limit() -> None:
    """On MPS the whole is the limit that was reached."""
    facts = Facts(allocated_bytes=12 * GIB, mps_other_bytes=3 * GIB, mps_max_bytes=18 * GIB, tried_bytes=4 * GIB)
    text = plain(out_of_memory(device="mps", facts=facts))
    assert "The MPS device ran out of memory" in text
    assert "Memory that PyTorch may use, 18.00 GiB" in text
    assert "+ other allocations of this process 3.00 GiB 17% . below the limit 3.00 GiB 17%" in text


def test_own_entry_among_the_processes_is_not_another() -> None:
    """A process that the numbers show to be this one is not counted against the card twice."""
    processes = (ProcessMemory(1, 20 * GIB), ProcessMemory(2, GIB), ProcessMemory(3, None))
    text = plain(out_of_memory(facts=replace(FACTS, other_processes=processes, own_pid=1)))
    assert "x 2 other processes 1.00 GiB" in text
    assert "process 2 holds 1.00 GiB process 3 holds an unknown amount" in text
    assert "process 1 holds" not in text


def test_remedy_without_a_line_or_a_figure() -> None:
    """What is not known about a remedy leaves no empty line and no figure."""
    remedy = Remedy("x", "buy a larger card", None, None, "")
    text = render(out_of_memory(remedies=(remedy,)), Terminal(width=80, unicode=False))
    assert "What to change\n  1.  Buy a larger card.\n\nMemory" in text


def test_bare_error_repeats_nothing() -> None:
    """An error alone has no list of other errors, and the same error again is a count."""
    text = plain(out_of_memory(occurrences=(occurrence(count=8),)))
    assert "The error, train.log:20417, rank 0, 8 times" in text
    assert "Other errors" not in text


def test_long_lists_are_cut_and_say_so() -> None:
    """The terminal gets the first eight rows of a long list and a word about the rest."""
    found = snapshot()
    blocks = tuple(replace(found.largest[0], size_bytes=size * MIB) for size in range(920, 900, -1))
    lines = tuple(replace(found.peak.lines[0], allocated_bytes=size * GIB) for size in range(220, 200, -1))
    found = replace(found, largest=blocks, peak=replace(found.peak, lines=lines), end=found.peak)
    text = plain(out_of_memory(snapshots=(found,)))
    assert text.count("more; `--json` and `--html` have them") == 2
    assert "and 12 more;" in text
    assert "913.00 MiB" in text
    assert "912.00 MiB" not in text
    assert "213.00 GiB" in text
    assert "212.00 GiB" not in text


def test_wide_terminals_show_what_was_left_of_each_line() -> None:
    """Where there is room a line's memory at the end stands beside that at the peak, a line of the end alone too."""
    found = snapshot()
    extra = replace(found.end.lines[0], place=SourceLine("late.py", 3))
    found = replace(found, end=replace(found.end, lines=(*found.end.lines, extra)))
    lines = render(out_of_memory(snapshots=(found,)), Terminal(width=110)).splitlines()
    assert any(
        re.search(r"^ +6\.00 GiB +4\.80 GiB +96  activations +train/model\.py:87 in forward$", row) for row in lines
    )
    assert any(re.search(r"^ +- +4\.80 GiB +96  activations +late\.py:3$", row) for row in lines)


def test_timeline_keeps_its_peaks() -> None:
    """Where there are more points than columns, the highest of those that share a column is drawn."""
    points = snapshot().timeline
    columns = allocated_by_column(points, 10)
    assert len(columns) == 10
    assert max(columns) == max(sum(point.categories) for point in points)
    assert columns[0] == max(sum(point.categories) for point in points[:39])
    assert len(allocated_by_column(points[:3], 10)) == 3


def test_snapshot_without_a_history_has_one_moment() -> None:
    """Without a history there is no peak to speak of and no timeline."""
    found = snapshot(has_history=False, truncated=False, events=0, timeline=(), peak=snapshot().end)
    text = plain(out_of_memory(snapshots=(found,), comparison=None))
    assert "it has no history: what it shows is the moment when it was taken." in text.replace("It", "it")
    assert "at the peak 1" not in text
    assert "Memory over the history" not in text


def test_ascii_where_nothing_else_can_be_shown() -> None:
    """Without Unicode every character is ASCII, bars and timeline included."""
    text = render(out_of_memory(comparison=comparison()), Terminal(width=80, unicode=False))
    assert text.isascii()
    assert "####====++xxxxx...." in text


def test_colour_adds_nothing_but_styles() -> None:
    """Without its escape sequences the coloured report is the plain one."""
    document = out_of_memory(comparison=comparison())
    colored = render(document, Terminal(width=80, color=True))
    assert "\x1b[1;31m" in colored
    stripped = re.sub(r"\x1b\[[0-9;]*m", "", colored)
    expected = render(document, Terminal(width=80)).splitlines()
    assert [line.rstrip() for line in stripped.splitlines()] == expected


def test_control_sequences_never_reach_the_terminal() -> None:
    """Text of a log can neither colour the terminal, nor move its cursor, nor be read as Rich's markup."""
    hostile = "\x1b]0;title\x07\x1b[2Jev\x9b31mil\r[red]x[/red] :tada: \u202e\x00"
    line = SourceLine(hostile, 1, hostile, hostile)
    document = out_of_memory(
        sources=(hostile,),
        facts=replace(FACTS, user_line=line),
        causes=(Cause(CauseId.UNKNOWN, Confidence.POSSIBLE, hostile),),
        remedies=(Remedy(hostile, hostile, hostile, 1, hostile),),
        notes=(hostile,),
        occurrences=(occurrence(message=hostile, source=hostile),) * 2,
        snapshots=(snapshot(source=hostile),),
    )
    text = render(document, Terminal(width=120))
    assert "evil [red]x[/red] :tada:" in text
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]", text)


@given(any_diagnosis, st.integers(1, 200), st.booleans(), st.booleans())
def test_never_raises_and_fits_the_width(document: DiagnosisDocument, width: int, color: bool, unicode: bool) -> None:
    """Whatever a document holds, it renders, and no line is wider than the terminal."""
    text = render(document, Terminal(width=width, color=color, unicode=unicode))
    lines = re.sub(r"\x1b\[[0-9;]*m", "", text).split("\n")
    assert max(map(cell_len, lines)) <= max(width, MINIMUM_WIDTH)
    text.encode("utf-8")


@given(st.lists(st.integers(0, 2**63), min_size=1, max_size=6), st.integers(10, 100))
def test_bars_are_as_long_as_asked(sizes: list[int], width: int) -> None:
    """The parts of a bar fill it exactly, and none that holds anything vanishes."""
    lengths = cells(sizes, width)
    assert sum(lengths) == (width if any(sizes) else 0)
    assert all(length for size, length in zip(sizes, lengths, strict=True) if size)


def test_long_lines_break_no_table() -> None:
    """A line of a megabyte is cut, so that the report stays a report."""
    document = out_of_memory(
        occurrences=(occurrence(message="x" * MIB),), facts=replace(FACTS, user_line=SourceLine("p" * MIB, 1, "f", "c"))
    )
    assert len(render(document, Terminal(width=80))) < 40_000


@pytest.mark.parametrize(
    ("facts", "title"),
    [
        (
            Facts(total_bytes=4 * GIB, free_bytes=0, allocated_bytes=7 * GIB, reserved_unallocated_bytes=GIB),
            "Memory in use, 8.00 GiB; the device has 4.00 GiB",
        ),
        (
            Facts(mps_max_bytes=27 * GIB, allocated_bytes=10 * GIB, mps_other_bytes=18 * GIB),
            "Memory in use, 28.00 GiB; PyTorch may use 27.00 GiB",
        ),
        (
            Facts(total_bytes=24 * GIB, free_bytes=GIB, allocated_bytes=20 * GIB, reserved_unallocated_bytes=GIB),
            "Memory of the device, 24.00 GiB",
        ),
    ],
    ids=["spilled", "above the limit", "ordinary"],
)
def test_bar_and_percentages_refer_to_the_total_of_the_title(facts: Facts, title: str) -> None:
    """The parts make up the total that the title names first, whether or not it is the device's."""
    memory = device_memory(facts)
    assert memory.title == title
    assert memory.total_bytes == sum(part.size_bytes for part in memory.parts)
    assert format_size(memory.total_bytes) in title.partition(";")[0]
