"""A batch that can be read in two ways is refused; one that cannot is cut the same whatever its number of samples."""

from __future__ import annotations

from collections import deque, namedtuple
from collections.abc import Callable, Mapping
from types import MappingProxyType, SimpleNamespace
from typing import Any, Self

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from oomdoctor import accumulate, plan_accumulation
from oomdoctor.errors import UsageError

Pair = namedtuple("Pair", "image mask")  # noqa: PYI024 - as users write them


def _cut(batch: Any, planned: int, largest: int, **options: Any) -> list[Any]:
    return [part for part, _ in accumulate(batch, plan_accumulation(planned, largest), reduction="sum", **options)]


def _boxes(counts: list[int]) -> list[dict[str, Tensor]]:
    return [{"boxes": torch.full((count, 4), float(count))} for count in counts]


@pytest.mark.parametrize("samples", [1, 2, 3, 4, 5])
def test_images_are_cut_between_whatever_their_channels(samples: int) -> None:
    """A list of RGB images is a list of samples, at as many samples as channels too."""
    images = [torch.full((3, 8 + index, 9), float(index)) for index in range(samples)]
    parts = _cut(images, 5, 2, batch_size=samples)
    assert [image.shape for part in parts for image in part] == [image.shape for image in images]


@pytest.mark.parametrize("boxes", [[1, 2, 3, 5], [1, 2, 3, 4], [4, 4, 4, 4], [0, 0, 0, 0], [1, 1, 1, 1]])
def test_boxes_are_cut_between_whatever_their_number(boxes: list[int]) -> None:
    """Targets of a detector go with their images, if one has as many boxes as there are samples too."""
    parts = _cut((torch.ones(4, 3, 8, 8), _boxes(boxes)), 4, 3, batch_size=4)
    assert [[len(target["boxes"]) for target in part[1]] for part in parts] == [boxes[:2], boxes[2:]]


@pytest.mark.parametrize("samples", [2, 3, 4, 5])
def test_a_batch_of_lists_is_gone_into_at_any_size(samples: int) -> None:
    """`tuple(zip(*samples))` of images and targets is two parts of lists of samples, with two samples too."""
    images = tuple(torch.ones(3, 8, 8) for _ in range(samples))
    parts = _cut((images, tuple(_boxes([2, 3, 4, 5, 2][:samples]))), 5, 1, batch_size=samples)
    assert [tuple(len(lists) for lists in part) for part in parts] == [(1, 1)] * samples


def test_a_list_of_pairs_is_cut_between_pairs() -> None:
    """Samples that were not collated stay whole, with as many samples as they have items too."""
    for samples in (2, 3):
        pairs = [(torch.ones(3, 8, 8), index) for index in range(samples)]
        assert [[label for _, label in part] for part in _cut(pairs, 3, 1, batch_size=samples)] == [
            [index] for index in range(samples)
        ]
        named = [Pair(torch.ones(samples, 8), torch.ones(samples, 8)) for _ in range(samples)]
        assert [len(part) for part in _cut(named, 3, 1, batch_size=samples)] == [1] * samples


@pytest.mark.parametrize("samples", [1, 2, 3, 8])
@pytest.mark.parametrize("metadata", [(224, 300), ["cat", "dog"], [torch.tensor(1.0)] * 2, ((1, 2), 3)])
def test_metadata_is_refused_from_the_first_batch_on(samples: int, metadata: object) -> None:
    """A pair beside the samples may be an item a sample; that is said at any number of samples, not at two alone."""
    with pytest.raises(UsageError, match=r"the batch\['size'\] is a (list|tuple) of 2, and may be") as refusal:
        _cut({"x": torch.ones(samples, 3), "size": metadata}, 8, 3)
    assert "batch_size=" in str(refusal.value.hint)


def test_with_lists_of_samples_other_lists_are_refused() -> None:
    """Where the number of samples is said, a list with another number of items is no list of samples."""
    with pytest.raises(UsageError, match=r"\['size'\] is a tuple of 2, and the batch has 8 samples"):
        _cut({"x": torch.ones(8, 3), "size": (224, 300)}, 8, 3, batch_size=8)


def test_what_cannot_be_samples_is_whole_at_any_size() -> None:
    """Metadata in a dict, a named tuple or a shape, or longer than any batch, is in every micro-batch."""
    for samples in (1, 2, 8):
        whole = {"size": {"h": 1, "w": 2}, "at": Pair(1, 2), "shape": torch.Size([2, 3]), "names": list("abcdefghi")}
        assert all(
            {key: part[key] for key in whole} == whole and type(part["shape"]) is torch.Size
            for part in _cut({"x": torch.ones(samples, 3), **whole}, 8, 1)
        )


@pytest.mark.parametrize(
    ("batch", "planned", "told"),
    [
        ([torch.ones(3, 9, 9)] * 8, 8, None),  # images whose channels would be cut
        ([torch.ones(3, 9, 9)] * 3, 3, None),
        ([{"image": torch.ones(3, 9, 9)}] * 4, 4, None),
        ((torch.ones(2, 3), torch.ones(2, 3)), 8, 2),
        (((torch.ones(2, 3), torch.ones(2, 3)), (torch.ones(2, 3), torch.ones(2, 3))), 8, 2),
        ([[torch.ones(3, 9), torch.ones(3, 9)]] * 2, 8, 2),
        (((torch.ones(3, 9), torch.ones(9)), (torch.tensor(1), torch.tensor(2))), 8, 2),
        ((torch.ones(2, 3), torch.ones(5, 4)), 8, 2),
        ((torch.ones(5, 3),) * 8, 8, 8),
        ([torch.ones(2, 3), {"boxes": torch.ones(5, 4)}], 8, 2),
    ],
)
def test_what_may_be_samples_or_parts_is_refused(batch: object, planned: int, told: int | None) -> None:
    """Where both readings make sense, the error names the list and how to say which is meant."""
    with pytest.raises(UsageError, match=r"the batch.* may be") as refusal:
        _cut(batch, planned, 2, batch_size=told)
    assert "in a dict" in str(refusal.value.hint)


def test_arrays_are_cut_as_tensors_are() -> None:
    """NumPy arrays lead with the samples too, count them where there are no tensors, and have to agree."""
    assert [len(part["y"]) for part in _cut({"x": torch.ones(5, 3), "y": np.zeros(5)}, 5, 2)] == [2, 2, 1]
    assert [part.shape for part in _cut(np.ones((5, 2)), 5, 3)] == [(3, 2), (2, 2)]
    with pytest.raises(UsageError, match="lead with 4 and 3"):
        _cut({"x": torch.ones(4, 3), "y": np.zeros(3)}, 4, 2)
    with pytest.raises(UsageError, match=r"\['y'\] is an array of shape \[3\], and the batch has 4"):
        _cut({"x": torch.ones(4, 3), "y": np.zeros(3)}, 4, 2, batch_size=4)


_ODD_TENSORS: Mapping[str, Callable[[], object]] = MappingProxyType(
    {
        "a packed sequence": lambda: nn.utils.rnn.pack_sequence([torch.ones(1, 2)] * 4),
        "a tensor of layout sparse_coo": lambda: torch.eye(4).to_sparse(),
        "a tensor of layout sparse_csr": lambda: torch.eye(4).to_sparse_csr(),
        "a nested tensor": lambda: torch.nested.nested_tensor([torch.ones(2, 3)] * 4),
        "a nested .*tensor": lambda: torch.nested.nested_tensor([torch.ones(2, 3)] * 4, layout=torch.jagged),
    }
)


@pytest.mark.filterwarnings("ignore")  # PyTorch tells that some are young
@pytest.mark.parametrize("told", [None, 4])
@pytest.mark.parametrize("kind", _ODD_TENSORS)
def test_tensors_without_rows_are_refused_by_name(kind: str, told: int | None) -> None:
    """Packed, sparse and nested tensors are refused as such, with what to give in their place."""
    item = _ODD_TENSORS[kind]()
    for batch in (item, {"x": torch.ones(4), "y": item}):
        with pytest.raises(UsageError, match=f"the batch.* is {kind}, which cannot be split") as refusal:
            _cut(batch, 4, 2, batch_size=told)
        assert "padded" in str(refusal.value.hint)


def test_samples_may_be_of_any_kind() -> None:
    """In a list of samples nothing is cut within a sample."""
    assert [len(part) for part in _cut([torch.eye(4).to_sparse()] * 3, 3, 2, batch_size=3)] == [2, 1]
    assert [len(part) for part in _cut([None, torch.ones(3, 3), None], 3, 2, batch_size=3)] == [2, 1]


def _cyclic() -> list[Any]:
    batch: list[Any] = [torch.ones(4)]
    batch.append(batch)
    return batch


def _deep() -> Any:
    batch: Any = torch.ones(4)
    for _ in range(5000):
        batch = [batch]
    return batch


class _TwoArguments(tuple):  # type: ignore[type-arg]
    """A tuple that is not made as tuples are."""

    __slots__ = ()

    def __new__(cls, one: object, two: object) -> Self:
        return super().__new__(cls, (one, two))


class _Kept(list):  # type: ignore[type-arg]
    """A list with a type of its own."""


@pytest.mark.parametrize("told", [None, 4])
@pytest.mark.parametrize(
    ("batch", "problem"),
    [
        (_cyclic(), "holds itself"),
        (_deep(), "nested deeper than"),
        (_TwoArguments(torch.ones(4), torch.ones(4, 2)), "a _TwoArguments of 2, which cannot be made anew"),
        ({"x": torch.ones(4), "names": deque("abcd")}, r"\['names'\] is a deque, which cannot be split"),
        (
            {"x": torch.ones(4), "table": SimpleNamespace(shape=(4, 2))},
            r"\['table'\] is a SimpleNamespace, which cannot",
        ),
        ({"x": torch.ones(4), "ids": range(4)}, r"\['ids'\] is a range, which cannot be split"),
    ],
)
def test_odd_nests_are_refused(batch: object, problem: str, told: int | None) -> None:
    """What holds itself, cannot be made anew or is of an unknown kind is an error that says so."""
    with pytest.raises(UsageError, match=problem):
        _cut(batch, 4, 2, batch_size=told)


def test_types_of_lists_are_kept() -> None:
    """A list of a type of its own keeps it, of parts as of samples."""
    assert type(_cut(_Kept([torch.ones(4), torch.ones(4, 2)]), 4, 2)[0]) is _Kept
    assert [type(part) for part in _cut(_Kept([torch.ones(3)] * 4), 4, 2, batch_size=4)] == [_Kept, _Kept]


def _loss(weights: Tensor, batch: dict[str, Any]) -> Tensor:
    """A mean over samples, from every kind of part."""
    boxes = torch.stack([(box @ weights).sum() for box in batch["boxes"]])
    rows = batch["rows"] @ weights * torch.as_tensor(batch["array"]) * batch["scale"]
    return ((rows + boxes) ** 2).mean()


@settings(max_examples=80, deadline=None)
@given(st.integers(1, 12), st.integers(1, 12), st.integers(1, 12), st.randoms(use_true_random=False))
def test_accepted_batches_have_the_gradient_of_the_whole(planned: int, largest: int, samples: int, random: Any) -> None:
    """Lists of samples, arrays and tensors: the gradient is the whole batch's to 1e-6, at any number of samples."""
    samples = min(samples, planned)
    torch.manual_seed(random.randint(0, 2**31))
    batch = {
        "rows": torch.randn(samples, 3, dtype=torch.float64),
        "array": np.asarray([random.random() for _ in range(samples)]),
        "boxes": [torch.randn(random.randint(0, 12), 3, dtype=torch.float64) for _ in range(samples)],
        "scale": torch.tensor(2.0, dtype=torch.float64),
    }
    whole, found = (torch.ones(3, dtype=torch.float64, requires_grad=True) for _ in range(2))
    _loss(whole, batch).backward()  # type: ignore[no-untyped-call]
    steps = accumulate(batch, plan_accumulation(planned, largest), batch_size=samples)
    for part, _ in steps:
        steps.backward(_loss(found, part))
    torch.testing.assert_close(found.grad, whole.grad, rtol=1e-6, atol=1e-12)
