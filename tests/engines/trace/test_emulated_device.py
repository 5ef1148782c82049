"""What a program sees of the emulated device, and what it is told where it cannot go on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from traced_runs import each_python, run

from oomdoctor.engines.catalogue import find_card

pytestmark = pytest.mark.slow  # all that the program does is done before the first answer

CARD = find_card("rtx-4090")
GIB = 1 << 30


@pytest.fixture
def answers(python: str, directory: Path) -> dict[str, Any]:
    """What the program printed with that interpreter; it runs once for each."""
    found: dict[str, Any] = run(python, directory)["device"]
    return found


@each_python
def test_presents_the_card_as_the_only_device(answers: dict[str, Any]) -> None:
    """`torch.cuda` answers for the card, whatever this machine has."""
    seen = answers["seen"]
    assert (seen["name"], seen["capability"]) == (CARD.name, list(CARD.compute_capability))
    assert (seen["total"], seen["count"], seen["available"]) == ([CARD.total_bytes] * 2, 1, True)


@each_python
def test_every_spelling_of_cuda_is_the_device(answers: dict[str, Any]) -> None:
    """Tensors made on or moved to `cuda` in any way say that they are on `cuda:0`, and read back as zeros."""
    seen = answers["seen"]
    assert (seen["devices"], seen["are_cuda"], seen["on_host"]) == (["cuda:0"], True, [0.0])
    assert seen["text"] == "tensor([0., 0.], device='cuda:0')"


@each_python
def test_moving_what_is_there_makes_nothing_new(answers: dict[str, Any]) -> None:
    """A tensor on the device is itself after `.to` and `.cuda`."""
    assert answers["seen"]["same"]


@each_python
def test_a_moved_module_keeps_its_parameters(answers: dict[str, Any]) -> None:
    """Parameters are the same objects after `.to`, so that optimizers and tied layers still have them."""
    assert answers["moved"] == {"same": True, "in_optimizer": True, "tied": True, "storages": 3, "back": True}


@each_python
def test_a_parameter_moves_whatever_refers_to_it(answers: dict[str, Any]) -> None:
    """Views, graphs, weak references and hooks keep no parameter from moving, and it keeps its hooks and attributes."""
    expected = {"same": True, "device": "cuda:0", "gradient": "cuda:0", "note": "kept", "called": ["hook", True]}
    assert answers["held"] == expected


@each_python
def test_runs_out_of_memory_as_the_allocator_does(answers: dict[str, Any]) -> None:
    """What does not fit raises PyTorch's error with its text, is counted, and leaves the rest usable."""
    ran_out = answers["run_out"]
    assert ran_out["text"].startswith(
        "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 23.64"
    )
    assert "2.00 GiB allowed; Of the allocated memory" in ran_out["text"]
    assert (ran_out["ooms"], ran_out["then"], ran_out["kept"]) == (1, "cuda", GIB)


@each_python
def test_a_backward_that_runs_out_leaves_nothing(answers: dict[str, Any]) -> None:
    """What waited for the rest of a backward is given back, on the calling thread and on the engine's own."""
    assert answers["failed_backward"] == [0, 0]


@each_python
@pytest.mark.parametrize(
    ("case", "operator"),
    [
        ("counts", "aten.bincount"),
        ("repeats", "aten.repeat_interleave.Tensor"),
        ("different rows", "aten.unique_dim"),
        ("unknown", "oomdoctor_test.unknown"),
        ("sparse", "embedding_sparse_backward"),
        ("scripted", "torch.jit.ScriptModule"),
        ("captured", "torch.cuda.CUDAGraph"),
        ("captured module", "torch.cuda.make_graphed_callables"),
        ("sparse tensor", "torch.sparse_coo_tensor"),
        ("sparse tensor moved", "torch.Tensor.to"),
        ("saved", "torch.save"),
    ],
)
def test_names_what_cannot_be_traced(answers: dict[str, Any], case: str, operator: str) -> None:
    """What depends on data, or has no kernel, is named with the line and another engine, without PyTorch's advice."""
    kind, message, hint, details = answers["refused"][case]
    assert kind == "UntraceableError"
    assert message.startswith(f"`{operator}` cannot be traced, at ")
    assert "device.py:" in message
    assert "`--engine null`" in hint
    assert "please set" not in details


@each_python
def test_refuses_tensors_of_two_devices(answers: dict[str, Any]) -> None:
    """What CUDA refuses for tensors of the host among those of the device is refused here."""
    kind, message, *_ = answers["refused"]["mixed"]
    assert kind == "RuntimeError"
    assert message.startswith("Expected all tensors to be on the same device")


@each_python
def test_says_which_name_of_torch_is_missing(answers: dict[str, Any]) -> None:
    """Where a private name is gone, the error names it and the versions that have it."""
    message, hint = answers["missing"]
    assert message.endswith("has no `Library.fallback`, which the trace engine needs")
    assert "torch 2.6.0, 2.13.0 and 2.15.0" in hint


@each_python
def test_leaves_torch_as_it_was(answers: dict[str, Any]) -> None:
    """Once left, torch sees what it saw before, and its compiler can be imported."""
    left = answers["left"]
    assert (left["inside"], left["during"]) == (True, [4096, 0])
    assert (left["same"], left["device"], left["compiler"], left["host"]) == (True, True, True, "cpu")


@each_python
def test_imports_nothing_of_the_compiler(answers: dict[str, Any]) -> None:
    """A plain step imports neither SymPy nor the compiler, which take longer than the step; torch 2.6 does itself."""
    assert answers["light"] == [] or answers["torch"].startswith("2.6")
