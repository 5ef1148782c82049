"""Print what uses of tensors give that reach further than operators, such as old names of types, as JSON.

Usage: tensor_uses.py null|CARD
"""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Callable
from types import UnionType
from typing import Any

import torch

from oomdoctor.engines.catalogue import find_card
from oomdoctor.engines.trace.emulation import emulated_cuda

warnings.simplefilter("ignore")  # PyTorch recommends other ways


def told(found: Any) -> Any:
    """What is compared of a result."""
    if isinstance(found, list | tuple):
        return [told(one) for one in found]
    return [found.type(), str(found.device), list(found.shape)] if isinstance(found, torch.Tensor) else str(found)


def answers() -> dict[str, Any]:
    """What each use gives, or the error that it raises."""
    here, there = torch.zeros(2, 3, requires_grad=True), torch.zeros(2, 3, device="cuda")
    cuda = torch.cuda
    uses: dict[str, Callable[[], Any]] = {
        "name": there.type,
        "name of half": lambda: there.half().type(),
        "name on the host": here.type,
        "typename": lambda: torch.typename(there),
        "to a type": lambda: here.type(cuda.FloatTensor),
        "to a name": lambda: here.type("torch.cuda.HalfTensor"),
        "to another type": lambda: there.type(cuda.LongTensor),
        "to the same type": lambda: there.type(cuda.FloatTensor) is there,
        "to the host": lambda: there.type(torch.FloatTensor),
        "to a dtype": lambda: there.type(torch.float64),
        "to the type of another": lambda: here.type_as(there),
        "gradient": lambda: torch.autograd.grad(here.type(cuda.FloatTensor).sum(), here)[0],
        "of sizes": lambda: cuda.FloatTensor(2, 5),
        "of a size": lambda: cuda.ByteTensor(torch.Size([4, 2])),
        "of nothing": cuda.DoubleTensor,
        "of a list": lambda: cuda.LongTensor([[1, 2, 3]]),
        "of a tensor": lambda: cuda.FloatTensor(there),
        "of a tensor on the host": lambda: cuda.FloatTensor(here.detach()),
        "filled": lambda: cuda.FloatTensor(3, 1).fill_(1.0),
        "is one": lambda: isinstance(there, cuda.FloatTensor),
        "is another": lambda: isinstance(there, cuda.HalfTensor),
        "is on the host": lambda: isinstance(there, torch.FloatTensor),
        "host's is one": lambda: isinstance(here, cuda.FloatTensor),
        "is a parameter": lambda: isinstance(torch.nn.Parameter(there), cuda.FloatTensor),
        "dtype": lambda: (cuda.HalfTensor.dtype, cuda.HalfTensor.is_cuda, cuda.HalfTensor.__name__),
        "lazy": lambda: torch.nn.LazyLinear(4).cuda()(there),
        "lazy with statistics": lambda: [
            *torch.nn.Sequential(torch.nn.LazyConv2d(4, 3), torch.nn.LazyBatchNorm2d())
            .to("cuda")
            .train()(torch.zeros(2, 3, 4, 4, device="cuda"))
        ],
        "lazy on the host": lambda: torch.nn.LazyLinear(4).to(torch.float64)(here.double()),
        "new": lambda: [there.new_tensor(5.0), there.new_tensor([1, 2]), there.new_tensor([1, 2], dtype=torch.int64)],
        "new on the host": lambda: [here.new_tensor([1.0]), there.new_tensor([1.0], device="cpu")],
        "new on the device": lambda: [here.new_tensor([1.0], device="cuda"), there.new_tensor(here.detach())],
        "forward mode": lambda: torch.func.jvp(torch.sin, (there,), (there,)),
        "forward and backward mode": _forward_and_backward,
        "seed": lambda: (cuda.manual_seed(7), cuda.initial_seed())[1],
        "moved in all ways": lambda: [
            here.cuda(0),
            here.cuda("cuda:0", non_blocking=True),
            here.cuda(device=0),
            here.to(0),
            here.to(there),
        ],
        "sparse on the host": lambda: torch.eye(3).to_sparse().to(torch.float64).to("cpu").to_dense(),
        "named in annotations": lambda: isinstance(cuda.CUDAGraph | cuda.FloatTensor | cuda.Event | None, UnionType),
        "moved and cast": lambda: here.to(torch.device("cuda", 0), torch.float16, non_blocking=True, copy=True),
        "unknown": lambda: here.type("torch.cuda.NoTensor"),
        "number by device": lambda: _on_device(lambda: torch.tensor(3.0)),
        "tensor by device": lambda: _on_device(lambda: torch.as_tensor(here.detach())),
        "array by device": lambda: _on_device(lambda: torch.asarray([1.0])),
        "array on a device": lambda: torch.asarray([1.0, 2.0], device="cuda"),
        "array of a tensor": lambda: torch.asarray(there) is there,
        "gradient of a number by device": lambda: _on_device(
            lambda: torch.tensor(3.0, requires_grad=True).requires_grad
        ),
        "from numpy by device": lambda: _on_device(lambda: torch.from_numpy(here.detach().numpy())),
        "by default": lambda: torch.set_default_tensor_type(cuda.FloatTensor) or torch.zeros(3),
        "by default a module": lambda: torch.nn.Linear(2, 3).weight,
        "by default a number": lambda: torch.tensor(3.0),
        "by default half": lambda: torch.set_default_tensor_type("torch.cuda.HalfTensor") or torch.ones(3),
        "by default again": lambda: torch.set_default_tensor_type(torch.FloatTensor) or torch.zeros(3),
    }
    return {name: _answer(use) for name, use in uses.items()}


def _forward_and_backward() -> Any:
    model = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.SiLU(), torch.nn.LayerNorm(8), torch.nn.Linear(8, 3))
    model, x = model.cuda(), torch.zeros(2, 3, device="cuda")
    value, derivative = torch.func.jvp(model, (x,), (torch.ones_like(x),))
    (value - derivative.detach()).square().mean().backward()
    return [value, derivative, model[0].weight.grad]


def _on_device(make: Callable[[], Any]) -> Any:
    with torch.device("cuda"):
        return make()


def _answer(use: Callable[[], Any]) -> Any:
    try:
        return told(use())
    except (TypeError, ValueError, RuntimeError) as error:
        return type(error).__name__


if __name__ == "__main__":
    if sys.argv[1] == "null":
        print(json.dumps(answers()))
    else:
        with emulated_cuda(find_card(sys.argv[1])):
            found = answers()
        print(json.dumps(found))
