"""Place a batch on the device, call the model on it, and find the loss in its output."""

from __future__ import annotations

import copy
import dataclasses
from collections import deque
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from typing import Any, TypeVar, cast

import torch

from oomdoctor.errors import TargetError

Nest = TypeVar("Nest")

_TRAINING_STEP_LINES = """\
define the step in the file, and have it return a scalar, for example:

    def training_step(model, batch):
        images, labels = batch
        return torch.nn.functional.cross_entropy(model(images), labels)"""


def place(nest: Nest, device: torch.device | str) -> Nest:
    """Put every tensor of `nest` on `device`.

    Tensors are found in dicts, lists, tuples, named tuples, sets and dataclasses, and in objects with a `.to(device)`
    of their own; all else stays as it is. What is one object in several places of the nest is one object afterwards.

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


def batch_size_of(batch: object) -> int | None:
    """Return the leading dimension of the first tensor that has dimensions; None where there is none.

    Packed and flattened batches lead with another number than the samples.
    """
    return next((tensor.shape[0] for tensor in tensors_in(batch) if tensor.dim() > 0), None)


def default_training_step(model: torch.nn.Module, batch: Any) -> torch.Tensor:  # noqa: ANN401 - any nest
    """Call the model on the batch and take the loss from its output.

    A tuple or list is spread over positional arguments, a mapping over keyword arguments.

    Raises:
        TargetError: The output holds no loss.
    """
    if isinstance(batch, Mapping):
        return loss_of(model(**batch))
    if isinstance(batch, tuple | list):
        return loss_of(model(*batch))
    return loss_of(model(batch))


def loss_of(output: object) -> torch.Tensor:
    """Return the loss in a model's output: a scalar tensor itself, its `.loss`, or its `["loss"]`.

    Raises:
        TargetError: The output is none of them.
    """
    loss = output
    if not isinstance(output, torch.Tensor):
        loss = getattr(output, "loss", None)
        if loss is None and isinstance(output, Mapping):
            loss = output.get("loss")
    if isinstance(loss, torch.Tensor) and loss.dim() == 0:
        return loss
    held = "" if loss is None or loss is output else f" whose `loss` is {described(loss)}"
    raise TargetError(
        f"the model returned {described(output)}{held}, and no loss can be taken from that",
        hint=_HINT_FOR_MISSING_LOSS.format(lines=_TRAINING_STEP_LINES),
    )


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

    def _move(self, item: object) -> object:
        if isinstance(item, torch.Tensor):
            return self._move_tensor(item)
        if _moves_itself(item):
            moved = cast("Any", item).to(self._device)
            return item if moved is None else moved  # some move in place and return nothing
        if isinstance(item, Mapping):
            return self._move_mapping(item)
        if isinstance(item, tuple | list | set | frozenset | deque):
            return self._move_sequence(item)
        if dataclasses.is_dataclass(item) and not isinstance(item, type):
            return self._move_dataclass(item)
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

    def _move_dataclass(self, item: Any) -> object:  # noqa: ANN401 - an instance of any dataclass
        fields = {
            field.name: getattr(item, field.name) for field in dataclasses.fields(item) if hasattr(item, field.name)
        }
        moved = {name: self.move(value) for name, value in fields.items()}
        if all(moved[name] is value for name, value in fields.items()):
            return item
        placed = copy.copy(item)
        for name, value in moved.items():
            object.__setattr__(placed, name, value)  # serves frozen ones too
        return placed


def _moves_itself(item: object) -> bool:
    method: Callable[..., object] | None = getattr(item, "to", None)
    return callable(method) and not isinstance(item, type)


def _parts(item: object) -> Iterator[object]:
    """Yield the items of a nest, for the kinds of nests that `place` goes into."""
    if isinstance(item, Mapping):
        yield from item.values()
    elif isinstance(item, tuple | list | set | frozenset | deque):
        yield from item
    elif dataclasses.is_dataclass(item) and not isinstance(item, type):
        yield from (getattr(item, field.name, None) for field in dataclasses.fields(item))
    elif _moves_itself(item):
        yield from getattr(item, "__dict__", {}).values()
