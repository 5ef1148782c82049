# ruff: noqa: ANN001, ANN201, ANN202, D103, SIM105 - a program as people write them
"""Ways to train, each in a forked process of its own, to see what the history keeps of one step.

Prints a line for each: its name, a tab, and as JSON what the step's events have.
"""

import json
import os
import sys

import torch
import torch._dynamo  # what an optimizer's first step imports
from torch import nn
from torch.utils.checkpoint import checkpoint


def make_step(*, recompute=False, micro_steps=1):
    layers = nn.Sequential(nn.Linear(256, 256), nn.GELU(), nn.Linear(256, 256), nn.GELU()).cuda()
    optimizer = torch.optim.AdamW(layers.parameters(), foreach=True)

    def forward(inputs):
        return checkpoint(layers, inputs, use_reentrant=False) if recompute else layers(inputs)

    def step():
        for _ in range(micro_steps):
            forward(torch.ones(8, 256, device="cuda")).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def events():
    return torch.cuda.memory._snapshot()["device_traces"][0]


def watched(step):
    """Run a step and tell of its events: how many, and of the allocations which functions are named."""
    start = len(events())
    step()
    trace = events()[start:]
    stacks = [event.get("frames", []) for event in trace if event["action"] == "alloc"]
    named = {frame["name"] for stack in stacks for frame in stack}
    return {
        "allocated": len(stacks),
        "freed": sum(event["action"] == "free_completed" for event in trace),
        "in forward": sum(any(frame["name"] == "forward" for frame in stack) for stack in stacks),
        "in backward": "unpack_hook" in named,
        "in the optimizer": any("adam" in name for name in named),
    }


def first():
    return watched(make_step())


def later():
    step = make_step()
    step()
    return watched(step)


def accumulated():
    step = make_step(micro_steps=3)
    step()
    return watched(step)


def recomputed():
    step = make_step(recompute=True)
    step()
    return watched(step)


def second_optimizer():
    make_step()()
    return watched(make_step())


def after_an_error():
    step = make_step()
    step()

    def fail(_gradient):
        raise ValueError

    tensor = torch.ones(8, device="cuda", requires_grad=True)
    product = tensor * 2
    product.register_hook(fail)
    try:
        product.sum().backward()
    except ValueError:
        pass
    return watched(lambda: nn.Linear(8, 8).cuda()(torch.ones(1, 8, device="cuda")))


def taken_over():
    step = make_step()
    step()
    torch.cuda.memory._record_memory_history("all", context="all", stacks="python")
    return watched(step) | {"engine": type(vars(torch.autograd.Variable)["_execution_engine"]).__name__}


def ended():
    step = make_step()
    step()
    torch.cuda.memory._record_memory_history(None)
    step()
    return {"enabled": torch._C._cuda_isHistoryEnabled()}


if __name__ == "__main__":
    for way in (first, later, accumulated, recomputed, second_optimizer, after_an_error, taken_over, ended):
        child = os.fork()
        if child == 0:
            print(way.__name__, json.dumps(way()), sep="\t", flush=True)
            os._exit(0)
        os.waitpid(child, 0)
    failures = sys.modules["oomdoctor_agent.guard"].FAILURES
    print("failures", json.dumps(failures), sep="\t", flush=True)
    os._exit(0)
