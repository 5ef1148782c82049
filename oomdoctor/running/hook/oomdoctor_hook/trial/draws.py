"""Large random fills on the CPU are drawn in one trial and copied in the next: the same numbers, in less time.

Most of what a script computes before its first step is its model's first weights. A generator in the same state draws
the same numbers; so what a trial has drawn is kept in memory of the probe's, under the generator's state and all else
that the numbers depend on. Who finds it there copies it, and puts the generator where drawing would have left it.
"""

# ruff: noqa: ANN401 - torch's own types have no names here

from __future__ import annotations

import functools
from typing import Any

from ..guard import guarded, note_failure  # noqa: TID252 - the package has no other name
from . import settings
from .drawn import Drawn

_FEWEST = 1 << 16
"""Numbers below which drawing takes no longer than looking."""

_METHODS = ("normal_", "uniform_")


def watch(torch: Any) -> None:
    """Keep what these methods draw, and copy what has been drawn; do nothing where the probe gives no memory."""
    if not settings.DRAWS:
        return
    drawn = Drawn(settings.DRAWS)
    for name in _METHODS:
        setattr(torch.Tensor, name, _remembering(torch, name, drawn))


def _remembering(torch: Any, name: str, drawn: Drawn) -> Any:
    draw = getattr(torch.Tensor, name)

    @functools.wraps(draw)
    def fill(self: Any, *arguments: Any, **named: Any) -> Any:
        question = _question(torch, name, self, arguments, named)
        if question is None:
            return draw(self, *arguments, **named)
        if not _is_answered(torch, drawn, question, self):
            draw(self, *arguments, **named)
            guarded(_keep)(drawn, question, self)
        return self

    return fill


class _Question:
    """What numbers depend on.

    Attributes:
        generator: That draws them.
        key: All of it, in 32 bytes.
    """

    def __init__(self, generator: Any, *parts: Any) -> None:
        import hashlib  # noqa: PLC0415 - where numbers are drawn

        self.generator = generator
        self.key = hashlib.blake2b(repr(parts).encode() + _bytes_of(generator.get_state()), digest_size=32).digest()


def _question(torch: Any, name: str, tensor: Any, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
    """What is asked for; None where it is too little, or where more than numbers in memory would come of it."""
    try:
        if _is_observed(torch) or not _is_plain(torch, tensor):
            return None
        plain = dict(named)
        generator = plain.pop("generator", None) or torch.default_generator
        values = [*arguments, *plain.values()]
        if not all(type(value) in (int, float) for value in values) or generator.device.type != "cpu":
            return None
        # Vector instructions take the generator's numbers in another order than one by one.
        drawing = (torch.__version__, torch.backends.cpu.get_cpu_capability(), name, tensor.dtype, tensor.numel())
        return _Question(generator, drawing, arguments, sorted(plain.items()))
    except Exception as error:  # noqa: BLE001 - it is drawn then, as without us
        note_failure("draws", error)
        return None


def _is_observed(torch: Any) -> bool:
    """Whether calls are seen or changed on their way: by modes of the program's, or by transforms of functions."""
    of_torch = torch._C  # noqa: SLF001 - there are no public names
    return bool(
        of_torch._is_torch_function_mode_enabled()  # noqa: SLF001
        or of_torch._len_torch_dispatch_stack()  # noqa: SLF001
        or of_torch._functorch.peek_interpreter_stack() is not None  # noqa: SLF001
    )


def _is_plain(torch: Any, tensor: Any) -> bool:
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter) or tensor.device.type != "cpu":
        return False
    if tensor.layout is not torch.strided or tensor.numel() < _FEWEST or not tensor.is_contiguous():
        return False
    return not (tensor.requires_grad and torch.is_grad_enabled())  # which is an error of the program's


def _is_answered(torch: Any, drawn: Drawn, question: _Question, tensor: Any) -> bool:
    """Fill the tensor with what was drawn before, where that can be had."""
    try:
        found = drawn.find(question.key)
        if found is None:
            return False
        drawn.copy(found, _memory_of(tensor))
        torch.autograd.graph.increment_version(tensor)
        question.generator.set_state(torch.frombuffer(bytearray(found.state), dtype=torch.uint8))
    except Exception as error:  # noqa: BLE001 - it is drawn then, as without us
        note_failure("draws", error)
        return False
    return True


def _keep(drawn: Drawn, question: _Question, tensor: Any) -> None:
    drawn.keep(question.key, _memory_of(tensor), _bytes_of(question.generator.get_state()))


def _bytes_of(tensor: Any) -> bytes:
    return bytes(_memory_of(tensor))


def _memory_of(tensor: Any) -> Any:
    """The tensor's own bytes; NumPy, which would give them too, is not always there."""
    import ctypes  # noqa: PLC0415 - as above

    return (ctypes.c_char * (tensor.numel() * tensor.element_size())).from_address(tensor.data_ptr())
