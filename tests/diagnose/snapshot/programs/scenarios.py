"""Train shipped examples in ways that end differently, and write each one's memory snapshot to the directory given.

Each scenario runs in a fork of this process, so that torch is imported once and every one finds an empty card. Beside
`NAME.pickle` it writes `NAME.json`: what PyTorch itself counted, and at which addresses which tensors were. A name such
as `clean@native` asks for another way of recording.
"""

# ruff: noqa: D103
from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # the first step of an optimizer imports it, which takes longer than all else in a fork
from torch import Tensor, nn

from oomdoctor.engines.null_gpu.library import set_capacity_bytes
from oomdoctor.examples import gpt2, lstm, resnet50

MIB = 1 << 20
CONTEXT, VOCABULARY = 128, 2000
FACTS: dict[str, Any] = {"oom": None, "steps": 0, "at_oom": None}
ALIVE: dict[str, Any] = {}
HISTORY: dict[str, Any] = {"stacks": "python"}
WAYS: dict[str, dict[str, Any]] = {"": {}, "native": {"stacks": "all"}, "alloc": {"context": "alloc"}, "expandable": {}}


def limit(mebibytes: int) -> None:
    set_capacity_bytes(mebibytes * MIB)


def small_gpt2(width: int = 128, *, checkpoint: bool = False) -> nn.Module:
    model = gpt2.build_model(
        layers=3, width=width, heads=4, context=CONTEXT, vocabulary=VOCABULARY, checkpoint=checkpoint
    )
    ALIVE["model"] = model.to("cuda")
    return model


def adam(model: nn.Module) -> torch.optim.Optimizer:
    ALIVE["optimizer"] = torch.optim.AdamW(model.parameters())
    return ALIVE["optimizer"]


def batch_of(size: int) -> tuple[Tensor, Tensor]:
    tokens, targets = gpt2.make_batch(size, context=CONTEXT, vocabulary=VOCABULARY)
    return tokens.to("cuda"), targets.to("cuda")


def train(model: nn.Module, optimizer: torch.optim.Optimizer, sizes: list[int]) -> None:
    for size in sizes:
        batch = batch_of(size)
        loss = gpt2.training_step(model, batch)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        FACTS["steps"] += 1


def clean() -> None:
    model = small_gpt2()
    train(model, adam(model), [4, 8, 4, 8, 4, 8])


def clean_without_adam() -> None:
    model = small_gpt2(checkpoint=True)
    losses = []
    optimizer = torch.optim.SGD(model.parameters(), foreach=False)
    for _ in range(5):
        batch = batch_of(8)
        loss = gpt2.training_step(model, batch)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    gpt2.training_step(model, batch_of(2)).backward()


def clean_evaluation() -> None:
    model = small_gpt2()
    with torch.no_grad():
        for _ in range(6):
            tokens, targets = batch_of(8)
            logits = model(tokens)
            (logits.argmax(-1) == targets).float().mean().item()


def dies_in_forward() -> None:
    model = small_gpt2()
    limit(200)
    train(model, adam(model), [8, 8, 8, 128])


def dies_in_first_forward() -> None:
    limit(120)
    model = small_gpt2()
    train(model, adam(model), [256])


def dies_in_backward() -> None:
    limit(200)
    model = small_gpt2()
    train(model, adam(model), [34])


def dies_in_optimizer() -> None:
    model = small_gpt2(512)
    limit(160)
    train(model, adam(model), [1])


def dies_moving_the_model() -> None:
    limit(24)
    small_gpt2(512)


def leak_of_outputs() -> None:
    model = small_gpt2()
    limit(200)
    optimizer = adam(model)
    ALIVE["outputs"] = outputs = []
    while True:
        tokens, targets = batch_of(8)
        logits = model(tokens)
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
        loss.backward()
        outputs.append(logits)
        optimizer.step()
        optimizer.zero_grad()
        FACTS["steps"] += 1


def leak_in_a_ring_buffer() -> None:
    torch.cuda.memory._record_memory_history(None)
    torch.cuda.memory._record_memory_history(**HISTORY, max_entries=3000)
    leak_of_outputs()


def leak_of_graphs() -> None:
    model = small_gpt2()
    optimizer = adam(model)
    train(model, optimizer, [8, 8, 8, 8])
    limit(300)
    losses = []
    while True:
        losses.append(validate(model))
        FACTS["steps"] += 1


def validate(model: nn.Module) -> Tensor:
    batch = batch_of(8)
    return gpt2.training_step(model, batch)


def fragmentation() -> None:
    limit(600)
    warm_up = torch.empty(560 * MIB, dtype=torch.uint8, device="cuda")
    del warm_up
    cache = [torch.empty((8 + size % 5) * MIB, dtype=torch.uint8, device="cuda") for size in range(50)]
    del cache[::2]
    torch.empty(100 * MIB, dtype=torch.uint8, device="cuda")


def resnet_in_forward() -> None:
    ALIVE["model"] = model = resnet50.build_model().to("cuda")
    limit(700)
    optimizer = adam(model)
    for size in (2, 2, 10):
        batch = tuple(part.to("cuda") for part in resnet50.make_batch(size))
        resnet50.training_step(model, batch).backward()
        optimizer.step()
        optimizer.zero_grad()


def lstm_in_forward() -> None:
    ALIVE["model"] = model = lstm.build_model(width=128, vocabulary=4000).to("cuda")
    limit(120)
    optimizer = adam(model)
    for size in (8, 8, 64):
        batch = tuple(part.to("cuda") for part in lstm.make_batch(size, vocabulary=4000))
        lstm.training_step(model, batch).backward()
        optimizer.step()
        optimizer.zero_grad()


def recorded_late() -> None:
    torch.cuda.memory._record_memory_history(None)
    model = small_gpt2()
    optimizer = adam(model)
    train(model, optimizer, [8, 8])
    torch.cuda.memory._record_memory_history(**HISTORY)
    train(model, optimizer, [8, 8, 8])


def ring_buffer() -> None:
    torch.cuda.memory._record_memory_history(None)
    torch.cuda.memory._record_memory_history(**HISTORY, max_entries=500)
    model = small_gpt2()
    train(model, adam(model), [8, 8, 8, 8])


def recovered() -> None:
    model = small_gpt2()
    limit(200)
    optimizer = adam(model)
    with suppress(torch.OutOfMemoryError):
        train(model, optimizer, [128])
    train(model, optimizer, [8, 8])


def without_history() -> None:
    torch.cuda.memory._record_memory_history(None)
    model = small_gpt2()
    train(model, adam(model), [8])


SCENARIOS: dict[str, Callable[[], None]] = {
    scenario.__name__: scenario
    for scenario in (
        *(clean, clean_without_adam, clean_evaluation, recorded_late, ring_buffer, recovered, without_history),
        *(dies_in_forward, dies_in_first_forward, dies_in_backward, dies_in_optimizer, dies_moving_the_model),
        *(leak_of_outputs, leak_in_a_ring_buffer, leak_of_graphs, fragmentation, resnet_in_forward, lstm_in_forward),
    )
}


def counted() -> dict[str, Any]:
    return {
        "allocated": torch.cuda.memory_allocated(),
        "reserved": torch.cuda.memory_reserved(),
        "addresses": addresses(),
    }


def addresses() -> dict[str, list[int]]:
    model, optimizer = ALIVE.get("model"), ALIVE.get("optimizer")
    parameters = [] if model is None else [*model.parameters(), *model.buffers()]
    states = [] if optimizer is None else [part for state in optimizer.state.values() for part in state.values()]
    found = {
        "weights": [part for part in parameters if part.is_cuda],
        "gradients": [part.grad for part in parameters if part.grad is not None],
        "optimizer_state": [part for part in states if isinstance(part, Tensor) and part.is_cuda],
    }
    return {name: [part.data_ptr() for part in parts] for name, parts in found.items()}


def run(name: str, directory: Path) -> None:
    scenario, _, way = name.partition("@")
    HISTORY.update(WAYS[way])
    if way == "expandable":
        os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"

    def note(_device: int, requested: int, _total: int, free: int) -> None:
        FACTS["at_oom"] = {**counted(), "requested": requested, "free": free}

    torch.cuda.init()
    torch._C._cuda_attach_out_of_memory_observer(note)
    torch.cuda.memory._record_memory_history(**HISTORY)
    try:
        SCENARIOS[scenario]()
    except torch.OutOfMemoryError as error:
        FACTS["oom"] = str(error)
    FACTS["end"] = counted()
    FACTS["peak"] = torch.cuda.max_memory_allocated()
    torch.cuda.memory._dump_snapshot(str(directory / f"{name}.pickle"))
    (directory / f"{name}.json").write_text(json.dumps(FACTS))


def run_forked(name: str, directory: Path) -> None:
    child = os.fork()
    if child:
        if os.waitpid(child, 0)[1]:
            sys.exit(f"{name} failed")
        return
    try:
        run(name, directory)
    except BaseException:  # noqa: BLE001 - a fork must not go on with what its parent does
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


if __name__ == "__main__":
    names = ("clean_without_adam", "dies_in_backward", "leak_of_outputs")
    varied = [f"{name}@{way}" for way in WAYS if way for name in names]
    for chosen in sys.argv[2:] or [*SCENARIOS, *varied]:
        run_forked(chosen, Path(sys.argv[1]))
