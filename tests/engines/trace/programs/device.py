"""What a program sees of the emulated device, and what it is told where it cannot go on."""

from __future__ import annotations

import contextlib
import io
import sys
import weakref
from importlib import import_module
from typing import Any

import torch
from torch import nn

from oomdoctor.engines.catalogue import find_card
from oomdoctor.engines.trace.emulation import emulated_cuda
from oomdoctor.errors import NoAnswerError

GIB = 1 << 30


def seen() -> dict[str, Any]:
    """What `torch.cuda` and tensors say."""
    made = [
        torch.zeros(8, device="cuda"), torch.zeros(8).cuda(), torch.zeros(8).to("cuda:0"), torch.zeros(8).to(0),
        torch.tensor([1.0], device="cuda"), torch.as_tensor([1], device="cuda"), torch.ones(3).to(device="cuda"),
        torch.arange(4, device=torch.device("cuda")), torch.randn(2, 2, device="cuda").new_zeros(3),
    ]  # fmt: skip
    with torch.device("cuda"):
        made += [torch.ones(3), nn.Linear(2, 2).weight]
    properties = torch.cuda.get_device_properties(0)
    return {
        "devices": sorted({str(tensor.device) for tensor in made}),
        "are_cuda": all(tensor.is_cuda for tensor in made),
        "same": made[0].to("cuda") is made[0] and made[0].cuda() is made[0],
        "text": repr(made[0][:2]),
        "on_host": made[4].cpu().tolist(),
        "name": torch.cuda.get_device_name(),
        "capability": torch.cuda.get_device_capability(),
        "total": [properties.total_memory, torch.cuda.mem_get_info()[1]],
        "count": torch.cuda.device_count(),
        "available": torch.cuda.is_available(),
    }


def moved() -> dict[str, Any]:
    """What becomes of a module that is moved."""
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    model[1].weight = model[0].weight
    before = [id(parameter) for parameter in model.parameters()]
    optimizer = torch.optim.SGD(model.parameters())
    model.to("cuda")
    storages = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    return {
        "same": before == [id(parameter) for parameter in model.parameters()],
        "in_optimizer": all(parameter.is_cuda for parameter in optimizer.param_groups[0]["params"]),
        "tied": model[0].weight is model[1].weight,
        "storages": len(storages),
        "back": {str(parameter.device) for parameter in model.to("cpu").parameters()} == {"cpu"},
    }


def moved_while_held() -> dict[str, Any]:
    """What becomes of a parameter that has hooks, and that a view, a graph and a weak reference refer to."""
    model, called = nn.Linear(4, 4), []
    weight = model.weight
    weight.register_hook(lambda _: called.append("hook"))
    weight.register_post_accumulate_grad_hook(lambda parameter: called.append(parameter is weight))
    weight.note = "kept"
    held = (weight[0], model(torch.zeros(2, 4)), weakref.ref(weight))
    model.to("cuda")
    model(torch.zeros(2, 4, device="cuda")).sum().backward()
    return {
        "same": model.weight is weight is held[2](),
        "device": str(weight.device),
        "gradient": str(weight.grad.device),
        "note": weight.note,
        "called": called,
    }


def run_out() -> dict[str, Any]:
    """What an allocation that does not fit says, and what goes on after it."""
    torch.cuda.set_per_process_memory_fraction(2 * GIB / torch.cuda.get_device_properties(0).total_memory)
    kept = torch.empty(GIB, dtype=torch.uint8, device="cuda")
    try:
        torch.empty(2 * GIB, dtype=torch.uint8, device="cuda")
    except torch.OutOfMemoryError as error:
        text = str(error)
    return {
        "text": text,
        "allocated": torch.cuda.memory_allocated(),
        "ooms": torch.cuda.memory_stats()["num_ooms"],
        "then": torch.empty(GIB // 2, dtype=torch.uint8, device="cuda").device.type,
        "kept": kept.nbytes,
    }


def failed_backward(*, create_graph: bool) -> int:
    """Bytes that are left where memory ran out in a backward and nothing of it is held."""
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    x = torch.zeros(GIB // 64, device="cuda", requires_grad=True)
    y = sum(torch.sin(x * number).sum() + torch.cos(x).exp().sum() for number in range(3))
    rest = torch.empty(torch.cuda.mem_get_info()[0] - GIB // 10, dtype=torch.uint8, device="cuda")
    with contextlib.suppress(torch.OutOfMemoryError):
        torch.autograd.grad(y, x, create_graph=create_graph)
        return -1
    del x, y, rest
    return torch.cuda.memory_allocated() - before


def refused() -> dict[str, Any]:
    """What is said of what cannot be traced."""
    torch.library.define("oomdoctor_test::unknown", "(Tensor x) -> Tensor")
    calls = {
        "counts": lambda x: x.long().bincount(),
        "repeats": lambda x: torch.repeat_interleave(x.long()),
        "different rows": lambda x: x[:, None].unique(dim=0),
        "unknown": torch.ops.oomdoctor_test.unknown,
        "sparse": lambda x: nn.Embedding(3, 4, sparse=True).cuda()(x.long()).sum().backward(),
        "scripted": lambda _: torch.jit.script(nn.Linear(3, 3)).to("cuda"),
        "captured": lambda _: torch.cuda.CUDAGraph(),
        "captured module": lambda x: torch.cuda.make_graphed_callables(nn.Linear(3, 3).cuda(), (x,)),
        "sparse tensor": lambda _: torch.sparse_coo_tensor([[0]], [1.0], (3,), device="cuda"),
        "sparse tensor moved": lambda _: torch.eye(3).to_sparse().cuda(),
        "saved": lambda x: torch.save({"x": x}, io.BytesIO()),
        "mixed": lambda x: x + torch.ones(3),
    }
    return {name: _error_of(call) for name, call in calls.items()}


def _error_of(call: Any) -> list[str]:
    try:
        call(torch.zeros(3, device="cuda"))
    except (NoAnswerError, RuntimeError) as error:
        return [type(error).__name__, str(error), getattr(error, "hint", None) or "", getattr(error, "details", "")]
    return []


def left() -> dict[str, Any]:
    """What is as before once the device is gone."""
    names = {"is_available": torch.cuda.is_available, "to": torch.Tensor.to, "device": torch.Tensor.device}
    with emulated_cuda(find_card("rtx-4090")) as device:
        inside = torch.cuda.is_available()
        tensor = torch.zeros(1000, device="cuda")
        during = device.allocator.allocated_bytes
        del tensor
        after = device.allocator.allocated_bytes
    compiler = import_module("torch._dynamo")
    return {
        "inside": inside,
        "during": [during, after],
        "same": names["is_available"] is torch.cuda.is_available and names["to"] is torch.Tensor.to,
        "device": names["device"] is torch.Tensor.device,
        "compiler": hasattr(compiler, "optimize"),
        "host": str(torch.zeros(2).device),
    }


def missing() -> list[str]:
    """What is said where this torch lacks a name."""
    kept = torch.library.Library.fallback
    del torch.library.Library.fallback
    try:
        with emulated_cuda(find_card("rtx-4090")):
            return []
    except NoAnswerError as error:
        return [error.message, error.hint or ""]
    finally:
        torch.library.Library.fallback = kept


def light() -> list[str]:
    """Modules that a plain step should not need."""
    model = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.LayerNorm(8)).to("cuda")
    optimizer = torch.optim.AdamW(model.parameters())
    nn.functional.cross_entropy(model(torch.zeros(4, 8, device="cuda")), torch.zeros(4).long().cuda()).backward()
    optimizer.step()
    heavy = ("sympy", "torch._dynamo", "torch.fx.experimental.symbolic_shapes")
    return [name for name in heavy if getattr(sys.modules.get(name), "__file__", None)]


def answers() -> dict[str, Any]:
    """All that."""
    found: dict[str, Any] = {"torch": torch.__version__}
    with emulated_cuda(find_card("rtx-4090")):
        found |= {"light": light(), "seen": seen(), "moved": moved(), "held": moved_while_held()}
        found["run_out"] = run_out()
    with emulated_cuda(find_card("h100-sxm-80gb")):
        found["failed_backward"] = [failed_backward(create_graph=graph) for graph in (False, True)]
        found["refused"] = refused()
    return {**found, "missing": missing(), "left": left()}
