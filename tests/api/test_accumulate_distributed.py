"""Two real processes under DistributedDataParallel have the gradient of the batch that they share."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import torch

_RANK = """\
import sys
from contextlib import nullcontext

import torch
from torch import distributed, nn

from oomdoctor import accumulate, plan_accumulation

rank, folder = int(sys.argv[1]), sys.argv[2]
distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
torch.manual_seed(1)
model = nn.parallel.DistributedDataParallel(nn.Linear(5, 3).double())
torch.manual_seed(2)
inputs, labels = torch.randn(22, 5, dtype=torch.float64), torch.randint(0, 3, (22,))
reductions = []


def counting(_, bucket):
    reductions.append(1)
    work = distributed.all_reduce(bucket.buffer().div_(2), async_op=True)
    return work.get_future().then(lambda done: done.value()[0])


model.register_comm_hook(None, counting)
share = slice(11 * rank, 11 * rank + 11)
steps = accumulate((inputs[share], labels[share]), plan_accumulation(22, 4, 2))
for micro_batch, is_boundary in steps:
    with nullcontext() if is_boundary else model.no_sync():
        steps.backward(nn.functional.cross_entropy(model(micro_batch[0]), micro_batch[1]))
accumulated = [parameter.grad for parameter in model.parameters()]

whole = nn.Linear(5, 3).double()
whole.load_state_dict(model.module.state_dict())
nn.functional.cross_entropy(whole(inputs), labels).backward()
torch.save((accumulated, [parameter.grad for parameter in whole.parameters()], len(reductions)), f"{folder}/{rank}.pt")
distributed.destroy_process_group()
"""


def test_ranks_have_the_gradient_of_the_shared_batch(tmp_path: Path) -> None:
    """With `no_sync` off the boundary, gradients are reduced once a step and equal the whole batch's to 1e-6."""
    script = tmp_path / "rank.py"
    script.write_text(_RANK)
    started = [
        subprocess.Popen([sys.executable, script, str(rank), tmp_path], stderr=subprocess.PIPE, text=True)
        for rank in range(2)
    ]
    errors = [process.communicate(timeout=120)[1] for process in started]
    assert [process.returncode for process in started] == [0, 0], errors

    for rank in range(2):
        accumulated, whole, reductions = torch.load(tmp_path / f"{rank}.pt", weights_only=True)
        assert reductions == 1
        for one, other in zip(accumulated, whole, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-12)
