"""The optimizer that a target trains with, and what is said of a step that fails."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest
import torch

from oomdoctor.errors import TargetError
from oomdoctor.target.contract import build, step_failure
from oomdoctor.trial.variants import make_optimizer, optimizer_names

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from oomdoctor.target.contract import Target

    Load = Callable[..., Target]

BATCH = "\n\ndef make_batch(batch_size):\n    return torch.zeros(batch_size, 3)\n"


@contextmanager
def _refused(message: str, hint: str = "") -> Iterator[None]:
    with pytest.raises(TargetError) as caught:
        yield
    assert message in caught.value.message
    assert hint in (caught.value.hint or "")


def _building(load: Load, body: str) -> Target:
    return load(source=f"import torch\ndef build_model():\n    {body}\n{BATCH}")


def _with_optimizer(load: Load, body: str) -> Target:
    return load(source=f"import torch\ndef build_model(): ...\n{BATCH}\ndef build_optimizer(model):\n    {body}\n")


def test_the_files_own_optimizer_comes_first(load: Load) -> None:
    """`build_optimizer` is used as it is, whatever name was given besides."""
    target = _with_optimizer(load, "return torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)")
    optimizer = make_optimizer(target, torch.nn.Linear(2, 2), "Adagrad")
    assert isinstance(optimizer, torch.optim.SGD)
    assert optimizer.defaults["momentum"] == 0.9


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("return None", "`build_optimizer(model)` returned None, not a `torch.optim.Optimizer`"),
        ("return torch.optim.SGD", "returned the class `SGD`"),
        (
            "return torch.optim.SGD([])",
            "`build_optimizer(model)` raised `ValueError: optimizer got an empty parameter list`",
        ),
    ],
)
def test_a_bad_build_optimizer_is_refused(load: Load, body: str, message: str) -> None:
    """What is no optimizer, or raises, says so."""
    with _refused(message):
        make_optimizer(_with_optimizer(load, body), torch.nn.Linear(2, 2), None)


@pytest.mark.parametrize("returned", ["[first, second]", "(first, second)", '{"first": first, "second": second}'])
def test_several_optimizers_are_told_what_stands_for_them(load: Load, returned: str) -> None:
    """One with a group of parameters for each, or the training command, which may have several."""
    body = f"first = second = torch.optim.SGD(model.parameters())\n    return {returned}"
    with _refused("not a `torch.optim.Optimizer`", hint="-- python train.py --batch-size {micro_batch}"):
        make_optimizer(_with_optimizer(load, body), torch.nn.Linear(2, 2), None)


def test_adamw_is_the_default_and_a_name_may_be_in_any_case(load: Load) -> None:
    """Every optimizer of torch can be named."""
    target, model = _building(load, "..."), torch.nn.Linear(2, 2)
    assert type(make_optimizer(target, model, None)) is torch.optim.AdamW
    assert type(make_optimizer(target, model, "RMSPROP")) is torch.optim.RMSprop
    for name in optimizer_names():
        if name != "Muon":  # takes matrices only
            assert type(make_optimizer(target, model, name.lower())).__name__ == name
    assert "Optimizer" not in optimizer_names()


def test_an_optimizer_that_refuses_the_model_says_why(load: Load) -> None:
    """A name that is right may still not fit the model."""
    if "Muon" not in optimizer_names():
        pytest.skip("this torch has no optimizer that refuses vectors")
    with _refused("`torch.optim.Muon(...)` raised `ValueError: Muon only supports 2D parameters"):
        make_optimizer(_building(load, "..."), torch.nn.Linear(2, 2), "muon")


def test_an_unknown_optimizer_is_answered_with_the_nearest(load: Load) -> None:
    """A slip in the name is put right; a name like no other gets the list."""
    target, model = _building(load, "..."), torch.nn.Linear(2, 2)
    with _refused("`torch.optim` has no optimizer `adamww`", "did you mean `AdamW`"):
        make_optimizer(target, model, "adamww")
    with _refused("has no optimizer `qqq`", "it has `ASGD`, "):
        make_optimizer(target, model, "qqq")


def test_only_what_is_trained_is_optimized(load: Load) -> None:
    """Frozen parameters have no optimizer state, and a model with nothing else has no optimizer."""
    model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Linear(3, 1))
    model[0].requires_grad_(requires_grad=False)
    optimizer = make_optimizer(_building(load, "..."), model, None)
    assert [tuple(parameter.shape) for parameter in optimizer.param_groups[0]["params"]] == [(1, 3), (1,)]
    with _refused("the model has no parameters that require a gradient"):
        make_optimizer(_building(load, "..."), torch.nn.ReLU(), None)


def _stepping(load: Load, body: str) -> Target:
    step = f"def training_step(model, batch):\n    {body}\n"
    return load(source=f"import torch\ndef build_model(): ...\n{BATCH}\n{step}")


def _step_error(target: Target, model: torch.nn.Module, batch: object) -> TargetError:
    try:
        torch.autograd.backward(target.training_step(model, batch))
    except Exception as error:  # noqa: BLE001 - as the trial catches it
        return step_failure(target, error)
    pytest.fail("the step did not raise")


def test_tensors_on_two_devices_are_explained(load: Load) -> None:
    """A device that the user chose is the likely cause, and the advice says whose task placing is."""
    target = _stepping(load, "return model(batch.to('meta')).mean()")
    error = _step_error(target, torch.nn.Linear(3, 1), torch.zeros(2, 3))
    assert error.message.startswith("the training step raised `RuntimeError: ")
    assert "oomdoctor places the model and the batch; remove `.to(...)`" in (error.hint or "")
    assert "batch.to('meta')" in (error.details or "")


@pytest.mark.parametrize(
    "text",
    [
        "Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu!",
        "expected self and mask to be on the same device, but got mask on cpu and self on cuda:0",
        "Expected query, key, and value to have the same device type, but got query.device: cuda:0 key.device: cpu",
        "Device index value 1 is out of index range [0, 1)",
        "Input type (torch.FloatTensor) and weight type (torch.cuda.FloatTensor) should be the same or input should be",
        "Input and hidden tensors are not at the same device, found input tensor at cuda:0 and hidden tensor at cpu",
        "indices should be either on cpu or on the same device as the indexed tensor (cpu)",
        "Expected a 'cuda' device type for generator but found 'cpu'",
    ],
)
def test_every_wording_of_two_devices_is_known(load: Load, text: str) -> None:
    """PyTorch has many texts for one mistake."""
    assert "oomdoctor places" in (step_failure(_building(load, "..."), RuntimeError(text)).hint or "")


def test_a_build_on_a_device_of_its_own_gets_the_same_advice(load: Load) -> None:
    """Placing is ours in every function."""
    with _refused("`build_model()` raised `RuntimeError: ", "oomdoctor places the model and the batch"):
        build(_building(load, "return torch.zeros(2) + torch.zeros(2, device='meta')"))


def test_a_step_that_goes_backward_itself_is_explained(load: Load) -> None:
    """`training_step` returns the loss and leaves `backward` to us."""
    target = _stepping(load, "loss = model(batch).square().mean(); loss.backward(); return loss")
    error = _step_error(target, torch.nn.Linear(3, 1), torch.zeros(2, 3))
    assert "leave both out of `training_step`" in (error.hint or "")


def test_a_model_that_is_called_wrongly_by_default_is_told_how_it_is_called(load: Load) -> None:
    """The default step spreads a tuple; a model that takes only the images needs a step of its own."""
    source = "class Net(torch.nn.Module):\n    def forward(self, x):\n        return x\n"
    target = load(source=f"import torch\n{source}\ndef build_model():\n    return Net()\n{BATCH}")
    error = _step_error(target, build(target), (torch.zeros(2, 3), torch.zeros(2)))
    assert "`model(*batch)`" in (error.hint or "")
    assert step_failure(target, ValueError("something else")).hint is None
