"""`oomdoctor prescribe`: each row equals a probe of a file edited by hand, and a shown patch is proven."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from prescribe_edits import ADAPTED
from prescribing import CARD, HAS_PIECES, MODEL, prescribed, without_all_but
from running import Run

from oomdoctor import probe
from oomdoctor.progress import SilentProgress
from oomdoctor.request import build_request
from oomdoctor.results import Outcome, PrescribeDocument
from oomdoctor.trial.probe import probe as run_probe

pytestmark = [pytest.mark.null_gpu, pytest.mark.usefixtures("forked_workers")]
BLOCK = "            x = block(x)\n"
REPLAYED = "            x = torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False)\n"
EVERY_SECOND = """\
            number = [*self.blocks].index(block)
            x = torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False) if number % 2 == 0 else block(x)
"""
KEPT = """\
            from functools import partial
            from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts
            context = partial(create_selective_checkpoint_contexts, [{operators}])
            x = checkpoint(block, x, use_reentrant=False, context_fn=context)
"""
ATTENTION = [f"torch.ops.aten._scaled_dot_product_{kind}_attention.default" for kind in ("flash", "efficient", "cudnn")]
MATMULS = [f"torch.ops.aten.{name}.default" for name in ("mm", "addmm", "bmm", "convolution")]
LOSS = "    return nn.functional.cross_entropy(model(batch).flatten(0, 1), batch.flatten())\n"
FUSED = """\
    hidden = model.hidden(batch).flatten(0, 1)
    options = nn.LinearCrossEntropyOptions()
    return nn.functional.linear_cross_entropy(hidden, model.output.weight, batch.flatten(), options=options)
"""
UNDER_BF16 = """\
    with torch.autocast("cuda", dtype=torch.bfloat16):
        return nn.functional.cross_entropy(model(batch).flatten(0, 1), batch.flatten())
"""
OFFLOADED = """\
    def pack(tensor):
        base = tensor if tensor._base is None else tensor._base
        return tensor if isinstance(base, nn.Parameter) else torch.empty_like(tensor, device="meta")

    def unpack(kept):
        return torch.empty_like(kept, device="cuda") if kept.is_meta else kept

    with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        return nn.functional.cross_entropy(model(batch).flatten(0, 1), batch.flatten())
"""
FREED = """\
    for kept in KEPT:
        kept.untyped_storage().resize_(0)
    KEPT.clear()
    return torch.randint(6000, (batch_size, 512))
"""
KEPT_BATCH = f"    KEPT.append(batch)\n{LOSS}\n\nKEPT = []\n"
BUILT = "    return Model(layers, 256, 6000)\n"
OPTIMIZER = "\n\ndef build_optimizer(model):\n    return torch.optim.{call}\n"

FROZEN = """\
    model = Model(layers, 256, 6000)
    for name, parameter in model.named_parameters():
        parameter.requires_grad = "adapts" in name
    return model
"""
WIDE_LAYERS = "(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))"

BY_HAND: dict[str, tuple[tuple[str, str], ...]] = {
    "checkpoint": ((BLOCK, REPLAYED),),
    "checkpoint-every-2": ((BLOCK, EVERY_SECOND),),
    "checkpoint-keep-attention": ((BLOCK, KEPT.format(operators=", ".join(ATTENTION))),),
    "checkpoint-keep-matmuls": ((BLOCK, KEPT.format(operators=", ".join([*MATMULS, *ATTENTION]))),),
    "bf16": ((LOSS, UNDER_BF16),),
    "offload-activations": ((LOSS, OFFLOADED),),
    "drop-leftovers": (("    return torch.randint(6000, (batch_size, 512))\n", FREED), (LOSS, KEPT_BATCH)),
    "bf16-weights": ((BUILT, "    return Model(layers, 256, 6000).to(torch.bfloat16)\n"),),
    "optimizer-loop": ((LOSS, LOSS + OPTIMIZER.format(call="AdamW(model.parameters(), foreach=False)")),),
    "optimizer-fused": ((LOSS, LOSS + OPTIMIZER.format(call="AdamW(model.parameters(), fused=True)")),),
    "adafactor": ((LOSS, LOSS + OPTIMIZER.format(call="Adafactor(model.parameters())")),),
    "lora": (
        ("class Block(nn.Module):\n", f"{ADAPTED}class Block(nn.Module):\n"),
        ("self.mix = nn.Linear(", "self.mix = Adapted("),
        (WIDE_LAYERS, WIDE_LAYERS.replace("nn.Linear", "Adapted")),
        (BUILT, FROZEN),
    ),
    **({"fused-cross-entropy": ((LOSS, FUSED),)} if HAS_PIECES else {}),
}
"""What is edited by hand for a remedy, as texts and what replaces them."""


@pytest.fixture(scope="module")
def everything(tmp_path_factory: pytest.TempPathFactory) -> PrescribeDocument:
    """The whole table of the small GPT."""
    return prescribed(tmp_path_factory.mktemp("whole"), "--with", "lora")


def by_hand(folder: Path, *edits: tuple[str, str], precision: str = "fp32") -> tuple[int, int]:
    """Maximum of a file that is edited by hand, and its peak there; a scaler is no part of the file."""
    text = MODEL
    for old, new in edits:
        assert old in text
        text = text.replace(old, new)
    (folder / "edited.py").write_text(text)
    card = {"gpu": "rtx-4090", "capacity": "1GiB"}
    request = build_request("edited.py", directory=folder, target_batch=64, precision=precision, **card)
    result = run_probe(replace(request, profiles=False), SilentProgress()).result
    maximum = result.micro_batch.maximum
    at_maximum = [t for t in result.trials if t.micro_batch == maximum and t.outcome is Outcome.FITS]
    return maximum, at_maximum[0].peak_allocated_bytes or 0


@pytest.mark.parametrize("name", BY_HAND)
def test_a_row_is_the_probe_of_a_file_edited_by_hand(name: str, everything: PrescribeDocument, tmp_path: Path) -> None:
    """The same maximum, and the same peak at it to the byte."""
    row = next(row for row in everything.result.alone if row.remedies == (name,))
    assert row.outcome == "measured", row.problem
    assert by_hand(tmp_path, *BY_HAND[name]) == (row.maximum, row.peak_bytes)


def test_a_trace_has_the_rows_of_the_null_gpu(everything: PrescribeDocument, tmp_path: Path) -> None:
    """Of the remedies whose operators it knows; it copies no offloaded activations, and refuses compiled code."""
    known = {"checkpoint", "checkpoint-keep-attention", "offload-activations", "lora"}
    asked = (*without_all_but(*known), "--with", "lora", "--with", "compile", "--budget", "6")
    rows = {row.remedies[0]: row for row in prescribed(tmp_path, "--engine", "trace", *asked).result.alone}
    assert "the trace engine" in (rows["compile-50"].problem or "")
    for expected in everything.result.alone:
        if expected.remedies[0] in known:
            row = rows[expected.remedies[0]]
            assert (row.maximum, row.host_bytes > 0) == (expected.maximum, expected.host_bytes > 0)
            assert row.extra_bytes_percent == expected.extra_bytes_percent


def test_fp16_is_the_probe_with_that_precision(everything: PrescribeDocument, tmp_path: Path) -> None:
    """Autocast and a scaler, as `--precision fp16` has them."""
    row = next(row for row in everything.result.alone if row.remedies == ("fp16",))
    assert by_hand(tmp_path, precision="fp16") == (row.maximum, row.peak_bytes)


def test_an_allocator_setting_is_the_probe_of_a_file_that_makes_it(tmp_path: Path) -> None:
    """Set by the file before it imports torch."""
    row = prescribed(tmp_path, *without_all_but("expandable-segments"), settings=()).result.alone[0]
    assert row.outcome == "measured", row.problem
    first = "import torch\n"
    setting = f'import os\n\nos.environ["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"\n{first}'
    assert by_hand(tmp_path, (first, setting)) == (row.maximum, row.peak_bytes)


@pytest.mark.skipif(not HAS_PIECES, reason="needs a PyTorch with `LinearCrossEntropyOptions`")
def test_a_combination_is_both_edits(everything: PrescribeDocument, tmp_path: Path) -> None:
    """Checkpointing and the fused loss together gain more than both do alone."""
    both = {"checkpoint", "fused-cross-entropy"}
    row = next(row for row in everything.result.combined if {*row.remedies} == both)
    assert by_hand(tmp_path, (BLOCK, REPLAYED), (LOSS, FUSED)) == (row.maximum, row.peak_bytes)
    alone = {r.remedies[0]: r.maximum - everything.result.plain.maximum for r in everything.result.alone}
    assert row.maximum - everything.result.plain.maximum > sum(alone[name] for name in both)


def test_every_remedy_has_a_row(everything: PrescribeDocument) -> None:
    """What saves nothing comes after what helps, and what does not apply comes last, with its reason."""
    rows = everything.result.alone
    assert everything.result.plain.maximum > 0
    assert [row.outcome == "measured" for row in rows] == sorted(
        (row.outcome == "measured" for row in rows), reverse=True
    )
    measured = [row.maximum for row in rows if row.outcome == "measured"]
    assert measured == sorted(measured, reverse=True)
    reasons = {row.remedies[0]: row.problem for row in rows if row.outcome == "not_applicable"}
    assert "steps accumulate" in (reasons["optimizer-in-backward"] or "")
    assert "is installed" in (reasons["adamw-8bit"] or "")
    advised = " ".join(everything.result.advice)
    assert "fully_shard" in advised
    assert "`--world-size 8`" in advised
    assert "the scores" not in advised  # the small GPT's attention holds none
    offloaded = next(row for row in rows if row.remedies == ("offload-activations",))
    assert offloaded.host_bytes > 0
    assert next(row for row in rows if row.remedies == ("checkpoint",)).acts_on == (
        "6 of 6 blocks (`blocks.*`, `Block` at model.py:7)",
    )


def test_what_is_computed_again_is_counted(everything: PrescribeDocument) -> None:
    """Products of a second forward for a checkpoint, none where they are kept, and none hidden in a fused loss."""
    flops = {row.remedies: row.recomputed_flops_percent for row in everything.result.alone}
    touched = {row.remedies: row.extra_bytes_percent for row in everything.result.alone}
    assert flops["checkpoint",] is not None
    assert flops["checkpoint-every-2",] is not None
    assert 33.4 > flops["checkpoint",] > 1.9 * flops["checkpoint-every-2",] > 0
    assert flops["checkpoint-keep-matmuls",] == flops["drop-leftovers",] == touched["drop-leftovers",] == 0
    assert (touched["checkpoint-keep-matmuls",] or 0) > 0
    if HAS_PIECES:
        assert flops["fused-cross-entropy",] is not None
        assert flops["fused-cross-entropy",] < 1
        assert (touched["fused-cross-entropy",] or 0) > 0
    assert everything.result.plain.recomputed_flops_percent == 0


def test_a_change_outside_of_steps_has_the_count_of_the_step_without_it(everything: PrescribeDocument) -> None:
    """Optimizers and what the loop keeps change no operator of forward and backward, alone and on top of others."""
    result = everything.result
    counts = {row.remedies: (row.step_flops, row.step_touched_bytes) for row in (result.plain, *result.alone)}
    assert counts["optimizer-fused",] == counts["drop-leftovers",] == counts["adafactor",] == counts[()]
    assert counts["checkpoint",] != counts[()]
    counts |= {row.remedies: (row.step_flops, row.step_touched_bytes) for row in result.combined}
    on_top = [names for names in counts if names[-1:] == ("optimizer-fused",) and len(names) > 1]
    assert on_top
    assert all(counts[names] == counts[names[:-1]] for names in on_top)


def test_the_patch_is_proven(everything: PrescribeDocument, tmp_path: Path) -> None:
    """Applied to the file by `patch`, it has the maximum that is prescribed."""
    result = everything.result
    assert result.patch is not None, result.patch_problem
    assert result.prescribed is not None
    (tmp_path / "model.py").write_text(MODEL)
    subprocess.run(["patch", "-p1"], input=result.patch.diff, text=True, cwd=tmp_path, check=True, capture_output=True)
    found = probe(tmp_path / "model.py", target_batch=64, gpu="rtx-4090", capacity="1GiB").result.micro_batch.maximum
    assert found == result.patch.maximum == result.prescribed.maximum


def test_no_more_blocks_than_are_needed(everything: PrescribeDocument, tmp_path: Path) -> None:
    """What is needed lies between none and all blocks, and so do the blocks; the patched file is written."""
    alone = {row.remedies[0]: row.maximum for row in everything.result.alone}
    need = (everything.result.plain.maximum + alone["checkpoint"]) // 2
    options = (*without_all_but("checkpoint"), "--write", "better.py")
    found = prescribed(tmp_path, "--need", str(need), *options).result
    assert found.prescribed is not None
    assert found.prescribed.maximum >= need
    assert found.prescribed.acts_on[0].split()[0] in ("1", "2", "3", "4", "5")
    assert found.patch is not None, found.patch_problem
    assert found.patch.written == "better.py"
    assert "for block in model.blocks[:" in (tmp_path / "better.py").read_text()
    assert (tmp_path / "model.py").read_text() == MODEL
    assert not list(tmp_path.glob("*_prescribed_*"))


def test_what_cannot_be_reached_fails(tmp_path: Path) -> None:
    """Exit code 1, with the most that can be had; a target without blocks says so."""
    source = MODEL.replace("for _ in range(layers)", "for _ in range(1)")
    document = prescribed(tmp_path, "--need", "64", *without_all_but("checkpoint", "drop-leftovers"), source=source)
    assert (document.status, document.exit_code) == ("not_reached", 1)
    row = next(row for row in document.result.alone if row.remedies == ("checkpoint",))
    assert (row.outcome, row.problem) == (
        "not_applicable",
        "no class of modules is repeated in the model, so that there are no blocks to checkpoint",
    )


def test_a_step_that_raises_says_why(tmp_path: Path) -> None:
    """A remedy whose step fails is shown with the error, and the others are measured."""
    words = "        x = self.words(tokens)\n"
    source = MODEL.replace(words, f"{words}        assert x.dtype == torch.float32\n")
    document = prescribed(tmp_path, *without_all_but("bf16-weights", "drop-leftovers"), source=source)
    row = next(row for row in document.result.alone if row.remedies == ("bf16-weights",))
    assert row.outcome == "raises"
    assert "AssertionError" in (row.problem or "")


def test_the_budget_bounds_the_probes(tmp_path: Path) -> None:
    """What it does not reach is named, and nothing is left out in silence; the patch is proven within it."""
    found = prescribed(tmp_path, "--budget", "3", *without_all_but("checkpoint", "drop-leftovers", "bf16")).result
    assert found.probes <= 3
    problems = [row.problem for row in found.alone if row.outcome == "not_measured"]
    assert problems == ["the budget of probes was spent"] * 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--without", "magic"), "there is no remedy `magic`"),
        (("--without", "Checkpont"), "did you mean `checkpoint`"),
        (("--with", "lorra"), "did you mean `lora`?"),
        (("--with", "bf16", "--without", "bf16"), "`bf16` is asked for with `--with` and left out with `--without`"),
        (("--need", "65"), "a micro-batch of 65 is needed, and the target batch is 64"),
        (("--write", "no/such/file.py"), "no/such"),
        (("--target-batch", "-3"), "error: target batch -3 is not a number of samples"),
    ],
)
def test_bad_questions(arguments: tuple[str, ...], message: str, oomdoctor_here: Run, tmp_path: Path) -> None:
    """Exit code 2 before anything is probed."""
    (tmp_path / "model.py").write_text(MODEL)
    done = oomdoctor_here("prescribe", "model.py", *CARD, *arguments)
    assert done.returncode == 2
    assert message in done.stderr
    assert "probes done" not in done.stderr


def test_more_than_is_ever_tried_is_refused(oomdoctor_here: Run, tmp_path: Path) -> None:
    """Exit code 2 instead of a search for a size that no probe reaches."""
    (tmp_path / "model.py").write_text(MODEL)
    done = oomdoctor_here("prescribe", "model.py", *CARD[:4], "--need", "1048577")
    assert done.returncode == 2
    assert "none above 1048576 is tried" in done.stderr
