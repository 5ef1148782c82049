"""Memory that depends on values which a null GPU does not have is counted by an assumption, and that is told."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from running import Run

pytestmark = pytest.mark.null_gpu

# Experts of which each token sees two or one; of a row an expert keeps nine times its width.
EXPERTS = """
import torch
from torch import nn
from torch.nn import functional as F

WIDTH, COUNT, TOP = 512, 8, 2


class Experts(nn.Module):
    def __init__(self):
        super().__init__()
        layers = [(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)) for _ in range(COUNT)]
        self.experts = nn.ModuleList(nn.Sequential(*each) for each in layers)
        self.router = nn.Linear(WIDTH, COUNT)

    def forward(self, tokens):
        return self.ROUTE(tokens, self.router(tokens).softmax(-1))

    def by_mask(self, tokens, probabilities):
        weights, chosen = torch.topk(probabilities, TOP, dim=-1)
        mask = F.one_hot(chosen, num_classes=COUNT).permute(2, 1, 0)
        found = torch.zeros_like(tokens)
        for number in (mask.sum(dim=(-1, -2)) > 0).nonzero():
            slot, rows = torch.where(mask[number].squeeze(0))
            found.index_add_(0, rows, self.experts[number](tokens[rows]) * weights[rows, slot, None])
        return found

    def by_capacity(self, tokens, probabilities):
        mask = F.one_hot(probabilities.argmax(-1), COUNT)
        mask = (mask * (mask.cumsum(0) <= len(tokens) * 5 // (4 * COUNT))).bool()
        found = torch.zeros_like(tokens)
        for number in mask.sum(0).nonzero()[:, 0].tolist():
            found[mask[:, number]] = self.experts[number](tokens[mask[:, number]])
        return found

    def by_counts(self, tokens, probabilities):
        chosen = torch.topk(probabilities, TOP, dim=-1)[1].view(-1)
        order, counts = chosen.argsort(), torch.bincount(chosen, minlength=COUNT).tolist()
        parts = tokens[order // TOP].split(counts)
        outputs = [expert(part) for expert, part in zip(self.experts, parts) if len(part)]
        return torch.cat(outputs)[order.argsort()].view(len(tokens), TOP, -1).sum(1)

    def by_value(self, tokens, probabilities):
        return self.experts[0](tokens[: len(torch.unique((probabilities[:, 0] * 1000).long()))])

    def by_threshold(self, tokens, probabilities):
        return self.experts[0](tokens[probabilities[:, 0] > 0.5])

    def by_half(self, tokens, probabilities):
        mask = probabilities > 0.5
        found = probabilities.masked_select(mask).sum() + tokens[mask[:, 0].nonzero()[:, 0]].sum()
        made, kept = self.experts[0](tokens), tokens.clone()
        kept[mask[:, 1]] = made[mask[:, 1]]
        return kept.sum() + found

    def by_kind(self, tokens, probabilities):
        scores = (probabilities[:, 0] * 1000).long()
        _, kinds, counts = scores.unique(return_inverse=True, return_counts=True)
        runs = scores.unique_consecutive(return_counts=True)[1]
        chosen = probabilities[:, 1] > 0.5
        flags, sides = chosen.unique(return_inverse=True)
        turned = self.experts[1](tokens[: len(chosen.unique_consecutive())]).sum()
        rows = tokens[kinds[kinds > 0]].repeat_interleave(2, 0).sum() + tokens.repeat_interleave(counts, 0).sum()
        return self.experts[0](tokens * flags.float()[sides, None]).sum() + rows + runs.sum() + turned


def build_model():
    return Experts()


def make_batch(batch_size):
    return torch.randn(64 * batch_size, WIDTH)


def training_step(model, batch):
    return model(batch).square().mean()
"""
_CAPACITY = 512 << 20  # bytes


@pytest.mark.parametrize(
    ("route", "seen", "told"),
    [
        ("by_mask", 2, "`torch.where(mask[number].squeeze(0))` at model.py:24 (spread evenly)"),
        ("by_capacity", 1, "`mask.sum(0).nonzero()` at model.py:32 (spread evenly)"),
        ("by_counts", 2, "`torch.bincount(chosen, minlength=COUNT).tolist()` at model.py:38 (spread evenly)"),
        ("by_value", 1, "`torch.unique((probabilities[:, 0] * 1000).long())` at model.py:44 (the most rows"),
        ("by_threshold", 1, "`tokens[probabilities[:, 0] > 0.5]` at model.py:47 (the most rows that there can be)"),
    ],
)
def test_rows_that_computed_values_choose_are_counted(
    oomdoctor_here: Run, tmp_path: Path, route: str, seen: int, told: str
) -> None:
    """Each expert gets as many tokens as the others, and a mask of computed values selects all; the line is named."""
    (tmp_path / "model.py").write_text(EXPERTS.replace("ROUTE", route))
    ended = oomdoctor_here("probe", "model.py", "--capacity", f"{_CAPACITY}B", "--engine", "null", "--json")
    assert ended.returncode == 0, ended.stderr
    found: dict[str, Any] = json.loads(ended.stdout)["result"]
    kept = found["micro_batch"]["maximum"] * 64 * seen * 9 * 512 * 4
    assert _CAPACITY / 4 < kept < _CAPACITY
    (warning,) = found["warnings"]
    assert told in warning


@pytest.mark.parametrize(
    "route", ["by_mask", "by_capacity", "by_counts", "by_value", "by_threshold", "by_half", "by_kind"]
)
def test_a_trace_assumes_what_the_null_gpu_does(oomdoctor_here: Run, tmp_path: Path, route: str) -> None:
    """Both count as many rows, to the byte, and name the same lines."""
    (tmp_path / "model.py").write_text(EXPERTS.replace("ROUTE", route))
    question = ("probe", "model.py", "--capacity", f"{_CAPACITY}B", "--gpu", "t4", "--json")
    null, trace = (
        json.loads(oomdoctor_here(*question, "--engine", engine).stdout)["result"] for engine in ("null", "trace")
    )
    assert trace["micro_batch"] == null["micro_batch"]
    assert [trial["peak_allocated_bytes"] for trial in trace["trials"]] == [
        trial["peak_allocated_bytes"] for trial in null["trials"]
    ]
    assert trace["warnings"] == null["warnings"] != []


OF_LIBRARY = """
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).with_name("site-packages")))
from experts import build_model, make_batch
"""


@pytest.mark.parametrize("recomputes", [False, True])
def test_a_librarys_lines_are_named_where_the_file_has_no_step(
    oomdoctor_here: Run, tmp_path: Path, *, recomputes: bool
) -> None:
    """Where the default step calls a library's model, no line of the file leads to what it assumes: its own is told."""
    library = EXPERTS.replace("ROUTE", "by_mask").partition("def training_step")[0]
    plain = "self.by_mask(tokens, self.router(tokens).softmax(-1))"
    again = f"torch.utils.checkpoint.checkpoint({plain.replace('(', ', ', 1)[:-1]}, use_reentrant=False)"
    library = library.replace(plain, f"{again if recomputes else plain}.square().mean()")
    (tmp_path / "site-packages").mkdir()
    (tmp_path / "site-packages/experts.py").write_text(library)
    (tmp_path / "model.py").write_text(OF_LIBRARY)
    ended = oomdoctor_here("probe", "model.py", "--capacity", f"{_CAPACITY}B", "--engine", "null", "--json")
    assert ended.returncode == 0, ended.stderr
    (warning,) = json.loads(ended.stdout)["result"]["warnings"]
    assert "`torch.where(mask[number].squeeze(0))` at experts.py:24 (spread evenly)" in warning


def test_a_rank_says_how_to_force_balanced_routing(oomdoctor_here: Run, tmp_path: Path) -> None:
    """A rank whose experts take what a router chooses is counted evenly, and told by name and with a remedy."""
    (tmp_path / "model.py").write_text(EXPERTS.replace("ROUTE", "by_counts"))
    question = ("--world-size", "8", "--parallel", "fsdp", "--rank", "0", "--target-batch", "8")
    ended = oomdoctor_here("probe", "model.py", *question, "--capacity", f"{_CAPACITY}B", "--engine", "null", "--json")
    assert ended.returncode == 0, ended.stderr
    (warning,) = json.loads(ended.stdout)["result"]["warnings"]
    assert "`torch.bincount(chosen, minlength=COUNT).tolist()` at model.py:38 (spread evenly)" in warning
    assert "training may need more where they are not" in warning
    assert "`--debug.moe_force_load_balance` of torchtitan" in warning


OPTIMIZER = """
import torch


class Own(torch.optim.SGD):
    def step(self, closure=None):
        for group in self.param_groups:
            if max(parameter.grad.norm() for parameter in group["params"]).isnan():
                return
        super().step()


def build_model():
    return torch.nn.Linear(64, 64)


def make_batch(batch_size):
    return torch.randn(batch_size, 64)


def training_step(model, batch):
    return model(batch).mean()


def build_optimizer(model):
    return OPTIMIZER(model.parameters(), lr=0.1)
"""


@pytest.mark.parametrize("engine", ["null", "trace"])
def test_what_an_optimizer_of_the_file_reads_is_named(oomdoctor_here: Run, tmp_path: Path, engine: str) -> None:
    """What PyTorch's own optimizers read is theirs, and nothing that memory depends on."""
    warnings = []
    for optimizer in ("Own", "torch.optim.SGD"):
        (tmp_path / "model.py").write_text(OPTIMIZER.replace("OPTIMIZER", optimizer))
        ended = oomdoctor_here("probe", "model.py", "--target-batch", "4", "--engine", engine, "--gpu", "t4", "--json")
        assert ended.returncode == 0, ended.stderr
        warnings.append(json.loads(ended.stdout)["result"]["warnings"])
    assert "at model.py:8 (a condition)" in warnings[0][0]
    assert warnings[1] == []
