"""The environment that tells a worker which card to emulate: no library, no compiler, one variable."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from oomdoctor.devices.card import Card
from oomdoctor.serialisation import decode, encode

if TYPE_CHECKING:
    from collections.abc import Mapping

_CARD: Final = "OOMDOCTOR_EMULATED_CARD"


def environment(card: Card, base: Mapping[str, str]) -> dict[str, str]:
    """The environment for a worker that shall emulate `card`; what would choose among real GPUs is of no use to it."""
    return {**base, _CARD: json.dumps(encode(card)), "CUDA_VISIBLE_DEVICES": ""}


def card_of(environ: Mapping[str, str]) -> Card | None:
    """The card that a process shall emulate; None where it shall use what there is."""
    text = environ.get(_CARD)
    return None if text is None else decode(Card, json.loads(text), "card")
