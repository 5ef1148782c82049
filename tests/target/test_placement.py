"""Batches on their way to the device, and losses on their way back."""

from __future__ import annotations

from collections import OrderedDict, UserDict, defaultdict, deque
from dataclasses import dataclass, field
from types import MappingProxyType, SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch
from torch.nn.utils.rnn import PackedSequence, pack_sequence

from oomdoctor.errors import TargetError
from oomdoctor.target.placement import default_training_step, loss_of, place, storage_bytes, tensors_in

# `meta` is a second device that every build of torch has.


class Pair(NamedTuple):
    """A named tuple."""

    image: torch.Tensor
    label: object


@dataclass(frozen=True)
class Sample:
    """A dataclass that cannot be changed."""

    image: torch.Tensor
    name: str
    extra: list[Any] = field(default_factory=list)


class Encoding(UserDict[str, torch.Tensor]):
    """A mapping that moves itself."""

    def to(self, device: torch.device) -> Encoding:
        """Move into a new one."""
        return Encoding({key: value.to(device) for key, value in self.items()})


class InPlace:
    """An object that moves itself and returns nothing."""

    def __init__(self) -> None:
        self.x = torch.zeros(2)

    def to(self, device: torch.device) -> None:
        """Move in place."""
        self.x = self.x.to(device)


def _t(*shape: int) -> torch.Tensor:
    return torch.zeros(*(shape or (2,)))


@pytest.mark.parametrize(
    "nest",
    [
        _t(),
        [_t(), (_t(), {"a": _t()})],
        OrderedDict(a=_t()),
        defaultdict(list, a=[_t()]),
        UserDict(a=_t()),
        Encoding(a=_t()),
        Pair(_t(), "label"),
        Sample(_t(), "name", [_t()]),
        deque([_t()], maxlen=4),
        {_t()},
        pack_sequence([torch.zeros(3, 2), torch.zeros(1, 2)]),
        torch.zeros(3, 3).to_sparse(),
        torch.max(torch.zeros(2, 2), dim=0),
    ],
    ids=lambda nest: type(nest).__name__,
)
def test_tensors_in_every_kind_of_nest_are_moved(nest: Any) -> None:
    """The type of each container survives, and no tensor stays behind."""
    before = len(list(tensors_in(nest)))
    placed = place(nest, "meta")
    assert type(placed) is type(nest)
    devices = [
        tensor.device.type for tensor in tensors_in(placed.data if isinstance(placed, PackedSequence) else placed)
    ]
    assert devices
    assert set(devices) == {"meta"}
    assert isinstance(nest, PackedSequence) or len(devices) == before
    assert all(tensor.device.type == "cpu" for tensor in tensors_in(nest)), "the original was changed"


def test_what_is_no_tensor_stays_as_it_is() -> None:
    """Numbers, strings, modules' classes and unknown objects go through untouched."""
    unknown = type("Unknown", (), {"x": _t()})()
    nest: dict[str, Any] = {
        "n": 3,
        "s": "text",
        "none": None,
        "size": torch.Size([2]),
        "class": torch.nn.Linear,
        "object": unknown,
    }
    placed: dict[str, Any] = place({**nest, "x": _t()}, "meta")
    assert placed.pop("x").device.type == "meta"
    assert all(placed[key] is value for key, value in nest.items())
    assert place(nest, "meta") is nest


def test_a_namespace_is_placed() -> None:
    """It becomes another with its tensors placed; one without tensors stays as it is."""
    nest = SimpleNamespace(x=_t(), more=[SimpleNamespace(y=_t(), n=3)], rest=SimpleNamespace(n=1))
    placed = place(nest, "meta")
    assert placed.x.device.type == placed.more[0].y.device.type == "meta"
    assert placed.more[0].n == 3
    assert placed.rest is nest.rest
    assert nest.x.device.type == "cpu"


def test_a_dict_whose_keys_are_attributes_is_placed() -> None:
    """What it raises for an attribute that it does not have is no error."""
    kind = type("AttrDict", (dict,), {"__getattr__": dict.__getitem__, "__setattr__": dict.__setitem__})
    placed = place(kind(x=_t(), nested=kind(y=_t())), "meta")
    assert type(placed) is type(placed.nested) is kind
    assert placed.x.device.type == placed.nested.y.device.type == "meta"


def test_a_read_only_mapping_becomes_a_dict() -> None:
    """What cannot be changed or copied is rebuilt."""
    placed = place(MappingProxyType({"x": _t()}), "meta")
    assert placed["x"].device.type == "meta"


def test_an_object_that_moves_in_place_is_kept() -> None:
    """A `.to` without a return value is taken at its word."""
    item = InPlace()
    assert place([item], "meta")[0] is item
    assert item.x.device.type == "meta"


def test_shared_tensors_stay_shared() -> None:
    """One tensor in two places is moved once, so that it takes its memory once."""
    tokens = _t(4)
    placed: dict[str, Any] = place({"input": tokens, "labels": tokens, "nested": [tokens]}, "meta")
    assert placed["input"] is placed["labels"]
    assert placed["nested"][0] is placed["input"]
    inner = [tokens]
    outer = place([inner, inner], "meta")
    assert outer[0] is outer[1]


def test_a_nest_inside_itself_ends() -> None:
    """A cycle is no endless loop."""
    nest: list[Any] = [_t()]
    nest.append(nest)
    assert place(nest, "meta")[0].device.type == "meta"
    assert len(list(tensors_in(nest))) == 1


def test_tensors_that_are_there_already_are_the_same_objects() -> None:
    """Placing twice costs nothing."""
    nest = {"x": _t()}
    assert place(nest, "cpu") is nest


def test_a_leaf_that_wants_a_gradient_is_a_leaf_on_the_device() -> None:
    """An input that is optimised gets its gradient where it is."""
    leaf = torch.zeros(2, requires_grad=True)
    placed = place(leaf, "meta")
    assert placed.is_leaf
    assert placed.requires_grad


def test_a_model_moves_itself() -> None:
    """A module is the same module afterwards, as after its own `.to`."""
    model = torch.nn.Linear(2, 2)
    assert place(model, "meta") is model
    assert model.weight.device.type == "meta"


class Net(torch.nn.Module):
    """Gives back how it was called."""

    def forward(self, *args: object, **kwargs: object) -> Any:
        """Tell positional arguments from keywords."""
        return SimpleNamespace(loss=torch.tensor(len(args) + 10.0 * len(kwargs)))


@pytest.mark.parametrize(
    ("batch", "called"),
    [
        (_t(), 1),
        ((_t(), _t()), 2),
        ([_t()], 1),
        ({"a": _t(), "b": _t()}, 20),
        (Encoding(a=_t()), 10),
        (Pair(_t(), 1), 2),
        (3, 1),
    ],
)
def test_the_model_is_called_as_the_batch_is_shaped(batch: object, called: int) -> None:
    """One tensor is one argument, a sequence several, a mapping keywords."""
    assert default_training_step(Net(), batch).item() == called


@pytest.mark.parametrize(
    "output", [torch.tensor(2.0), SimpleNamespace(loss=torch.tensor(2.0)), {"loss": torch.tensor(2.0)}]
)
def test_a_loss_is_found_in_the_models_output(output: object) -> None:
    """A scalar, `.loss` and ["loss"] are losses."""
    assert loss_of(output).item() == 2


@pytest.mark.parametrize(
    ("output", "message"),
    [
        (_t(8, 10), "the model returned a tensor of shape [8, 10], and no loss"),
        (_t(1), "a tensor of shape [1]"),
        ((_t(8, 10), 3), "a tuple of 2"),
        ({"logits": _t()}, "a dict with the keys `logits`"),
        ({}, "a dict with no keys"),
        ({"loss": None, "logits": _t()}, "a dict with the keys `loss`, `logits`"),
        (SimpleNamespace(loss=_t(4)), "a SimpleNamespace whose `loss` is a tensor of shape [4]"),
        (None, "the model returned None"),
    ],
)
def test_an_output_without_a_loss_is_described(output: object, message: str) -> None:
    """What came back is said, with the lines that would make a loss of it."""
    with pytest.raises(TargetError) as caught:
        loss_of(output)
    assert message in caught.value.message
    assert "    def training_step(model, batch):" in (caught.value.hint or "")


class _OnMesh(torch.Tensor):
    """A wrapper that names what is no tensor among its parts, as DTensor names its mesh from torch 2.15 on."""

    local: torch.Tensor
    mesh = "a mesh"

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["local", "mesh"], None

    @classmethod
    def __tensor_unflatten__(cls, *_: object) -> None:
        """Wrappers are known by having both."""

    @classmethod
    def __torch_dispatch__(cls, *_: object) -> None:
        """Wrappers are known by having it."""


def test_the_bytes_of_a_tensor_on_a_mesh_are_those_of_its_own_part() -> None:
    """What a wrapper names besides tensors has no bytes."""
    wrapper: Any = torch.Tensor._make_wrapper_subclass(_OnMesh, (8,))
    wrapper.local = torch.zeros(8)
    assert storage_bytes([wrapper]) == 32
