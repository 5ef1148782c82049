# ruff: noqa: ANN001, ANN201, ANN204, D101, D103, D415, TRY301 - a program as people write them
"""Ways for a training to end. Usage: python trial_endings.py NAME"""

import atexit
import os
import sys
import time

import torch
from torch import nn
from torch.utils.data import DataLoader


def train(steps, device="cpu"):
    model = nn.Linear(8, 8).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(steps):
        model(torch.ones(4, 8, device=device)).sum().backward()
        optimizer.step()
        print("step", step + 1, flush=True)


def enough():
    atexit.register(print, "at exit")
    train(10)


def too_few():
    train(2)


def unhandled():
    train(1)
    try:
        raise KeyError("inner")
    except KeyError as error:
        raise ValueError("outer") from error


def out_of_workspace():
    train(1)
    raise RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`")


def left_while_handling():
    try:
        raise RuntimeError("no such file")
    except RuntimeError:
        sys.exit(3)


def thought_better():
    try:
        left_while_handling()
    except SystemExit:
        train(1)


def ran_out():
    try:
        torch.empty(1 << 50, device="cuda")
    except torch.OutOfMemoryError:
        print("caught", flush=True)
    train(1, "cuda")


def died_of_memory():
    atexit.register(print, "at exit")
    print("not flushed")
    train(2, "cuda")
    model = nn.Linear(8, 8).to("cuda")
    held = [model(torch.ones(1 << 20, 8, device="cuda")) for _ in range(100)]
    sum(held).sum().backward()


class Writing:
    def __len__(self):
        return 8

    def __getitem__(self, index):
        with open(f"worker{os.getpid() != PARENT}", "a"):  # noqa: PTH123
            return torch.ones(8) * index


PARENT = os.getpid()


def with_workers():
    model = nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for batch in DataLoader(Writing(), batch_size=4, num_workers=2):
        model(batch).sum().backward()
        optimizer.step()


def two_optimizers():
    """One that steps once in a while does not hold the others back for ever."""
    model = nn.Linear(8, 8)
    often, seldom = (torch.optim.SGD(model.parameters(), lr=0.1) for _ in range(2))
    for step in range(100):
        model(torch.ones(4, 8)).sum().backward()
        often.step()
        if step == 0:
            seldom.step()
        print("often", step + 1, flush=True)


def skipped_steps():
    """A scaler that finds infinities takes no step."""
    model = nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    for step in range(4):
        factor = float("inf") if step < 2 else 1.0
        scaler.scale(model(torch.ones(4, 8)).sum() * factor).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()


def saves():
    os.mkdir("made")  # noqa: PTH102
    torch.save({}, "made/native.pt")
    with open("made/part", "w") as file:  # noqa: PTH123
        file.write("x")
    os.replace("made/part", "made/whole")  # noqa: PTH105
    with open("/dev/null", "w"), open("made/whole"):  # noqa: PTH123
        time.sleep(0)


if __name__ == "__main__":
    globals()[sys.argv[1]]()
