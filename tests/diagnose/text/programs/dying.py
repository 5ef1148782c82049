"""Run out of memory in every phase of training, and print the traceback of each as different printers have it."""

# ruff: noqa: D101, D102, D103, TRY301
from __future__ import annotations

import io
import json
import multiprocessing.pool
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from rich.console import Console
from rich.traceback import Traceback
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Dataset

WIDTH = 2048


class Network(nn.Module):
    def __init__(self, *, checkpointed: bool = False) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.second = nn.Linear(WIDTH, WIDTH)
        self.checkpointed = checkpointed

    def body(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(torch.relu(self.first(x)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return checkpoint(self.body, x, use_reentrant=False) if self.checkpointed else self.body(x)


class Samples(Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.empty(WIDTH, WIDTH, device="cuda")


def fill_up() -> None:
    """From here on the allocator gets nothing more from the driver."""
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction(1e-9)


def batch() -> torch.Tensor:
    return torch.empty(WIDTH, WIDTH, device="cuda")


def in_forward() -> None:
    model, x = Network().cuda(), batch()
    fill_up()
    model(x)


def in_backward(*, checkpointed: bool = False) -> None:
    model, x = Network(checkpointed=checkpointed).cuda(), batch()
    loss = model(x).sum()
    fill_up()
    loss.backward()


def in_recomputation() -> None:
    in_backward(checkpointed=True)


def in_optimizer_step() -> None:
    model, x = Network().cuda(), batch()
    optimizer = torch.optim.AdamW(model.parameters())
    model(x).sum().backward()
    fill_up()
    optimizer.step()


def in_closure() -> None:
    model, x = Network().cuda(), batch()
    optimizer = torch.optim.AdamW(model.parameters())
    fill_up()
    optimizer.step(lambda: float(model(x).sum()))


def in_model_to_device() -> None:
    model = Network()
    fill_up()
    model.to("cuda")


def in_batch_to_device() -> None:
    x = torch.empty(WIDTH, WIDTH)
    fill_up()
    x.to("cuda", non_blocking=True)


def in_checkpoint_load() -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "weights.pt"
        torch.save(batch(), path)
        fill_up()
        torch.load(path)


def validate(model: nn.Module, x: torch.Tensor) -> None:
    model(x)


def in_evaluation() -> None:
    model, x = Network().cuda(), batch()
    fill_up()
    validate(model, x)


def in_data_loading() -> None:
    fill_up()
    for _ in DataLoader(Samples()):
        pass


def in_chained() -> None:
    try:
        in_forward()
    except torch.OutOfMemoryError as error:
        raise RuntimeError(f"the trial failed: {error}") from error


def in_handling() -> None:
    try:
        raise KeyError("cache")
    except KeyError:
        in_forward()


def in_pool() -> None:
    with multiprocessing.pool.ThreadPool(1) as workers:
        workers.apply(in_forward)


def in_grouped() -> None:
    try:
        in_forward()
    except torch.OutOfMemoryError as error:
        raise ExceptionGroup("tasks failed", [error]) from None


def printed(error: BaseException) -> Iterator[tuple[str, str]]:
    standard = "".join(traceback.format_exception(error))
    yield "standard", standard
    yield "one line", " ".join(standard.split())
    yield "escaped", json.dumps({"message": standard})
    console = Console(file=io.StringIO(), width=72)
    console.print(Traceback.from_exception(type(error), error, error.__traceback__, extra_lines=1))
    assert isinstance(console.file, io.StringIO)
    yield "rich", console.file.getvalue()


def death(die: Callable[[], None]) -> dict[str, str]:
    try:
        die()
    except Exception as error:  # noqa: BLE001
        return dict(printed(error))
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    raise SystemExit(f"{die.__name__} did not die")


SITUATIONS = (
    in_forward, in_backward, in_recomputation, in_optimizer_step, in_closure, in_model_to_device, in_batch_to_device,
    in_checkpoint_load, in_evaluation, in_data_loading, in_chained, in_handling, in_pool, in_grouped,
)  # fmt: skip

if __name__ == "__main__":
    json.dump({die.__name__: death(die) for die in SITUATIONS}, sys.stdout)
