"""What a person reads in a terminal."""

from __future__ import annotations

import re
import shlex
from dataclasses import replace
from typing import Literal

import documents
import pytest
from documents import CAPACITY_BYTES, MIB, gpt2, nothing_fits, trial
from hypothesis import given
from hypothesis import strategies as st
from memory_documents import profiled, step_memory
from rich.cells import cell_len

from oomdoctor.output import Terminal
from oomdoctor.report.probe.html import render as page
from oomdoctor.report.probe.text import render
from oomdoctor.report.terminal import MINIMUM_WIDTH
from oomdoctor.results import (
    Accumulation,
    Category,
    CommandPlan,
    Device,
    LineBytes,
    MicroBatch,
    ModuleBytes,
    Outcome,
    PhaseName,
    ProbeDocument,
    UniformPlan,
)
from oomdoctor.search.probe_search import plan_accumulation

GPT2_AT_80 = """\
┏━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━┓
┃                                                                              ┃
┃  micro-batch 19 fits; 20 runs out in backward, iteration 2                   ┃
┃                                                                              ┃
┗━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━┛

  recommended  18, which leaves at least 5% of the capacity free
  weights      475.00 MiB
  target       gpt2, bf16, AdamW
  device       NVIDIA GeForce RTX 4090, compute capability 8.9
               run on a null GPU: PyTorch's CUDA code without the arithmetic
  capacity     23.14 GiB = 23.64 GiB total - 507.00 MiB CUDA context (catalogue)

To reach a target batch of 256
  exact        accumulation_steps=14  14 micro-batches: 4 of 19, 10 of 18
  one size     accumulation_steps=16  16 micro-batches of 16
  fixed at 19  accumulation_steps=14  266 samples, 10 more than asked for
  19 is above the recommended 18: it fits, but leaves less than 5% of the
  capacity free, or the allocator has to retry

The error at micro-batch 20
  torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.92 GiB. GPU 0
  has a total capacity of 23.64 GiB of which 1.41 GiB is free. Of the allocated
  memory 20.99 GiB is allocated by PyTorch

Memory by phase at micro-batch 19
  iteration  phase           at end         peak
             load        475.00 MiB   498.00 MiB   2%  ▒·······················
  1          forward      19.61 GiB    20.21 GiB  87%  ████████████████████▒···
             backward    962.00 MiB    21.22 GiB  92%  █▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒··
             optimizer     1.40 GiB     1.88 GiB   8%  █▒······················
  2          forward      21.01 GiB    21.61 GiB  93%  ██████████████████████··
             backward      1.87 GiB    22.62 GiB  98%  ██▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒·
             optimizer     1.40 GiB     2.33 GiB  10%  █▒······················
  █ held at the end  ▒ up to the peak  · free

4 trials in 1.2 s
  size  outcome            peak allocated  peak reserved  retries  seconds
     1  fits                     3.00 GiB       3.22 GiB        0     0.16
    19  fits, largest           22.62 GiB      22.83 GiB        1     0.34
    20  out of memory           23.14 GiB      23.14 GiB        2     0.35
    18  fits, recommended       21.53 GiB      21.74 GiB        0     0.33

Where the numbers come from
  device           a null GPU, since `--gpu rtx-4090` names a card that is not
                   here
  context          507 MiB, the figure of the catalogue for this card
  cudnn_workspace  counted as 0: no measured figure yet

oomdoctor 0.1.0, python 3.11.9, torch 2.15.0+cu132, cuda 13.2
"""


MEMORY_AT_80 = """\
Memory at micro-batch 19
  20.47 GiB at the peak, in backward, iteration 2; 22.95 GiB reserved
  category                size
  activations        15.01 GiB  73%  █████████████████████████████
  workspace           3.61 GiB  18%  ███████
  optimizer state   944.00 MiB   5%  ██
  weights           472.00 MiB   2%  █
  gradients         472.00 MiB   2%  █
  input               3.00 MiB   0%  █

  largest modules              size       mostly
  transformer.h.*.mlp      9.85 GiB  48%  activations
  transformer.h.*.attn     6.42 GiB  31%  activations
  lm_head                  3.61 GiB  18%  workspace
  transformer.wte        588.00 MiB   3%  optimizer state
  the model itself        12.00 MiB   0%  activations
"""


def plain(document: ProbeDocument, width: int = 100) -> str:
    """The report as one line of words, so that where lines break does not matter."""
    return " ".join(render(document, Terminal(width=width, color=False, unicode=False)).replace("|", " ").split())


def test_whole_report_at_80_columns() -> None:
    """The report of a realistic probe is this text, to the character."""
    assert render(gpt2(), Terminal(width=80, color=False)) == GPT2_AT_80


@pytest.mark.parametrize("width", [60, 80, 120])
def test_answer_comes_first(width: int) -> None:
    """The first words of the report are the answer."""
    text = render(gpt2(), Terminal(width=width, color=False, unicode=False))
    words = " ".join(re.sub(r"[|+-]{2,}|\|", " ", text).split())
    assert words.startswith("micro-batch 19 fits; 20 runs out in backward, iteration 2")


@pytest.mark.parametrize("width", [80, 120])
def test_no_figure_is_broken_at_usual_widths(width: int) -> None:
    """A size in a table stays on the line of its row."""
    lines = render(gpt2(), Terminal(width=width, color=False)).splitlines()
    assert any(re.search(r"^    19  fits, largest +22\.62 GiB +22\.83 GiB +1 +0\.34$", line) for line in lines)
    assert any(re.search(r"^ +backward +1\.87 GiB +22\.62 GiB  98%  █", line) for line in lines)


def test_colour_adds_nothing_but_styles() -> None:
    """Without its escape sequences the coloured report is the plain one."""
    colored = render(gpt2(), Terminal(width=80, color=True))
    assert "\x1b[1;32m" in colored
    stripped = re.sub(r"\x1b\[[0-9;]*m", "", colored)
    assert [line.rstrip() for line in stripped.splitlines()] == GPT2_AT_80.splitlines()


def test_plain_report_has_no_escape_sequences(monkeypatch: pytest.MonkeyPatch) -> None:
    """No environment variable brings colour into a report that is to be plain."""
    for name in ("FORCE_COLOR", "PY_COLORS", "GITHUB_ACTIONS", "TTY_COMPATIBLE"):
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv("COLUMNS", "33")
    assert render(gpt2(), Terminal(width=80, color=False)) == GPT2_AT_80


def test_dumb_terminal_changes_no_width(monkeypatch: pytest.MonkeyPatch) -> None:
    """The width is the one that was asked for on every kind of terminal."""
    expected = render(gpt2(), Terminal(width=100, color=True))
    monkeypatch.setenv("TERM", "dumb")
    assert render(gpt2(), Terminal(width=100, color=True)) == expected


def test_ascii_where_nothing_else_can_be_shown() -> None:
    """Without Unicode every character is ASCII, the bars included."""
    text = render(gpt2(), Terminal(width=80, color=False, unicode=False))
    assert text.isascii()
    assert "98%  ##=====================." in text


def test_narrow_terminal_gets_no_bars() -> None:
    """At 60 columns the figures stay and the bars go."""
    text = render(gpt2(), Terminal(width=60, color=False))
    assert "22.62 GiB  98%" in text
    assert "█" not in text


def test_nothing_fits_says_by_how_much() -> None:
    """Where the weights alone are too large the report says by how many bytes."""
    text = plain(nothing_fits(), 120)
    assert "nothing fits; loading the model runs out of memory" in text
    assert "the weights alone exceed the capacity by 3.00 GiB (26.14 GiB into 23.14 GiB)" in text
    assert "To reach" not in text
    assert "recommended" not in text


def test_nothing_fits_without_any_trial() -> None:
    """A model that could not be placed at all leaves no trial, and the report still says so."""
    text = plain(nothing_fits(trials=(), phases=()))
    assert "nothing fits; loading the model runs out of memory" in text
    assert "exceed the capacity by 3.00 GiB" in text


def test_nothing_fits_though_the_weights_would() -> None:
    """Where one sample is too much the report names its phase and what the weights take."""
    failed = trial(1, Outcome.OOM)
    text = plain(nothing_fits(weights_bytes=475 * MIB, trials=(failed,), phases=failed.phases))
    assert "nothing fits; micro-batch 1 runs out in backward, iteration 2" in text
    assert "the weights take 475.00 MiB of the capacity's 23.14 GiB" in text
    assert "Memory by phase at micro-batch 1, up to the failure" in text


def test_what_memory_is_made_of() -> None:
    """The peak is told by category and by its five largest modules, between the phases and the trials."""
    text = render(profiled(), Terminal(width=80, color=False))
    assert text == GPT2_AT_80.replace("\n4 trials", f"\n{MEMORY_AT_80}\n4 trials")


def test_memory_of_no_module() -> None:
    """What belongs to no module, and to the model itself, has words; nothing at all has no table."""
    found = ModuleBytes(None, Category.INPUT, 3 * MIB, 1)
    text = plain(profiled(modules=(found, replace(found, module=""))))
    assert "outside the modules 3.00 MiB 0% input the model itself 3.00 MiB 0% input" in text
    empty = plain(profiled(modules=(), categories=(), peak_phase=PhaseName.OPTIMIZER))
    assert "20.47 GiB at the peak, in the optimizer step, iteration 2;" in empty
    assert "largest modules" not in empty
    assert "category" not in empty


def test_size_limit_is_not_called_memory() -> None:
    """A limit that is not memory is named as such, with the phase it was met in."""
    limit = trial(20, Outcome.LIMIT, error="RuntimeError: integer out of range", phases=documents.phases(20)[:2])
    document = gpt2(micro_batch=MicroBatch(19, 18, "limit"), trials=(trial(19), limit))
    text = plain(document)
    assert "20 meets a size limit that is not memory, in forward, iteration 1" in text
    assert "20 size limit" in text
    assert "RuntimeError: integer out of range" in text


def test_target_that_fits_whole() -> None:
    """Where the target itself fits there is one step to type and no error to show."""
    accumulation = Accumulation(16, 1, 1, (16,), 16, UniformPlan(16, 1, 16), UniformPlan(16, 1, 16))
    document = gpt2(micro_batch=MicroBatch(16, 16, "target"), accumulation=accumulation, trials=(trial(16),))
    text = plain(document)
    assert "micro-batch 16 fits; a target batch of 16 needs no more" in text
    assert "exact accumulation_steps=1 one micro-batch of 16 " in text
    assert "The error" not in text
    assert "16 fits, largest, recommended" in text


def test_devices_share_the_target() -> None:
    """With several devices the plan says how much each of them takes."""
    plan = Accumulation(512, 2, 14, (19,) * 4 + (18,) * 10, 512, None, UniformPlan(19, 14, 532))
    text = plain(gpt2(accumulation=plan))
    assert "To reach a target batch of 512 on 2 devices, 256 on each" in text
    assert "532 samples, 20 more than asked for" in text
    assert "no single size reaches the target exactly with at most 25% more steps" in text


def test_failure_with_the_headroom_withheld_is_not_the_successor() -> None:
    """The error shown is of the trial that had the whole capacity."""
    held_back = trial(20, Outcome.OOM, allowed_bytes=CAPACITY_BYTES // 2, error="the wrong one")
    text = plain(gpt2(trials=(trial(19), held_back, trial(20, Outcome.OOM), held_back)))
    assert "Tried to allocate 1.92 GiB" in text
    assert "the wrong one" not in text
    assert "out of memory, with 11.57 GiB allowed" in text.replace("\n", " ")


def test_warnings_and_instability_are_shown() -> None:
    """What makes the answer less sure stands between the answer and the figures."""
    text = plain(gpt2(stable=False, warnings=("the loss was NaN",)))
    first, second = text.index("memory of other processes moved"), text.index("warning: the loss was NaN")
    assert text.index("micro-batch 19 fits") < first < second < text.index("recommended 18")


def test_swallowed_error_is_pointed_at() -> None:
    """An OOM that the user's code caught is marked in the trials."""
    text = plain(gpt2(trials=(trial(19), trial(20, Outcome.OOM, swallowed_ooms=1))))
    assert "20 out of memory, caught by your code" in text


def test_smallest_size_and_missing_recommendation() -> None:
    """A model that refuses one sample, and a headroom that nothing leaves, are both said."""
    text = plain(gpt2(micro_batch=MicroBatch(19, 0, "memory", smallest=2)))
    assert "smallest 2, since the model refuses smaller micro-batches" in text
    assert "recommended none: no tested size leaves 5% of the capacity free without PyTorch giving back" in text
    assert "19 is above every recommended size" in text


@pytest.mark.parametrize(
    ("device", "expected"),
    [
        (Device("cuda", "X", "9.0", CAPACITY_BYTES + 900 * MIB, 500 * MIB, 400 * MIB), "(measured) - 400.00 MiB other"),
        (Device("cuda", "X", "9.0", 80 * 1024 * MIB, 500 * MIB), "23.14 GiB of 80.00 GiB total, 500.00 MiB CUDA"),
        (Device("trace", "X", "9.0", CAPACITY_BYTES), "23.14 GiB of 23.14 GiB total"),
    ],
)
def test_capacity_shows_its_parts(device: Device, expected: str) -> None:
    """The capacity is an equation where its parts add up to it and a share where it was capped."""
    assert expected in plain(gpt2(device=device), 120)


@pytest.mark.parametrize("kind", ["cuda", "null", "trace"])
def test_every_number_says_how_it_was_had(kind: Literal["cuda", "null", "trace"]) -> None:
    """Each kind of device has its own words for where the numbers come from."""
    expected = {"cuda": "measured on this GPU", "null": "run on a null GPU", "trace": "traced: allocations replayed"}
    device = replace(gpt2().result.device, kind=kind)
    assert expected[kind] in plain(gpt2(device=device))


def test_control_sequences_never_reach_the_terminal() -> None:
    """Text of a document can neither colour the terminal, nor move its cursor, nor be read as Rich's markup."""
    hostile = "\x1b]0;title\x07\x1b[2Jev\x9b31mil\r[red]x[/red] :tada: \u202e"
    memory = step_memory(modules=(ModuleBytes(hostile, Category.WEIGHTS, 1, 1),))
    text = render(gpt2(target=hostile, warnings=(hostile,), memory=memory), Terminal(width=120, color=False))
    assert "evil [red]x[/red] :tada:, bf16" in text
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]", text)


@given(documents.any_probe_document, st.integers(1, 200), st.booleans(), st.booleans())
def test_never_raises_and_fits_the_width(document: ProbeDocument, width: int, color: bool, unicode: bool) -> None:
    """Whatever a document holds, it renders, and no line is wider than the terminal."""
    text = render(document, Terminal(width=width, color=color, unicode=unicode))
    lines = re.sub(r"\x1b\[[0-9;]*m", "", text).split("\n")
    assert max(map(cell_len, lines)) <= max(width, MINIMUM_WIDTH)
    text.encode("utf-8")


def test_a_command_is_printed_as_a_shell_takes_it() -> None:
    """The command that reaches the target can be copied from any width: read by a shell, it is the plan's words."""
    document = documents.command()
    for width in (60, 80, 200):
        text = render(document, Terminal(width=width))
        block = text.partition("To reach a target batch of 256\n")[2].partition("16 micro-batches of 16")[0]
        assert document.result.command_plan is not None
        assert shlex.split(block.replace("\\\n", "")) == list(document.result.command_plan.run or ())


def test_a_command_is_not_offered_sizes_that_it_cannot_take() -> None:
    """A command takes one size, so that no plan of several sizes is shown for it."""
    text = render(documents.command(), Terminal(width=100))
    assert "16 micro-batches of 16, exactly the target" in text
    assert "4 of 19, 10 of 18" not in text


def test_hostile_words_of_a_command_stay_on_their_lines() -> None:
    """Control characters in a command's words do not reach the terminal."""
    plan = CommandPlan(("x",), ("python", "a\x1b[31mb\nc", "\u202etxt"), UniformPlan(16, 16, 256))
    text = render(documents.command(command_plan=plan), Terminal(width=80))
    assert "\x1b" not in text
    assert "\u202e" not in text


def test_the_plan_of_the_recommended_size_comes_first() -> None:
    """People copy what they read first; the plan at the maximum, which is the edge, is told after it."""
    careful = plan_accumulation(256, 16)
    document = gpt2(recommended_accumulation=careful, micro_batch=MicroBatch(19, 16, "memory"))

    lines = [line.split() for line in render(document, Terminal(width=100, unicode=False)).splitlines()]

    assert next(line for line in lines if line[:1] == ["recommended"] and "accumulation_steps=16" in line)
    names = [line[0] for line in lines if len(line) > 1 and line[1].startswith("accumulation_steps=")]
    assert names == ["recommended", "maximum"]


def test_a_larger_plain_step_is_told() -> None:
    """Where accumulating makes the answer smaller, both sizes are told."""
    assert "plain step" not in plain(gpt2(micro_batch=MicroBatch(19, 18, "memory", plain_maximum=19)))
    assert "plain step 21 fits where nothing is accumulated" in plain(
        gpt2(micro_batch=MicroBatch(19, 18, "memory", plain_maximum=21))
    )


def test_an_answer_without_a_target_says_how_to_ask_for_one() -> None:
    """A probe without a target has no plan, and names the option that makes one."""
    text = plain(gpt2(accumulation=None))
    assert "To reach a target batch" not in text
    assert "steps of one micro-batch; `--target-batch` plans the accumulation" in text


def test_lines_of_the_users_code_are_listed() -> None:
    """The largest first, each with the operator that holds most; what no line accounts for is in the JSON alone."""
    parts = (
        ("aten::mm", "model.py:9", Category.GRADIENTS, 3),
        ("aten::_log_softmax", "model.py:12", Category.ACTIVATIONS, 4),
        ("aten::add", "model.py:12\x1b[31m", Category.WORKSPACE, 1),
        (None, None, Category.WEIGHTS, 8),
    )
    lines = tuple(LineBytes(name, line, kind, size * 1024 * MIB, 1) for name, line, kind, size in parts)
    text = plain(gpt2(memory=step_memory(source_lines=lines)))
    assert "largest lines size mostly model.py:12 4.00 GiB 20% _log_softmax model.py:9 3.00 GiB 15% mm" in text
    assert "\x1b" not in text
    assert "outside your lines" not in text
    assert "outside your lines" in page(gpt2(memory=step_memory(source_lines=lines)))
