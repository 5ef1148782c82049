"""What cuDNN's dropout keeps for the process: a state for each thread that a card has at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from oomdoctor.tracing.taking import Call, Temporaries, Workspace

if TYPE_CHECKING:
    from collections.abc import Callable

    from oomdoctor.devices.card import Card

_BYTES_A_THREAD: Final = 16
"""As the null GPU has it."""
_NAME: Final = "cudnn_dropout_state"


class _Making:
    """Stands for the operator that makes it, which is none of PyTorch's."""

    def name(self) -> str:
        """As an operator's."""
        return _NAME


_MAKING: Final[Any] = _Making()


def making_dropout_state(card: Card) -> Call:
    """The call that makes it."""
    return Call(card, _MAKING, (), {}, [])


def dropout_state_bytes(card: Card) -> int:
    """Its size."""
    return card.sm_count * card.max_threads_per_sm * _BYTES_A_THREAD


def _state(call: Call) -> Temporaries:
    return Temporaries(after=(Workspace(_NAME, dropout_state_bytes(call.card)),))


MODELS: Final[dict[str, Callable[[Call], Temporaries]]] = {_NAME: _state}
