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

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch._ops import OpOverload


def seed_everything(seed: int) -> None:
    """Seed PyTorch, `random` and, where the step has imported it, NumPy."""
    torch.manual_seed(seed)
    random.seed(seed)
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed(seed)


class ExpectedRandomness(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Answer every random operator with its expected value.

    Attributes:
        drawn: Names of the random operators that were called, in the order of their first call.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.drawn: dict[str, None] = {}

    def __torch_dispatch__(
        self,
        func: OpOverload,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> object:
        del types
        result = func(*args, **(kwargs or {}))
        expect = _EXPECTED.get(func.overloadpacket.__name__)
        if expect is None:
            if torch.Tag.nondeterministic_seeded in func.tags:
                self.drawn.setdefault(func.overloadpacket.__name__)
            return result
        self.drawn.setdefault(func.overloadpacket.__name__)
        return expect(result, args, kwargs or {})


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
