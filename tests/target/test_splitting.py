"""Any nest of tensors is cut along its samples, and its pieces put together are the batch."""

from __future__ import annotations

from collections import UserDict, defaultdict
from dataclasses import dataclass
from types import MappingProxyType, SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from oomdoctor.errors import UsageError
from oomdoctor.target.splitting import samples_in, split


class Pair(NamedTuple):
    """A batch as a named tuple."""

    inputs: Tensor
    labels: Tensor


class Size(NamedTuple):
    """Something that a batch has as a whole."""

    height: int
    width: int


@dataclass(frozen=True)
class Frozen:
    """A batch as a frozen dataclass, with something that has no samples."""

    inputs: Tensor
    task: str = "copy"


class Encoding(UserDict):  # type: ignore[type-arg]
    """What a tokenizer returns: a mapping with attributes of its own."""

    def __init__(self, data: dict[str, Tensor], encodings: str) -> None:
        super().__init__(data)
        self.encodings = encodings


_ROWS = torch.arange(10.0).reshape(5, 2)
_LABELS = torch.arange(5)


def _second(batch: object) -> Any:
    """The micro-batch of samples 3 and 4 out of five."""
    return split(batch, samples_in(batch), (3, 2))[1]


def test_each_container_keeps_its_type() -> None:
    """Dicts, lists, tuples, named tuples, dataclasses, default dicts and tokenizers' outputs stay what they are."""
    assert torch.equal(_second(_ROWS), _ROWS[3:])
    assert type(_second({"x": _ROWS})) is dict
    assert type(_second([_ROWS, _LABELS])) is list
    assert type(_second((_ROWS, _LABELS))) is tuple
    assert isinstance(_second(Pair(_ROWS, _LABELS)), Pair)
    assert torch.equal(_second(Frozen(_ROWS)).inputs, _ROWS[3:])
    assert _second(Frozen(_ROWS)).task == "copy"
    assert _second(defaultdict(list, x=_ROWS)).default_factory is list
    assert torch.equal(_second(MappingProxyType({"x": _ROWS}))["x"], _ROWS[3:])


def test_a_tokenizers_output_keeps_what_it_has_beside_its_items() -> None:
    """A mapping that is no dict is copied with its attributes, and the original keeps its tensors."""
    whole = Encoding({"input_ids": _ROWS}, "kept")
    part = _second(whole)

    assert type(part) is Encoding
    assert part.encodings == "kept"
    assert torch.equal(part["input_ids"], _ROWS[3:])
    assert torch.equal(whole["input_ids"], _ROWS)


def test_what_has_no_samples_is_in_every_micro_batch() -> None:
    """Numbers, text, None, tensors without dimensions and with a leading 1 are kept whole."""
    mask, scale = torch.ones(1, 2, 2), torch.tensor(3.0)
    batch = {"x": _ROWS, "mask": mask, "scale": scale, "lr": 0.5, "name": "abcde", "none": None, "size": Size(8, 9)}
    part = _second(batch)

    assert part["mask"] is mask
    assert part["scale"] is scale
    assert (part["lr"], part["name"], part["none"], part["size"]) == (0.5, "abcde", None, (8, 9))


def test_lists_with_an_item_a_sample_are_cut() -> None:
    """Names of files, and boxes of each image in a list, go with their samples."""
    boxes = [{"boxes": torch.ones(count, 4)} for count in (1, 2, 3, 4, 6)]
    names = ("a", "b", "c", "d", "e")

    part = split((_ROWS, names, boxes), 5, (3, 2), is_told=True)[1]

    assert part[1] == ("d", "e")
    assert [len(each["boxes"]) for each in part[2]] == [4, 6]


def test_a_batch_that_is_a_list_of_samples_is_cut() -> None:
    """With its number of samples said, a list of images of different shapes is cut between them."""
    images = [torch.ones(3, 8 + index, 9) for index in range(5)]

    first, second = split((images, list(range(5))), 5, (3, 2), is_told=True)

    assert [image.shape[1] for image in first[0]] == [8, 9, 10]
    assert second[1] == [3, 4]


def test_two_samples_in_a_pair_are_not_two_parts() -> None:
    """A pair of tensors with two samples each is cut in the tensors, not between them."""
    first, second = split([torch.ones(2, 3), torch.zeros(2)], 2, (1, 1))

    assert [tuple(part.shape) for part in first] == [(1, 3), (1,)]
    assert [tuple(part.shape) for part in second] == [(1, 3), (1,)]


def test_pieces_are_views() -> None:
    """A micro-batch shares the batch's memory."""
    assert _second(_ROWS).untyped_storage().data_ptr() == _ROWS.untyped_storage().data_ptr()


@pytest.mark.parametrize(
    ("batch", "problem"),
    [
        ({"x": _ROWS, "weights": torch.ones(7)}, "lead with 5 and 7"),
        (
            {"x": _ROWS, "graph": SimpleNamespace(nodes=torch.ones(5))},
            r"\['graph'\] holds tensors in a SimpleNamespace",
        ),
        ({"x": _ROWS, "seen": {torch.ones(5)}}, r"\['seen'\] holds tensors in a set"),
    ],
)
def test_what_cannot_be_cut_is_refused(batch: object, problem: str) -> None:
    """A tensor with other rows, and tensors inside of foreign objects, are refused instead of repeated."""
    with pytest.raises(UsageError, match=problem):
        _second(batch)


_LEAVES = st.sampled_from(["rows", "labels", "array", "scalar", "names", "number"])
_NESTS = st.recursive(
    _LEAVES,
    lambda inner: (
        st.lists(inner, max_size=3) | st.tuples(inner, inner) | st.dictionaries(st.sampled_from("abc"), inner)
    ),
    max_leaves=8,
)


def _grown(shape: object, samples: int) -> object:
    """The nest with its leaves in place."""
    leaves = {
        "rows": lambda: torch.arange(2.0 * samples).reshape(samples, 2),
        "labels": lambda: torch.arange(samples),
        "array": lambda: np.arange(3.0 * samples).reshape(samples, 3),
        "scalar": lambda: torch.tensor(1.0),
        "names": lambda: [f"name {index}" for index in range(samples)],
        "number": lambda: 7,
    }
    if isinstance(shape, str):
        return leaves[shape]()
    if isinstance(shape, dict):
        return {key: _grown(value, samples) for key, value in shape.items()}
    parts = [_grown(value, samples) for value in shape]  # type: ignore[attr-defined]
    return type(shape)([*parts, torch.arange(samples)])  # type: ignore[call-arg]


def _joined(parts: list[Any]) -> object:
    """Micro-batches put together again."""
    first = parts[0]
    if isinstance(first, Tensor):
        return torch.cat(parts) if first.dim() else first
    if isinstance(first, np.ndarray):
        return np.concatenate(parts)
    if isinstance(first, dict):
        return {key: _joined([part[key] for part in parts]) for key in first}
    if isinstance(first, list) and first and isinstance(first[0], str):
        return [name for part in parts for name in part]
    if isinstance(first, tuple | list):
        return type(first)(_joined([part[index] for part in parts]) for index in range(len(first)))
    return first


@settings(deadline=None)
@given(shape=_NESTS, sizes=st.lists(st.integers(1, 5), min_size=2, max_size=4))
def test_the_pieces_of_any_nest_make_the_batch(shape: object, sizes: list[int]) -> None:
    """Whatever is nested in what, the micro-batches put together are the batch."""
    samples = 10 + sum(sizes)  # more than any list of parts has
    batch = (torch.arange(samples), _grown(shape, samples))

    parts = split(batch, samples_in(batch), [10, *sizes], is_told=True)

    assert [len(part[0]) for part in parts] == [10, *sizes]
    assert repr(_joined(parts)) == repr(batch)


def test_a_named_tuple_is_never_a_list_of_samples() -> None:
    """A named tuple with as many fields as there are samples is kept together, whatever it holds."""
    size = Size(8, 9)
    first, second = split((torch.ones(2, 3), size), 2, (1, 1))
    assert first[1] == second[1] == size
    assert type(second[1]) is Size


def test_a_tensor_with_other_rows_than_said_is_refused() -> None:
    """Where the number of samples is given, a tensor that has another one is not taken into every micro-batch."""
    with pytest.raises(
        UsageError, match=r"the batch\['x'\] is a tensor of shape \[5, 2\], and the batch has 4 samples"
    ):
        split({"x": _ROWS}, 4, (2, 2))
