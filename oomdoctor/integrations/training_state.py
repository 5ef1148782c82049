"""The state of a training run in this process: kept before trials, and put back in place after each.

Trials take real optimizer steps on the user's own model. What they change is found by walking the objects that hold
state (modules, optimizers, schedulers, the loops of a trainer), and every tensor, container and attribute gets back
what it had. Objects keep their identity, so that an optimizer goes on training the same parameters.
"""

from __future__ import annotations

import random
import sys
from collections import OrderedDict, deque
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import torch
from torch.optim.lr_scheduler import LRScheduler

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_STATEFUL: Final = (torch.nn.Module, torch.optim.Optimizer, LRScheduler)
_PACKAGES: Final = frozenset({"accelerate", "lightning", "lightning_fabric", "pytorch_lightning", "torchmetrics"})
_MODULES: Final = ("torch.amp", "torch.cuda.amp", "torch.optim", "transformers")


class TrainingState:
    """What modules, optimizers and trainers hold, as it was when this was made.

    Copies of tensors lie in the host's memory: about as much as the model, and the optimizer's state where it has any.

    Args:
        roots: Objects to begin with; what they hold is walked, but for data sets and objects of other libraries.
    """

    def __init__(self, *roots: object) -> None:
        self._restore: list[Callable[[], object]] = []
        self._seen: dict[int, object] = {}  # the objects too, so that no number is given twice
        self._random = _random_state()
        waiting = list(roots)
        while waiting:
            found = waiting.pop()
            if id(found) not in self._seen:
                self._seen[id(found)] = found
                waiting.extend(self._keep(found))

    def restore(self) -> None:
        """Put everything back, random number generators included."""
        with torch.no_grad():
            for put_back in self._restore:
                put_back()
        self._random()

    def _keep(self, found: object) -> list[Any]:
        """Note how to put one object back, and return what it holds."""
        if isinstance(found, torch.Tensor):
            return self._keep_tensor(found)
        if isinstance(found, torch.Generator):
            state = found.get_state()
            self._restore.append(lambda: found.set_state(state))
            return []
        held = self._keep_container(found)
        # By `type`, since a weak proxy claims to be of the class that it stands for.
        if _has_state(type(found)) and hasattr(found, "__dict__"):
            held += self._keep_dict(vars(found))
        return held

    def _keep_container(self, found: object) -> list[Any]:
        if isinstance(found, dict):
            return self._keep_dict(found)
        if isinstance(found, (list, deque)):
            items = list(found)
            self._restore.append(lambda: _refill(found, items))
            return [*items]
        if isinstance(found, set):
            members = set(found)
            self._restore.append(lambda: _refill_set(found, members))
            return [*members]
        return [*found] if isinstance(found, tuple) else []

    def _keep_tensor(self, tensor: torch.Tensor) -> list[Any]:
        if tensor.is_meta:
            return []
        version, kept = tensor._version, tensor.detach().to("cpu", copy=True)  # noqa: SLF001 - documented for autograd
        is_leaf = tensor.is_leaf
        gradient = tensor.grad if is_leaf else None

        def put_back() -> None:
            if tensor._version != version or tensor.is_cuda:  # noqa: SLF001 - fused kernels may write without counting
                tensor.detach().copy_(kept)
            if is_leaf:
                tensor.grad = gradient

        self._restore.append(put_back)
        return [gradient]

    def _keep_dict(self, found: dict[Any, Any]) -> list[Any]:
        kept = dict(found)
        base = OrderedDict if isinstance(found, OrderedDict) else dict  # a subclass may refuse or change what is set

        def put_back() -> None:
            if len(found) != len(kept) or any(found.get(key, kept) is not value for key, value in kept.items()):
                base.clear(found)
                base.update(found, kept)

        self._restore.append(put_back)
        return list(kept.values())


def _refill(found: list[Any] | deque[Any], items: list[Any]) -> None:
    if len(found) != len(items) or any(one is not other for one, other in zip(found, items, strict=True)):
        found.clear()
        found.extend(items)


def _refill_set(found: set[Any], members: set[Any]) -> None:
    found.clear()
    found.update(members)


def _has_state(kind: type) -> bool:
    package = kind.__module__.partition(".")[0]
    return issubclass(kind, _STATEFUL) or package in _PACKAGES or kind.__module__.startswith(_MODULES)


@contextmanager
def kept_random_state() -> Iterator[None]:
    """Give random number generators back the state that they had."""
    restore = _random_state()
    try:
        yield
    finally:
        restore()


def _random_state() -> Callable[[], None]:
    python, on_host = random.getstate(), torch.get_rng_state()
    on_gpus = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else None  # type: ignore[no-untyped-call]
    numpy = sys.modules.get("numpy")
    of_numpy = None if numpy is None else numpy.random.get_state()

    def restore() -> None:
        random.setstate(python)
        torch.set_rng_state(on_host)
        if on_gpus is not None:
            torch.cuda.set_rng_state_all(on_gpus)
        if numpy is not None and of_numpy is not None:
            numpy.random.set_state(of_numpy)

    return restore
