"""What cannot be traced, said once: the operator, the user's line, and the engine that can."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import oomdoctor
from oomdoctor.errors import NoAnswerError

if TYPE_CHECKING:
    from types import FrameType

    import torch

_ELSEWHERE: Final = "run it on PyTorch itself: `--engine null` on Linux with a CUDA build of torch, or a real GPU"
_NO_LINE: Final = "; none of your lines calls it, as where PyTorch calls it in a backward"
_ADVICE: Final = re.compile(r"\n|(?<=\.) (?=To |This |Please |If |You )")
"""Where what PyTorch says of itself ends, and what it would have its own developers do begins."""
_PACKAGE: Final = str(Path(oomdoctor.__file__).parent)
_EXAMPLES: Final = str(Path(_PACKAGE, "examples"))
_NOBODYS: Final = ("torch.", "functools", "contextlib", "threading", "concurrent.", "runpy")
_MIXING: Final = frozenset({"aten::index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_"})
"""Operators that take tensors of the host besides those of the device."""


class UntraceableError(NoAnswerError):
    """An operator whose results' shapes or memory cannot be told without computing."""


def cannot_trace(operator: Any, why: object = None) -> UntraceableError:  # noqa: ANN401 - an operator
    """The error for an operator that cannot be traced."""
    name = str(operator).removesuffix(".default")
    line = user_line()
    return UntraceableError(
        f"`{name}` cannot be traced{f', at {line}' if line else _NO_LINE}",
        hint=_ELSEWHERE,
        details=_ADVICE.split(str(why))[0].strip() or None if why else None,
    )


def user_line() -> str | None:
    """File and line of the innermost frame that is the user's; None where there is none, as in most backwards."""
    # the only way to one's callers without reading their source
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001
    while frame is not None:
        path = frame.f_code.co_filename
        is_ours = path.startswith(_PACKAGE) and not path.startswith(_EXAMPLES)
        if not is_ours and not frame.f_globals.get("__name__", "").startswith(_NOBODYS):
            return f"{path}:{frame.f_lineno}"
        frame = frame.f_back
    return None


def different_devices(operator: Any, given: list[torch.Tensor]) -> None:  # noqa: ANN401
    """Refuse what CUDA refuses: tensors of the host among those of the device, numbers apart.

    Raises:
        RuntimeError: As PyTorch has it.
    """
    strangers = [tensor for tensor in given if tensor.is_cpu and tensor.dim() > 0]
    if strangers and operator.name().partition(".")[0] not in _MIXING:
        raise RuntimeError(
            "Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu!"
        )
