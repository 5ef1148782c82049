"""What a step computes and touches, counted from its operators; no device is needed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from oomdoctor.multi_card.pool import PooledProbe, probe_case
from oomdoctor.multi_card.workers import WorkerPool
from oomdoctor.request import build_request
from oomdoctor.trial.answer import ProbeRun
from oomdoctor.trial.cost import CostCounter
from oomdoctor.trial.process import CancelToken

HAS_PIECES = hasattr(nn, "LinearCrossEntropyOptions")
ROWS, WIDTH, WORDS = 8, 16, 96


def test_products_and_bytes_of_a_linear_layer() -> None:
    """Two products of rows x width x width: the layer, and its weight's gradient; bytes of inputs and outputs."""
    layer, x = nn.Linear(WIDTH, WIDTH, bias=False), torch.randn(ROWS, WIDTH)
    with CostCounter() as counter:
        y = layer(x)
    assert counter.flops == 2 * ROWS * WIDTH * WIDTH
    assert counter.touched_bytes == 4 * (2 * ROWS * WIDTH + WIDTH * WIDTH)
    with counter:
        y.sum().backward()
    assert counter.flops == 4 * ROWS * WIDTH * WIDTH
    assert not counter.unknown


def test_a_checkpoint_computes_its_forward_twice() -> None:
    """The forward's products once more, and nothing else."""
    layers = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH))
    counts = []
    for step in (layers, lambda x: checkpoint(layers, x, use_reentrant=False)):
        with CostCounter() as counter:
            step(torch.randn(ROWS, WIDTH, requires_grad=True)).sum().backward()
        counts.append(counter.flops)
    # the last layer's product is not needed again, and is computed all the same
    assert counts[1] - counts[0] in (2 * ROWS * WIDTH * WIDTH, 4 * ROWS * WIDTH * WIDTH)


def test_operators_that_multiply_no_matrices_leave_the_count_known() -> None:
    """Scalars, activations that mobile networks use, and softmax of masked rows are no products."""
    x = torch.randn(2, 1, 4, 4, requires_grad=True)
    mask = torch.ones(4, 4, dtype=torch.bool)
    with CostCounter() as counter:
        y = nn.functional.hardswish(x) + nn.functional.hardsigmoid(x) + nn.functional.hardtanh(x)
        torch.scalar_tensor(1.0)
        torch.arange(4) // 2
        torch.ops.aten._safe_softmax(y.masked_fill(~mask, -torch.inf), -1).sum().backward()
    assert counter.unknown == set()
    assert counter.flops == 0


@pytest.mark.skipif(not hasattr(torch, "_grouped_mm"), reason="this PyTorch has no product in groups")
def test_a_product_in_groups_is_that_of_its_parts() -> None:
    """Each of eight rows meets the matrix of its own expert alone."""
    rows, experts = torch.randn(ROWS, WIDTH), torch.randn(2, WIDTH, 2 * WIDTH)
    with CostCounter() as counter:
        torch._grouped_mm(rows.bfloat16(), experts.bfloat16(), offs=torch.tensor([ROWS // 2, ROWS], dtype=torch.int32))
    assert counter.flops == 2 * ROWS * WIDTH * 2 * WIDTH
    assert counter.unknown == set()


def test_an_operator_without_a_formula_is_unknown() -> None:
    """A custom operator may multiply anything: its name is kept, and nothing is made up."""

    @torch.library.custom_op("oomdoctor_test::square", mutates_args=())
    def square(x: torch.Tensor) -> torch.Tensor:
        return x @ x

    with CostCounter() as counter:
        square(torch.randn(4, 4))
    assert counter.unknown == {"oomdoctor_test::square"}
    with CostCounter() as counter:
        torch.linalg.inv(torch.eye(4))
    assert counter.unknown


@pytest.mark.skipif(not HAS_PIECES, reason="needs a PyTorch with `LinearCrossEntropyOptions`")
def test_a_fused_loss_is_counted_by_the_products_inside_of_it() -> None:
    """Its products hide in one operator: they are those of the two operators that it replaces."""
    hidden, weight = torch.randn(ROWS, WIDTH, requires_grad=True), torch.randn(WORDS, WIDTH, requires_grad=True)
    labels = torch.randint(WORDS, (ROWS,))
    with CostCounter() as plain:
        nn.functional.cross_entropy(nn.functional.linear(hidden, weight), labels).backward()
    with CostCounter() as fused:
        options = nn.LinearCrossEntropyOptions()
        nn.functional.linear_cross_entropy(hidden, weight, labels, options=options).backward()
    assert not fused.unknown
    assert plain.flops == 6 * ROWS * WIDTH * WORDS
    assert 0 <= fused.flops - plain.flops <= 4 * ROWS * (WIDTH + WORDS)


def test_scores_of_attention_are_seen() -> None:
    """A softmax over a square matrix for each head is attention whose scores exist as a whole."""
    with CostCounter() as counter:
        torch.randn(2, 4, 8, 8).softmax(-1)
        torch.randn(64, 96).softmax(-1)
    assert counter.score_bytes == 4 * 2 * 4 * 8 * 8


COUNTED_IN_VAIN = """\
import operator

import torch
from torch.utils._python_dispatch import _get_current_dispatch_mode


def build_model():
    return torch.nn.Linear(8, 8)


def make_batch(batch_size):
    return torch.zeros(batch_size, 8)


def training_step(model, batch):
    loss = model(batch).mean()
    if _get_current_dispatch_mode() is not None:  # with what counts operators, the backward needs more than there is
        loss.register_hook(operator.methodcaller("repeat", 2**40))
    return loss
"""


@pytest.mark.null_gpu
@pytest.mark.usefixtures("forked_workers")
def test_a_step_that_runs_out_while_it_is_counted_has_no_known_cost(tmp_path: Path) -> None:
    """Counting keeps tensors longer; where only that runs out, the answer stands without a cost."""
    (tmp_path / "model.py").write_text(COUNTED_IN_VAIN)
    request = build_request("model.py", directory=tmp_path, gpu="rtx-4090", capacity="64MiB", target_batch=4)
    with WorkerPool(CancelToken()) as workers:
        found = probe_case(
            PooledProbe("model", replace(request, profiles=False, counts_cost=True)), None, workers.start
        )

    assert isinstance(found, ProbeRun)
    assert found.result.micro_batch.maximum == 4
    assert found.cost is None
