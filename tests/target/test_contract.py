"""What each function of the user's file has to give back."""

from __future__ import annotations

import gc
import weakref
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
import torch

from oomdoctor.errors import EXIT_USAGE, TargetError
from oomdoctor.target.contract import build, check_loss, is_out_of_memory, make_one_batch
from oomdoctor.target.placement import check_batch_sizes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from oomdoctor.target.contract import Target

    Load = Callable[..., Target]

BATCH = "\n\ndef make_batch(batch_size):\n    return torch.zeros(batch_size, 3)\n"


@contextmanager
def _refused(message: str, hint: str = "") -> Iterator[None]:
    with pytest.raises(TargetError) as caught:
        yield
    assert caught.value.exit_code == EXIT_USAGE
    assert message in caught.value.message
    assert hint in (caught.value.hint or "")


def _building(load: Load, body: str) -> Target:
    return load(source=f"import torch\ndef build_model():\n    {body}\n{BATCH}")


def _batching(load: Load, body: str) -> Target:
    return load(source=f"import torch\ndef build_model(): ...\ndef make_batch(batch_size):\n    {body}\n")


def test_the_model_is_built_with_the_references_arguments(load: Load) -> None:
    """Arguments of the reference reach the function, and each build is a new model."""
    target = load(
        "model.py:build_model(width=9)",
        "import torch\ndef build_model(width):\n    return torch.nn.Linear(3, width)\n" + BATCH,
    )
    model = build(target)
    assert isinstance(model, torch.nn.Linear)
    assert model.out_features == 9
    assert build(target) is not model


@pytest.mark.parametrize(
    ("body", "message", "hint"),
    [
        ("pass", "`build_model()` at model.py:2 returned None, not a `torch.nn.Module`", "`return model`"),
        ("return torch.nn.Linear", "returned the class `Linear`", "`return Linear(...)`"),
        ("return torch.nn.Linear(1, 1), 3", "returned a tuple of 2", "return the model alone"),
        ("return torch.zeros(2, 3)", "returned a tensor of shape [2, 3]", "build the model"),
        ("return {'w': 1}", "returned a dict with the keys `w`", "build the model"),
        ("return lambda x: x", "returned a function", "build the model"),
    ],
)
def test_a_build_that_gives_no_module_says_what_it_gave(load: Load, body: str, message: str, hint: str) -> None:
    """Each kind of wrong return has its own advice."""
    target = _building(load, body)
    with _refused(message, hint):
        build(target)


def test_a_build_that_raises_shows_the_users_line(load: Load) -> None:
    """The traceback is trimmed to the file, and the innermost torch line says which operation it was."""
    target = _building(load, "return torch.nn.Conv2d(3, 4, 3, groups=2)")
    with pytest.raises(TargetError) as caught:
        build(target)
    assert caught.value.message.startswith(
        "`build_model()` raised `ValueError: in_channels must be divisible by groups"
    )
    details = caught.value.details or ""
    assert "return torch.nn.Conv2d(3, 4, 3, groups=2)" in details
    assert details.count('  File "') == 2
    assert "oomdoctor/target/" not in details


@pytest.mark.parametrize("body", ["raise SystemExit(2)", "exit(2)", "import sys; sys.exit(2)"])
def test_a_function_that_exits_is_told_so(load: Load, body: str) -> None:
    """`exit()` in a function of the file is an error of the file, whichever function it is."""
    built, drawn = _building(load, body), None
    with _refused("`build_model()` called exit with 2", "must return"):
        build(built)
    drawn = _batching(load, body)
    with _refused("`make_batch(4)` called exit with 2", "must return"):
        make_one_batch(drawn, 4)


def test_a_keyboard_interrupt_of_the_files_own_does_not_end_us(load: Load) -> None:
    """The worker has no keyboard, so that the file raised it."""
    target = _building(load, "raise KeyboardInterrupt")
    with _refused("`build_model()` raised `KeyboardInterrupt`"):
        build(target)


def test_a_batch_has_the_size_that_was_asked_for(load: Load) -> None:
    """`make_batch` gets the size."""
    assert make_one_batch(_batching(load, "return torch.zeros(batch_size, 3)"), 5).shape == (5, 3)


def test_a_batch_that_cannot_be_made_names_the_size(load: Load) -> None:
    """A size at which `make_batch` raises is told apart from the others."""
    target = _batching(load, "return torch.zeros(batch_size, 8).view(-1, 16)")
    assert make_one_batch(target, 2).shape == (1, 16)
    with _refused("`make_batch(37)` raised `RuntimeError: shape '[-1, 16]' is invalid"):
        make_one_batch(target, 37)


def test_a_batch_of_nothing_is_refused(load: Load) -> None:
    """A forgotten `return` is named."""
    with _refused("`make_batch(2)` at model.py:3 returned None", "`return`"):
        make_one_batch(_batching(load, "torch.zeros(batch_size)"), 2)


OOM = "raise {}torch.OutOfMemoryError('CUDA out of memory')"


def test_an_out_of_memory_error_goes_through_as_it_is(load: Load) -> None:
    """Memory is the trial's affair: neither `build` nor `draw_batch` rewrites its errors."""
    with pytest.raises(torch.OutOfMemoryError):
        make_one_batch(_batching(load, OOM.format("")), 2)
    with pytest.raises(torch.OutOfMemoryError):
        build(_building(load, OOM.format("")))
    with pytest.raises(ValueError, match="no batch"):
        make_one_batch(
            _batching(load, "raise ValueError('no batch') from torch.OutOfMemoryError('CUDA out of memory')"), 2
        )


def test_the_caller_may_say_which_errors_go_through(load: Load) -> None:
    """A classifier that knows more kinds of out of memory can be handed in."""
    target = _batching(load, "raise RuntimeError('CUBLAS_STATUS_ALLOC_FAILED')")
    with pytest.raises(RuntimeError, match="ALLOC_FAILED"):
        make_one_batch(target, 2, passes=lambda error: "ALLOC_FAILED" in str(error))
    with _refused("ALLOC_FAILED"):
        make_one_batch(target, 2)


def test_out_of_memory_is_found_along_the_chain_only() -> None:
    """Causes and contexts count, what was cut off by `from None` does not, and a cycle ends."""
    oom, outer = torch.OutOfMemoryError("CUDA out of memory"), ValueError("outer")
    assert is_out_of_memory(oom)
    outer.__context__ = oom
    assert is_out_of_memory(outer)
    outer.__suppress_context__ = True
    assert not is_out_of_memory(outer)
    one, two = ValueError(), ValueError()
    one.__cause__, two.__cause__ = two, one
    assert not is_out_of_memory(one)


def test_a_failed_call_keeps_no_tensor_alive(load: Load) -> None:
    """The error that we raise holds neither the user's error nor its frames."""
    references: list[weakref.ref[Any]] = []
    target = _batching(load, "big = torch.zeros(batch_size); keep(big); raise ValueError('no')")
    target.make_batch.__globals__["keep"] = lambda big: references.append(weakref.ref(big))
    with pytest.raises(TargetError) as caught:
        make_one_batch(target, 2)
    gc.collect()
    assert caught.value.__context__ is None
    assert references[0]() is None


def test_a_make_batch_that_ignores_its_size_is_found() -> None:
    """Two sizes that give the same tensors are one size."""
    same = {"x": torch.zeros(8, 3), "y": torch.zeros(8)}
    with _refused("`make_batch` ignores `batch_size`: 1 and 2 samples gave tensors of the same sizes ([8, 3], [8])"):
        check_batch_sizes(same, 1, same, 2)


@pytest.mark.parametrize(
    ("one", "two"),
    [
        (torch.zeros(1, 3), torch.zeros(2, 3)),
        (
            {"tokens": torch.zeros(512), "mask": torch.zeros(4, 4)},
            {"tokens": torch.zeros(1024), "mask": torch.zeros(4, 4)},
        ),
        ([torch.zeros(3, 8)], [torch.zeros(3, 8), torch.zeros(3, 8)]),
        ((torch.zeros(3, 1), 5), (torch.zeros(3, 2), 5)),
        (1, 2),
    ],
    ids=["leading", "packed", "list of images", "batch second", "no tensors"],
)
def test_batches_that_follow_the_size_in_any_way_are_taken(one: object, two: object) -> None:
    """Packed, listed and batch-second layouts are legal."""
    check_batch_sizes(one, 1, two, 2)
    check_batch_sizes(one, 3, one, 3)


def _loss() -> torch.Tensor:
    return (torch.ones(1, 2) @ torch.ones(2, 1, requires_grad=True)).mean()


def test_a_scalar_loss_on_the_graph_is_taken() -> None:
    """Every floating type will do."""
    check_loss(_loss())
    check_loss(_loss().to(torch.bfloat16))


@pytest.mark.parametrize(
    ("loss", "message", "hint"),
    [
        (lambda: None, "returned None, not a tensor", "`return loss`"),
        (lambda: _loss().item(), "returned a float, not a tensor", "before `.item()`"),
        (lambda: (_loss(), 1), "returned a tuple of 2, not a tensor", "nothing besides"),
        (
            lambda: torch.zeros(8, 10, requires_grad=True),
            "returned a tensor of shape [8, 10], not a scalar",
            "`loss.mean()`",
        ),
        (lambda: _loss()[None], "returned a tensor of shape [1], not a scalar", "`loss.mean()`"),
        (lambda: torch.tensor(3), "a loss of type `torch.int64`", "accuracy"),
        (lambda: _loss().detach(), "not attached to the graph", "`.detach()`"),
    ],
)
def test_a_loss_that_cannot_be_trained_on_is_refused(loss: Callable[[], object], message: str, hint: str) -> None:
    """Each way of spoiling a loss has its own message and advice."""
    with _refused(message, hint):
        check_loss(loss())
