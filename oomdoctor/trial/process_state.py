"""State of a worker's process that a target's code may change, besides memory of the device. Runs in the worker.

Models of one file share a worker, one after the other, where the functions of the file leave the process as it was once
the file had been imported: nothing on the device, the same settings, variables and libraries.
"""

from __future__ import annotations

import gc
import os
import sys
from functools import _lru_cache_wrapper
from pathlib import Path
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import TYPE_CHECKING, Any, Final

import torch

from oomdoctor.agent.dependencies import is_installed
from oomdoctor.trial.device import assumptions, held_memory, unknown_calls
from oomdoctor.trial.step import has_compiled
from oomdoctor.trial.trial import await_release, release_memory
from oomdoctor.trial.worker_answers import HeldMemory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

_NOTHING: Final = HeldMemory(0, 0)
_CODE: Final = (FunctionType, BuiltinFunctionType, type)
_SETTINGS: Final[Mapping[str, Callable[[], object]]] = {
    "default dtype": torch.get_default_dtype,
    "default device": torch.get_default_device,
    "matmul precision": torch.get_float32_matmul_precision,
    "deterministic": torch.are_deterministic_algorithms_enabled,
    "gradients": torch.is_grad_enabled,
    "inference": torch.is_inference_mode_enabled,
    "autocast": lambda: torch.is_autocast_enabled("cuda"),
    "anomalies": torch.is_anomaly_enabled,
    "flash": torch.backends.cuda.flash_sdp_enabled,
    "memory-efficient attention": torch.backends.cuda.mem_efficient_sdp_enabled,
    "plain attention": torch.backends.cuda.math_sdp_enabled,
    "cuDNN's attention": torch.backends.cuda.cudnn_sdp_enabled,
    "cuDNN": lambda: (
        torch.backends.cudnn.enabled,
        torch.backends.cudnn.benchmark,
        torch.backends.cudnn.deterministic,
    ),
    "reduced precision": lambda: torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction,
    "TF32 of matmul": lambda: torch.backends.cuda.matmul.allow_tf32,
    "TF32 of cuDNN": lambda: torch.backends.cudnn.allow_tf32,
    "memory fraction": lambda: torch.cuda.get_per_process_memory_fraction(0),
    "variables": lambda: dict(os.environ),
    "directory": Path.cwd,
}
"""Settings of the process that can change how much memory a step takes, by name."""


class ProcessState:
    """State of this process, as it is when this is made.

    Args:
        own_roots: Directories or files of the user's code.
    """

    def __init__(self, own_roots: Sequence[Path]) -> None:
        self._settings = _settings()
        self._code = _code()
        self._own = {name: _contents(vars(module)) for name, module in own_modules(own_roots)}
        self._sources = dict(_sources(own_roots))

    def is_unchanged(self) -> bool:
        """Return whether nothing was set, replaced or kept meanwhile; what was added to libraries does not count."""
        return (
            not has_compiled()
            and _settings() == self._settings
            and all(_is_same(owner, names) for owner, names in self._code)
            and all(_is_kept(sys.modules.get(name), own) for name, own in self._own.items())
        )

    def sources(self, own_roots: Sequence[Path]) -> dict[str, int]:
        """Return when each of the user's files was changed last, in ns; those that were imported late included."""
        return {**dict(_sources(own_roots)), **self._sources}


def gives_back_all() -> bool:
    """Give back all that PyTorch holds of the device and what was set of it; return whether nothing is left.

    A device that was asked for what is counted by a rule, or not served, goes on telling so of later models.
    """
    torch.cuda.set_per_process_memory_fraction(1.0)
    nothing = torch.nn.Module()
    release_memory(nothing)
    if held_memory() != _NOTHING:
        gc.unfreeze()  # what was exempt from collection may hold the model, in a cycle
        await_release(nothing, 0)
    return held_memory() == _NOTHING and not assumptions() and not unknown_calls()


def _settings() -> dict[str, object]:
    return {name: _told(setting) for name, setting in _SETTINGS.items()}


def _told(setting: Callable[[], object]) -> object:
    try:
        return setting()
    except (RuntimeError, OSError) as error:  # such as of two ways to set TF32, one of which was used
        return type(error)


def _code() -> list[tuple[Any, dict[str, object]]]:
    """Return functions and classes of all modules, and the methods of all networks and optimizers, by owner.

    By `type`, since what stands for another object may do things where it is asked for its class.
    """
    owners: list[Any] = [*sys.modules.values(), torch.Tensor, *_subclasses(torch.nn.Module)]
    owners.extend(_subclasses(torch.optim.Optimizer))
    return [
        (owner, {name: item for name, item in list(vars(owner).items()) if issubclass(type(item), _CODE)})
        for owner in owners
        if isinstance(owner, ModuleType | type)
    ]


def _subclasses(base: type) -> Iterator[type]:
    yield base
    subclasses: list[type] = type.__subclasses__(base)
    for one in subclasses:
        yield from _subclasses(one)


def _is_same(owner: Any, names: Mapping[str, object]) -> bool:  # noqa: ANN401 - a module or a class
    now = vars(owner)
    return all(now.get(name) is item or _is_wrapped_by_torch(now.get(name), item) for name, item in names.items())


def _is_wrapped_by_torch(now: object, item: object) -> bool:
    """Return whether PyTorch has wrapped a function itself, as it does with an optimizer's step at its first use."""
    if not isinstance(now, FunctionType) or not str(now.__globals__.get("__name__")).startswith("torch."):
        return False
    return getattr(now, "__wrapped__", None) is item


def own_modules(own_roots: Sequence[Path]) -> Iterator[tuple[str, ModuleType]]:
    """Yield the user's modules that have been imported, by name."""
    modules: list[tuple[str, Any]] = list(sys.modules.items())  # in which programs put other things, too
    for name, module in modules:
        file = vars(module).get("__file__") if isinstance(module, ModuleType) else None
        if isinstance(file, str) and not is_installed(file) and _is_below(file, own_roots) and not _is_ours(name):
            yield name, module


def _is_ours(name: str) -> bool:
    return name.partition(".")[0] == "oomdoctor" and not name.startswith("oomdoctor.examples.")


def _is_below(file: str, own_roots: Sequence[Path]) -> bool:
    return any(Path(file).is_relative_to(root) for root in own_roots)


def _sources(own_roots: Sequence[Path]) -> Iterator[tuple[str, int]]:
    for _, module in own_modules(own_roots):
        path = Path(str(module.__file__))
        if path.is_file():  # a generated target has none
            yield str(path), path.stat().st_mtime_ns


def _contents(names: Mapping[str, object]) -> dict[str, tuple[object, object]]:
    """Return variables by name, each with what it holds; of a class of this module, with its attributes."""
    home = names.get("__name__")
    return {name: (item, _held(item, home)) for name, item in list(names.items()) if name != "__builtins__"}


def _held(item: object, home: object) -> object:
    if isinstance(item, dict):
        return dict(item)
    if isinstance(item, list | set):
        return [*item]
    if isinstance(item, _lru_cache_wrapper):
        return item.cache_info().currsize
    is_own = isinstance(item, type | FunctionType) and item.__module__ == home
    return dict(vars(item)) if is_own else None


def _is_kept(module: ModuleType | None, own: Mapping[str, tuple[object, object]]) -> bool:
    if module is None:
        return False
    now = _contents(vars(module))
    return now.keys() == own.keys() and all(
        now[name][0] is item and _are_alike(now[name][1], held) for name, (item, held) in own.items()
    )


def _are_alike(one: Any, other: Any) -> bool:  # noqa: ANN401 - what `_held` returns
    """Return whether two have the same objects; none of them is asked whether it equals another."""
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(one[key] is other[key] for key in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(_are_alike(*pair) for pair in zip(one, other, strict=True))
    return one is other or (isinstance(one, int) and one == other)
