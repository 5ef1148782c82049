"""Find where samples of a batch begin to depend on each other.

The forward is run on the whole batch and on its parts, and every operator's result is reduced to one number a row. The
first operator whose rows on the parts differ from the same rows on the whole batch has mixed samples, since all rows
before it were the same; so has one whose result has the batch's size in two dimensions. It is named by the module in
which it ran and by the user's line.
"""

from __future__ import annotations

import sys
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from oomdoctor.target.contract import is_own_file

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from types import FrameType

    from torch._ops import OpOverload

    from oomdoctor.verification.gradients import Batch, Laboratory

_TOLERANCE: Final = 1e-6
_LOSS: Final = None


@dataclass(frozen=True, slots=True)
class Coupling:
    """Where samples first depend on each other.

    Attributes:
        module: Path of the module in the model; empty for the model's own code, None outside of the model.
        kind: Class of the module; None outside of the model.
        location: The user's line, as `file:line`; None where no line of the user's took part.
        operator: PyTorch's operator.
        is_pairwise: Whether its result holds a number for each pair of samples.
    """

    module: str | None
    kind: str | None
    location: str | None
    operator: str
    is_pairwise: bool


@dataclass(frozen=True, slots=True)
class _Result:
    """One operator's result, a number a row in each dimension that may be the batch's."""

    module: str | None
    operator: str
    location: str | None
    shape: tuple[int, ...]
    rows: dict[int, torch.Tensor]
    scale: float


_Key = tuple[str | None, int, int]


@dataclass(slots=True)
class _Stack:
    """Modules that are running: each as its path and which call of it."""

    calls: Counter[str] = field(default_factory=Counter)
    running: list[tuple[str, int]] = field(default_factory=list)
    operators: Counter[tuple[str | None, int]] = field(default_factory=Counter)

    def next_key(self) -> _Key:
        """Return the key of the next operator in the module that is running."""
        module: tuple[str | None, int] = self.running[-1] if self.running else (_LOSS, 0)
        self.operators[module] += 1
        return (*module, self.operators[module])


class _Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records the results of every operator of a forward."""

    def __init__(self, model: torch.nn.Module, samples: int, own_roots: Sequence[Path]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._model = model
        self._samples = samples
        self._stack = _Stack()
        self._is_own = lru_cache(partial(is_own_file, own_roots=own_roots))
        self.results: dict[_Key, _Result] = {}

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Record what runs inside."""
        handles = []
        for name, module in self._model.named_modules():
            handles.append(module.register_forward_pre_hook(self._enter(name)))
            handles.append(module.register_forward_hook(self._leave, always_call=True))
        try:
            with self:
                yield
        finally:
            for handle in handles:
                handle.remove()

    def _enter(self, name: str) -> Callable[..., None]:
        def enter(*_: object) -> None:
            self._stack.calls[name] += 1
            self._stack.running.append((name, self._stack.calls[name]))

        return enter

    def _leave(self, *_: object) -> None:
        self._stack.running.pop()

    def __torch_dispatch__(
        self,
        func: OpOverload,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> object:
        del types
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, torch.Tensor) and tensor.is_floating_point():
                self._note(func, tensor.detach())
        return result

    def _note(self, func: OpOverload, tensor: torch.Tensor) -> None:
        key = self._stack.next_key()
        dimensions = [d for d, size in enumerate(tensor.shape) if size and size % self._samples == 0]
        if tensor.layout is torch.strided and dimensions:
            rows = {dimension: _row_numbers(tensor, dimension) for dimension in dimensions}
            scale = float(tensor.abs().sum()) / max(tensor.shape[dimensions[0]], 1)
            self.results[key] = _Result(
                key[0], func.overloadpacket.__name__, self._location(), tuple(tensor.shape), rows, scale
            )

    def _location(self) -> str | None:
        """Return the innermost line of the user's that is running."""
        frame: FrameType | None = sys._getframe(1)  # noqa: SLF001 - the stack of the one who called
        while frame is not None:
            if self._is_own(frame.f_code.co_filename):
                return f"{_relative(frame.f_code.co_filename)}:{frame.f_lineno}"
            frame = frame.f_back
        return None


def _relative(filename: str) -> str:
    """Return a file from the working directory where it is inside."""
    path, here = Path(filename), Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else filename


def _row_numbers(tensor: torch.Tensor, dimension: int) -> torch.Tensor:
    """Return one number for each row along a dimension: a sum with weights that tell places apart."""
    rows = tensor.movedim(dimension, 0).reshape(tensor.shape[dimension], -1).double().nan_to_num()
    weights = torch.cos(torch.arange(rows.shape[1], dtype=torch.float64) * 1.7 + 0.3)
    return rows @ weights


def find_coupling(laboratory: Laboratory, sizes: Sequence[int], own_roots: Sequence[Path]) -> Coupling | None:
    """Find the first operator that mixes samples; None where no operator's rows show it, as in a loss's last mean.

    Args:
        laboratory: The model and its step.
        sizes: Samples of each micro-batch.
        own_roots: Directories or files of the user's code.
    """
    whole = _record(laboratory, laboratory.batch, laboratory.samples, own_roots)
    parts = [
        _record(laboratory, part, size, own_roots) for part, size in zip(laboratory.parts(sizes), sizes, strict=True)
    ]
    kinds = {name: type(module).__name__ for name, module in laboratory.model.named_modules()}
    for key, result in whole.items():
        pieces = [part.get(key) for part in parts]
        present = [piece for piece in pieces if piece is not None and piece.operator == result.operator]
        if len(present) < len(parts):
            continue
        mixed = _mixes(result, present, sizes)
        if mixed is not None:
            kind = None if result.module is None else kinds[result.module]
            return Coupling(result.module, kind, result.location, result.operator, mixed == "pairs")
    return None


def _record(laboratory: Laboratory, part: Batch, samples: int, own_roots: Sequence[Path]) -> dict[_Key, _Result]:
    recorder = _Recorder(laboratory.model, samples, own_roots)
    laboratory.restore()
    laboratory.forward(part, around=recorder.recording())
    return recorder.results


def _mixes(whole: _Result, parts: Sequence[_Result], sizes: Sequence[int]) -> str | None:
    """Return `pairs` or `rows` where the parts' rows are not the whole batch's; None where they are, or cannot be."""
    if any(len(part.shape) != len(whole.shape) for part in parts):
        return None
    dimensions = [
        dimension
        for dimension, size in enumerate(whole.shape)
        if dimension in whole.rows
        and sum(part.shape[dimension] for part in parts) == size
        and all(dimension in part.rows for part in parts)
    ]
    if len(dimensions) > 1:
        return "pairs"
    if not dimensions:
        return None
    found = [part.rows[dimensions[0]] for part in parts]
    expected = whole.rows[dimensions[0]]
    tolerance = _TOLERANCE * whole.scale + 1e-12
    arranged = (torch.cat(found), _interleaved(found, sizes))
    return None if any(torch.allclose(rows, expected, rtol=_TOLERANCE, atol=tolerance) for rows in arranged) else "rows"


def _interleaved(parts: Sequence[torch.Tensor], sizes: Sequence[int]) -> torch.Tensor:
    """Return the rows where samples are the inner dimension of a flattened one, as in (time x samples)."""
    return torch.cat([part.reshape(-1, size) for part, size in zip(parts, sizes, strict=True)], dim=1).flatten()
