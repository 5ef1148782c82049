"""Compare what Inductor folds on the null GPU with what it folds of the same function on the CPU."""

from __future__ import annotations

from typing import Any

import torch
import torch._inductor.config
from reporting import leave_with
from torch._inductor.fx_passes import joint_graph

from oomdoctor.agent import guard, known_values, null_gpu, unknown_reads

known_values.install()
unknown_reads.begin()
torch._inductor.config.force_disable_caches = True  # a graph that was compiled before is not folded


class FoldedError(BaseException):
    """Ends a compilation once constants are folded."""


def scaled(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Change a tensor by constants, half of which are 0 or 1."""
    full, yes = torch.full((8,), 2.0, device=x.device), torch.ones(8, dtype=torch.bool, device=x.device)
    one, two = torch.tensor(1.0, device=x.device), torch.tensor(2.0, device=x.device)
    return (
        x + full * 3,
        x * (full / 2),
        x + (full - 2),
        x * yes.float(),
        x * yes.to(torch.bfloat16),
        x + (1 - yes.long()),
        x + two,
        x * one,
        x * torch.where(~yes, two, one),
        torch.where(yes, 1.0, 0.0) * x,
        x * torch.scalar_tensor(1.0, device=x.device),
        x + torch.full((8,), float("-inf"), device=x.device).exp(),
        x + torch.full((8,), 7, dtype=torch.float64, device=x.device).floor_divide(2),
        x * (full.to(torch.complex64) * 2).real,
    )


def folded(device: str) -> tuple[list[bool], list[str]]:
    """Return which results are the input itself, and the values that were folded, in the order of the graph."""
    fold, found = joint_graph.remove_no_ops, []

    def fold_and_end(gm: Any, *sets: Any) -> None:
        values = [str(node.args[1]) for node in gm.graph.nodes if "full" in str(node.target)]
        fold(gm, *sets)
        given = next(node for node in gm.graph.nodes if node.op == "placeholder")
        output = next(node for node in gm.graph.nodes if node.op == "output")
        found.append(([result is given for result in output.args[0]], values))
        raise FoldedError

    joint_graph.remove_no_ops = fold_and_end
    try:
        torch.compile(scaled)(torch.zeros(8, device=device))
    except FoldedError:
        pass
    finally:
        joint_graph.remove_no_ops = fold
    return found[0]


before = unknown_reads.mark()
leave_with(
    device=folded("cuda"),
    host=folded("cpu"),
    reads=[read.text for read in unknown_reads.reads(before)],
    zeros=null_gpu.zeros_read(),
    failures=guard.FAILURES,
)
