"""Take the randomness out of a step: every draw becomes its expected value, or a permutation that is always the same.

A batch draws other numbers than its parts do, so that their gradients differ though nothing is wrong. With expected
values dropout is the identity, noise is 0 and a random step of a diffusion is the middle one, on the batch and on its
parts alike. A permutation stays one that mixes samples, so that what mixes them is still seen.
"""

from __future__ import annotations

import random
import sys
from typing import TYPE_CHECKING, Any, Final

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch._ops import OpOverload


def other_generators() -> dict[str, object]:
    """Return the states of the generators that are not PyTorch's, by name; a state changes when a number is drawn."""
    states: dict[str, object] = {"random": random.getstate()}
    if (numpy := sys.modules.get("numpy")) is not None:
        name, keys, *rest = numpy.random.get_state()
        states["numpy.random"] = (name, keys.tobytes(), *rest)
    return states


class ExpectedRandomness(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Answer every random operator with its expected value.

    Attributes:
        drawn: Names of the random operators that were called, in the order of their first call.
        counts_drawn: Whether it was counted what a random mask chose; with expected values it chooses all or nothing.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.drawn: dict[str, None] = {}
        self.counts_drawn = False
        self._masks: dict[int, torch.Tensor] = {}  # drawn tensors and masks made of them, kept alive for their ids

    def __torch_dispatch__(
        self,
        func: OpOverload,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> object:
        del types
        result = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        expect = _EXPECTED.get(name)
        if expect is None:
            if torch.Tag.nondeterministic_seeded in func.tags:
                self.drawn.setdefault(name)
            self._follow_masks(name, args, result)
            return result
        self.drawn.setdefault(name)
        result = expect(result, args, kwargs or {})
        if name in _MASKING:
            self._masks[id(result)] = result
        return result

    def _follow_masks(self, name: str, args: tuple[Any, ...], result: object) -> None:
        if not self._masks or not any(id(tensor) in self._masks for tensor in tree_leaves(args)):
            return
        if name in _KEEPING_MASKS and isinstance(result, torch.Tensor):
            self._masks[id(result)] = result
        self.counts_drawn |= name in _COUNTING


def _filled(value: Callable[[tuple[Any, ...], Mapping[str, Any]], Any]) -> Callable[..., Any]:
    """Return a replacement that fills the drawn tensor with one value."""

    def expect(result: torch.Tensor, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> torch.Tensor:
        return result.fill_(value(args, kwargs))

    return expect


def _argument(args: tuple[Any, ...], kwargs: Mapping[str, Any], place: int, name: str, default: float | None) -> Any:  # noqa: ANN401 - a number or a tensor
    return args[place] if len(args) > place else kwargs.get(name, default)


def _middle(args: tuple[Any, ...], _: Mapping[str, Any]) -> int:
    """Return the middle of `randint(low, high, size)` or `randint(high, size)`."""
    numbers = [arg for arg in args if isinstance(arg, int)]
    low, high = (0, numbers[0]) if len(numbers) == 1 else numbers[:2]
    return (low + high) // 2


def _without_dropout(result: tuple[torch.Tensor, torch.Tensor], args: tuple[Any, ...], _: object) -> object:
    output, mask = result
    return output.copy_(args[0]), mask.fill_(1)


def _rotated(result: torch.Tensor, *_: object) -> torch.Tensor:
    """Return a permutation in which no sample stays where it is."""
    return result.copy_(torch.arange(len(result), device=result.device).roll(1))


def _likely(result: torch.Tensor, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> torch.Tensor:
    """Return the probabilities themselves in place of zeros and ones."""
    probability = _argument(args, kwargs, 1, "p", None)
    if isinstance(probability, torch.Tensor):
        return result.copy_(probability)
    if probability is not None:
        return result.fill_(probability)
    return result.fill_(0.5) if result is args[0] else result.copy_(args[0])


def _mean(result: torch.Tensor, args: tuple[Any, ...], _: object) -> torch.Tensor:
    return result.copy_(args[0]) if isinstance(args[0], torch.Tensor) else result.fill_(args[0])


def _first_category(result: torch.Tensor, args: tuple[Any, ...], _: object) -> torch.Tensor:
    """Return the likeliest categories in place of drawn ones."""
    return result.copy_(args[0].argsort(dim=-1, descending=True, stable=True)[..., : result.shape[-1]])


_MASKING: Final = frozenset({"rand", "rand_like", "uniform_", "bernoulli", "bernoulli_"})
_KEEPING_MASKS: Final = frozenset(
    [
        *("lt", "le", "gt", "ge", "bitwise_not", "logical_not", "bitwise_and", "logical_and", "_to_copy", "clone"),
        *("view", "_unsafe_view", "unsqueeze", "expand", "detach", "alias"),
    ]
)
_COUNTING: Final = frozenset({"sum", "mean", "nonzero", "masked_select", "index", "count_nonzero"})
_EXPECTED: Final[Mapping[str, Callable[..., Any]]] = {
    "rand": _filled(lambda *_: 0.5),
    "rand_like": _filled(lambda *_: 0.5),
    "uniform_": _filled(
        lambda args, kwargs: (_argument(args, kwargs, 1, "from", 0.0) + _argument(args, kwargs, 2, "to", 1.0)) / 2
    ),
    "randn": _filled(lambda *_: 0.0),
    "randn_like": _filled(lambda *_: 0.0),
    "normal": _mean,
    "normal_": _filled(lambda args, kwargs: _argument(args, kwargs, 1, "mean", 0.0)),
    "randint": _filled(_middle),
    "randint_like": _filled(_middle),
    "random_": _filled(lambda args, _: _middle(args, {}) if any(isinstance(arg, int) for arg in args) else 0),
    "exponential_": _filled(lambda args, kwargs: 1.0 / _argument(args, kwargs, 1, "lambd", 1.0)),
    "bernoulli": _likely,
    "bernoulli_": _likely,
    "randperm": _rotated,
    "native_dropout": _without_dropout,
    "multinomial": _first_category,
}
"""What a random operator gives instead, by its name: `(drawn result, arguments, keywords) -> result`."""
