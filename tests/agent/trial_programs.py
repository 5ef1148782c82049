# ruff: noqa: ANN001, ANN201, ANN202, ANN204, D101, D102, D103 - a program as people write them
"""Ways to train, each in a forked process of its own; what it prints has to be the same with the agent and without.

Usage: python trial_programs.py DEVICE NAME...    Prints for each its name and what it saw, and the pid to stderr.
"""

import atexit
import gc
import os
import sys
import threading

import torch
import torch._dynamo  # what an optimizer's first step imports
from torch import nn
from torch.utils.checkpoint import checkpoint

DEVICE = sys.argv[1]
STEPS = 4


class Net(nn.Module):
    def __init__(self, recompute=None):
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(333, 777), nn.GELU(), nn.Linear(777, 333)) for _ in range(3)
        )
        self.head = nn.Linear(333, 11)
        self.recompute = recompute

    def forward(self, inputs, scale=1.0):
        for block in self.blocks:
            if self.recompute is None:
                inputs = block(inputs) * scale + inputs
            else:
                inputs = checkpoint(block, inputs, use_reentrant=self.recompute) + inputs
        return self.head(inputs)


def batch(size=96):
    return torch.randn(size, 333, device=DEVICE, requires_grad=True), torch.randint(0, 11, (size,)).to(DEVICE)


def loss_on(model, inputs, labels):
    return nn.functional.cross_entropy(model(inputs=inputs, scale=0.5), labels)


def loss_of(model, size=96):
    return loss_on(model, *batch(size))


def build(recompute=None):
    model = Net(recompute).to(DEVICE)
    return model, torch.optim.AdamW(model.parameters(), lr=1e-3)


def train(model, optimizer, *, micro_steps=2, after_step=lambda _: None):
    losses = []
    for index in range(STEPS):
        for _ in range(micro_steps):
            loss = loss_of(model)
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        after_step(index)
    return losses


def accumulated():
    return train(*build())


def clipped():
    model, optimizer = build()
    losses = []
    for _ in range(STEPS):
        loss = loss_of(model)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def recomputed_reentrantly():
    return train(*build(recompute=True))


def recomputed():
    return train(*build(recompute=False))


def resets_peaks():
    peaks = []

    def note(_):
        peaks.append(torch.cuda.max_memory_allocated())
        torch.cuda.reset_peak_memory_stats()
        torch.cuda.reset_accumulated_memory_stats()

    train(*build(), after_step=note)
    return peaks


def scaled():
    model, optimizer = build()
    kind = torch.float16 if DEVICE == "cuda" else torch.bfloat16
    scaler = torch.amp.GradScaler(DEVICE, init_scale=128.0)
    losses = []
    for _ in range(STEPS):
        with torch.autocast(DEVICE, dtype=kind):
            loss = loss_of(model)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def closure():
    model, optimizer = build()

    def again():
        optimizer.zero_grad()
        loss = loss_of(model)
        loss.backward()
        return loss

    return [optimizer.step(again).item() for _ in range(STEPS)]


def evaluated():
    model, optimizer = build()
    evaluations = []

    def evaluate(index):
        model.eval()
        with torch.no_grad():
            evaluations.append(loss_of(model, 4000 if index else 96).item())
        model.train()

    evaluate(0)
    return [*train(model, optimizer, after_step=evaluate), *evaluations]


def in_eval_mode():
    model, optimizer = build()
    model.eval()
    return train(model, optimizer)


def compiled_module():
    model, optimizer = build()
    return train(torch.compile(model, backend="aot_eager"), optimizer)


def compiled_function():
    model, optimizer = build()
    function = torch.compile(loss_on, backend="aot_eager")
    losses = []
    for _ in range(STEPS):
        function(model, *batch()).backward()
        optimizer.step()
        optimizer.zero_grad()
    return losses


def records_history():
    model, optimizer = build()
    torch.cuda.memory._record_memory_history()
    return train(model, optimizer)


def phases():
    """Peaks by phase, found with the peaks' resets."""
    found = []

    def end(iteration, phase):
        found.append([iteration, phase, torch.cuda.max_memory_allocated(), torch.cuda.memory_allocated()])
        torch.cuda.reset_peak_memory_stats()

    model, optimizer = build()
    end(0, "load")
    for iteration in range(1, STEPS + 1):
        optimizer.zero_grad()
        loss = loss_of(model)
        end(iteration, "forward")
        loss.backward()
        end(iteration, "backward")
        optimizer.step()
        end(iteration, "optimizer")
    return found


def state():
    if DEVICE == "cpu":
        return []
    highest = torch.cuda.memory_stats()
    return [highest["allocated_bytes.all.peak"], torch.cuda.memory_allocated(), torch.cuda.max_memory_reserved()]


def main():
    gc.collect()
    gc.freeze()  # a collection in a child would copy every page that torch's objects lie on
    for name in sys.argv[2:]:
        child = os.fork()
        if child == 0:
            torch.manual_seed(0)
            print(name, [globals()[name](), state()], sep="\t", flush=True)
            threading._shutdown()
            atexit._run_exitfuncs()
            os._exit(0)  # to take torch apart takes a second
        print(name, child, file=sys.stderr, flush=True)
        _, status = os.waitpid(child, os.WUNTRACED)
        if os.WIFSTOPPED(status):
            print(name, "stopped", sep="\t", flush=True)
            os.kill(child, 9)
            os.waitpid(child, 0)
    os._exit(0)


if __name__ == "__main__":
    main()
