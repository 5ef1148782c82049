"""Plain training does without PyTorch's compiler, and whoever needs it gets the real one."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import sys

import torch
from torch.utils.checkpoint import checkpoint

from oomdoctor.engines.trace.compiler_stubs import defer_dynamo

defer_dynamo()
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(2):
    checkpoint(model, torch.ones(2, 4), use_reentrant=False).sum().backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
print("torch._dynamo.eval_frame" in sys.modules)

torch._dynamo.config.suppress_errors = True
print("torch._dynamo.eval_frame" in sys.modules, sys.modules["torch._dynamo"].config.suppress_errors)
torch._dynamo.config.suppress_errors = False
calls = []


def backend(graph, inputs):
    calls.append(len(inputs))
    return graph.forward


@torch.compile(backend=backend)
def step(x):
    optimizer.zero_grad()
    return x + 1


print(step(torch.ones(2)).tolist(), len(calls))
print("torch._dynamo.eval_frame" in sys.modules, torch._dynamo is sys.modules["torch._dynamo"])
print(torch._dynamo.config.suppress_errors)
decorated = torch.optim.Optimizer.zero_grad.__wrapped__.__dynamo_disable
print(decorated is not torch.optim.Optimizer.zero_grad.__wrapped__)
"""


def test_the_compiler_is_imported_by_what_compiles_only() -> None:
    """Two steps with a checkpoint import no compiler; settings reach it, `torch.compile` excludes what it shall."""
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["False", "True True", "[2.0, 2.0] 1", "True True", "False", "True"]
