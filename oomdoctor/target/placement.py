"""Check a batch, place it on the device, call the model on it, and find the loss in its output."""

from __future__ import annotations

import copy
import dataclasses
import types
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from inspect import isasyncgen, isawaitable, isgenerator
from typing import Any, Self, TypeVar, cast

import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from oomdoctor.errors import TargetError

Nest = TypeVar("Nest")

_TRAINING_STEP_LINES = """\
define the step in the file, and have it return a scalar, for example:

    def training_step(model, batch):
        images, labels = batch
        return torch.nn.functional.cross_entropy(model(images), labels)"""


def place(nest: Nest, device: torch.device | str) -> Nest:
    """Put every tensor of `nest` on `device`.

    Tensors are found in dicts, lists, tuples, named tuples, sets, dataclasses and namespaces, and in objects with a
    `.to(device)` of their own; all else stays as it is. What is one object in several places of the nest is one object
    afterwards.

    Args:
        nest: Tensors in any nest; it is not changed.
        device: Where they go.

    Returns:
        A nest of the same types; parts without tensors, or already on `device`, are the same objects.
    """
    return cast("Nest", _Mover(torch.device(device)).move(nest))


def tensors_in(nest: object) -> Iterator[torch.Tensor]:
    """Yield every tensor of `nest` once, in the order of the nest."""
    seen: dict[int, object] = {}
    stack = [nest]
    while stack:
        item = stack.pop()
        if id(item) in seen:
            continue
        seen[id(item)] = item
        if isinstance(item, torch.Tensor):
            yield item
        else:
            stack.extend(reversed(list(_parts(item))))


def plain_parts(tensor: Any) -> Iterator[torch.Tensor]:  # noqa: ANN401 - torch's own type of such tensors excludes tensors
    """Yield the tensors with a storage that a tensor consists of: itself, the parts of a sparse one or of a wrapper."""
    if is_traceable_wrapper_subclass(tensor):
        parts = (getattr(tensor, name) for name in tensor.__tensor_flatten__()[0])
        for part in parts:
            if isinstance(part, torch.Tensor):  # a DTensor names its mesh, too
                yield from plain_parts(part)
    elif tensor.layout is torch.sparse_coo:
        yield from (tensor._indices(), tensor._values())  # noqa: SLF001 - the public ones want it coalesced
    else:
        yield tensor


def storage_bytes(tensors: Iterable[torch.Tensor]) -> int:
    """Return the bytes of the tensors' storages, each counted once however many tensors share it."""
    sizes: dict[object, int] = {}
    for part in (part for tensor in tensors for part in plain_parts(tensor)):
        try:
            storage = part.untyped_storage()
            sizes[storage.data_ptr() or ("meta", storage._cdata)] = storage.nbytes()  # noqa: SLF001 - its identity
        except (RuntimeError, NotImplementedError):  # a kind of tensor without a storage that can be seen
            sizes[part] = part.nbytes
    return sum(sizes.values())


def check_batch(batch: object) -> None:
    """See that `make_batch` returned data, and not something that would make or hold it elsewhere.

    Raises:
        TargetError: It is a generator, a coroutine, an array of another library, or empty.
    """
    if isgenerator(batch) or isawaitable(batch) or isasyncgen(batch):
        raise TargetError(
            f"`make_batch` returned {described(batch)}, which is no batch",
            hint="return the batch itself; a `yield` or an `async` makes something else of the function",
        )
    parts = batch if isinstance(batch, tuple | list) else batch.values() if isinstance(batch, Mapping) else (batch,)
    if any(type(part).__module__ == "numpy" for part in parts):
        raise TargetError(
            "`make_batch` returned NumPy arrays, which cannot be put on a GPU",
            hint="convert them with `torch.from_numpy(...)`",
        )
    if isinstance(batch, tuple | list | Mapping) and not batch:
        raise TargetError(f"`make_batch` returned {described(batch)} that is empty", hint="return the batch's tensors")


@dataclasses.dataclass(slots=True)
class BatchShape:
    """Relation of a batch's tensors to its size, against which each batch is checked.

    Attributes:
        leading: Positions of the tensors whose leading dimension is the batch's size, as far as two batches showed; the
            batch may be packed or flattened and have none.
        elements_a_sample: Elements of all tensors by sample, as the larger of the two batches had them.
    """

    leading: tuple[int, ...] = ()
    elements_a_sample: float = 0.0

    @classmethod
    def of(cls, batch_a: object, size_a: int, batch_b: object, size_b: int) -> Self:
        """Return what two batches of different sizes show.

        Raises:
            TargetError: No tensor changed.
        """
        check_batch_sizes(batch_a, size_a, batch_b, size_b)
        pairs = zip(tensors_in(batch_a), tensors_in(batch_b), strict=False)
        leads = [a.shape[:1] == (size_a,) and b.shape[:1] == (size_b,) for a, b in pairs]
        leading = tuple(position for position, is_leading in enumerate(leads) if is_leading)
        return cls(leading, sum(tensor.numel() for tensor in tensors_in(batch_b)) / size_b)

    def check(self, batch: object, size: int, make: Callable[[int], object]) -> None:
        """See that a batch has as many samples as were asked for; a small data set has no more than it has.

        Args:
            batch: The batch.
            size: Its size, as asked for.
            make: Makes another one of a size.

        Raises:
            TargetError: It has fewer samples, and so has one of twice its size; or the tensors of one of half its size.
        """
        tensors = list(tensors_in(batch))
        for position in self.leading:
            found = _samples(tensors, position)
            # A file may round sizes, to pairs for example; one whose data end gives no more for twice the size either.
            if found < size and _samples(list(tensors_in(make(2 * size))), position) <= found:
                raise TargetError(f"`make_batch({size})` returned {found} samples, not {size}", hint=_HINT_FOR_FEWER)
        # Samples of a packed batch differ in length, so few elements are a reason to look again and no proof.
        elements = sorted(tensor.numel() for tensor in tensors)
        if not self.leading and size > 1 and sum(elements) < _FEW_ELEMENTS * self.elements_a_sample * size:
            half = size // 2
            if elements == sorted(tensor.numel() for tensor in tensors_in(make(half))):
                message = f"`make_batch({size})` and `make_batch({half})` gave tensors of the same sizes"
                raise TargetError(message, hint=_HINT_FOR_FEWER)


def _samples(tensors: Sequence[torch.Tensor], position: int) -> int:
    """Return the leading dimension of the tensor at a position; 0 where there is none."""
    return tensors[position].shape[0] if position < len(tensors) and tensors[position].dim() else 0


_FEW_ELEMENTS = 0.75
_HINT_FOR_FEWER = (
    "a data set that is smaller than the batch ends early: repeat its samples, or make tensors of that size, for "
    "example with `torch.randn(batch_size, 3, 224, 224)`"
)


def check_batch_sizes(batch_a: object, size_a: int, batch_b: object, size_b: int) -> None:
    """See that `make_batch` heeds `batch_size`: two sizes must not give tensors with the same numbers of elements.

    A batch may be packed or flattened, so nothing is asked of any one dimension; one without tensors tells nothing.

    Raises:
        TargetError: No tensor changed.
    """
    elements_a, elements_b = (sorted(tensor.numel() for tensor in tensors_in(batch)) for batch in (batch_a, batch_b))
    if size_a == size_b or not elements_a or elements_a != elements_b:
        return
    shapes = ", ".join(str(list(tensor.shape)) for tensor in tensors_in(batch_a))
    raise TargetError(
        f"`make_batch` ignores `batch_size`: {size_a} and {size_b} samples gave tensors of the same sizes ({shapes})",
        hint="make the leading dimension of the tensors `batch_size`, as in `torch.randn(batch_size, 3, 224, 224)`",
    )


def default_training_step(model: torch.nn.Module, batch: Any) -> torch.Tensor:  # noqa: ANN401 - any nest
    """Call the model on the batch and take the loss from its output.

    A tuple or list is spread over positional arguments, a mapping over keyword arguments.

    Raises:
        TargetError: The output holds no loss.
    """
    return loss_of(call_model(model, batch))


def call_model(model: torch.nn.Module, batch: Any) -> object:  # noqa: ANN401 - any nest
    """Call the model on the batch: a tuple or list is spread over positional arguments, a mapping over keywords."""
    if isinstance(batch, Mapping):
        return model(**batch)
    return model(*batch) if isinstance(batch, tuple | list) else model(batch)


def loss_of(output: object) -> torch.Tensor:
    """Return the loss in a model's output: a scalar tensor itself, its `.loss`, or its `["loss"]`.

    Raises:
        TargetError: The output is none of them.
    """
    loss = loss_in(output)
    if isinstance(loss, torch.Tensor) and loss.dim() == 0:
        return loss
    held = "" if loss is None or loss is output else f" whose `loss` is {described(loss)}"
    raise TargetError(
        f"the model returned {described(output)}{held}, and no loss can be taken from that",
        hint=_HINT_FOR_MISSING_LOSS.format(lines=_TRAINING_STEP_LINES),
    )


def loss_in(output: object) -> object:
    """Return a tensor itself, and of any other output its `.loss` or `["loss"]`; None where it has neither."""
    if isinstance(output, torch.Tensor):
        return output
    loss = _attribute(output, "loss")
    return output.get("loss") if loss is None and isinstance(output, Mapping) else loss


_HINT_FOR_MISSING_LOSS = (
    'without a `training_step` the model itself returns a scalar, or an output with `.loss` or ["loss"] '
    "(a Hugging Face model does when the batch holds `labels`); else {lines}"
)


def described(value: object) -> str:
    """Return a few words for a value: its type, and shape or keys."""
    if isinstance(value, torch.Tensor):
        return f"a tensor of shape {list(value.shape)}"
    if value is None:
        return "None"
    if isinstance(value, type):
        return f"the class `{value.__name__}`"
    name = type(value).__name__
    article = "an" if name[0].lower() in "aeiou" else "a"
    if isinstance(value, Mapping):
        keys = ", ".join(f"`{key}`" for key in list(value)[:8])
        return f"{article} {name} with {f'the keys {keys}' if keys else 'no keys'}"
    if isinstance(value, tuple | list):
        return f"{article} {name} of {len(value)}"
    return f"{article} {name}"


class _Mover:
    """Moves one nest; remembers what has been moved, so that shared parts stay shared."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._moved: dict[int, tuple[object, object]] = {}  # the original too: an id is free again once its owner dies

    def move(self, item: object) -> object:
        if id(item) not in self._moved:
            self._moved[id(item)] = (item, item)  # a container inside itself stays as it is
            self._moved[id(item)] = (item, self._move(item))
        return self._moved[id(item)][1]

    def _move(self, item: object) -> object:  # noqa: PLR0911 - one a kind of nest
        if isinstance(item, torch.Tensor):
            return self._move_tensor(item)
        if _moves_itself(item):
            moved = cast("Any", item).to(self._device)
            return item if moved is None else moved  # some move in place and return nothing
        if isinstance(item, Mapping):
            return self._move_mapping(item)
        if isinstance(item, tuple | list | set | frozenset | deque):
            return self._move_sequence(item)
        if isinstance(item, types.SimpleNamespace):
            return self._move_fields(item, vars(item))
        if dataclasses.is_dataclass(item) and not isinstance(item, type):
            names = [field.name for field in dataclasses.fields(item) if hasattr(item, field.name)]
            return self._move_fields(item, {name: getattr(item, name) for name in names})
        return item

    def _move_tensor(self, tensor: torch.Tensor) -> torch.Tensor:
        moved = tensor.to(self._device)
        if moved is not tensor and tensor.requires_grad and tensor.is_leaf:
            return moved.detach().requires_grad_()  # made on the device, it would have been a leaf there
        return moved

    def _move_mapping(self, mapping: Mapping[Any, Any]) -> object:
        moved = {key: self.move(value) for key, value in mapping.items()}
        if all(moved[key] is value for key, value in mapping.items()):
            return mapping
        if not isinstance(mapping, MutableMapping):
            return moved
        placed = copy.copy(mapping)
        placed.update(moved)
        return placed

    def _move_sequence(self, items: Any) -> object:  # noqa: ANN401 - a tuple, list, set or deque
        moved = [self.move(item) for item in items]
        if all(after is before for after, before in zip(moved, items, strict=True)):
            return items
        if isinstance(items, list | deque):
            placed = copy.copy(items)
            placed.clear()
            placed.extend(moved)
            return placed
        return items._make(moved) if hasattr(items, "_make") else type(items)(moved)

    def _move_fields(self, item: object, fields: Mapping[str, object]) -> object:
        moved = {name: self.move(value) for name, value in fields.items()}
        if all(moved[name] is value for name, value in fields.items()):
            return item
        placed = copy.copy(item)
        for name, value in moved.items():
            object.__setattr__(placed, name, value)  # serves frozen ones too
        return placed


def _moves_itself(item: object) -> bool:
    return callable(_attribute(item, "to")) and not isinstance(item, type)


def _attribute(item: object, name: str) -> object:
    """Return an attribute; None where there is none, also where a dict's keys are attributes and it raises KeyError."""
    try:
        return getattr(item, name, None)
    except Exception:  # noqa: BLE001 - a `__getattr__` of the user's may raise anything for what it does not have
        return None


def _parts(item: object) -> Iterator[object]:
    """Yield the items of a nest, for the kinds of nests that `place` goes into."""
    if isinstance(item, Mapping):
        yield from item.values()
    elif isinstance(item, tuple | list | set | frozenset | deque):
        yield from item
    elif isinstance(item, types.SimpleNamespace):
        yield from vars(item).values()
    elif dataclasses.is_dataclass(item) and not isinstance(item, type):
        yield from (getattr(item, field.name, None) for field in dataclasses.fields(item))
    elif _moves_itself(item):
        yield from getattr(item, "__dict__", {}).values()
