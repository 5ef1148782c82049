"""What a name is used as that nobody here has seen being made: by the methods called on it, and by its name."""

from __future__ import annotations

import re
from functools import lru_cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from oomdoctor.lint.flow import known
from oomdoctor.lint.flow.values import Kind

if TYPE_CHECKING:
    from collections.abc import Mapping

_METHODS: Final = (
    "eval|train|parameters|named_parameters|zero_grad|step|backward|no_sync|state_dict|load_state_dict|accumulate|"
    "unscale_|is_gradient_accumulation_boundary|sync_gradients|manual_backward|prepare|scale|update"
)
# Methods are looked for first, since they are rare, and what they are called on is read backwards from there.
_CALL: Final = re.compile(rf"\.({_METHODS})\b")
_OWNER: Final = re.compile(r"[A-Za-z_][\w.]*(?:\[\w+\])?\Z")
_LONGEST_OWNER: Final = 80

_MODEL_USES: Final = frozenset({"eval", "train", "parameters", "named_parameters", "no_sync"})
_NAMED: Final[tuple[tuple[re.Pattern[str], Kind], ...]] = (
    (known.IS_SCHEDULER_NAME, Kind.SCHEDULER),
    (known.IS_SCALER_NAME, Kind.SCALER),
    (known.IS_ACCELERATOR_NAME, Kind.ACCELERATOR),
    (known.IS_FABRIC_NAME, Kind.FABRIC),
    (known.IS_ENGINE_NAME, Kind.ENGINE),
    (known.IS_OPTIMIZER_NAME, Kind.OPTIMIZER),
    (known.IS_LOADER_NAME, Kind.LOADER),
    (known.IS_CRITERION_NAME, Kind.LOSS_FUNCTION),
    (known.IS_MODEL_NAME, Kind.MODEL),
)
_NEEDED: Final[Mapping[Kind, frozenset[str]]] = MappingProxyType(
    {
        # A name such as `scaler` is also a scikit-learn's, `engine` a game's: what is called on it has to fit.
        Kind.SCALER: frozenset({"scale", "unscale_", "update"}),
        Kind.ENGINE: frozenset({"backward", "is_gradient_accumulation_boundary"}),
        Kind.ACCELERATOR: frozenset({"backward", "accumulate", "prepare", "sync_gradients"}),
        Kind.FABRIC: frozenset({"backward"}),
        Kind.SCHEDULER: frozenset({"step"}),
    }
)


def usage(text: str) -> dict[str, frozenset[str]]:
    """Which telling methods a file calls on which dotted texts, such as `self.model`: `{"eval", "parameters"}`."""
    found: dict[str, set[str]] = {}
    for match in _CALL.finditer(text):
        owner = _OWNER.search(text, max(0, match.start() - _LONGEST_OWNER), match.start())
        if owner is not None:
            found.setdefault(owner[0], set()).add(match[1])
    return {name: frozenset(methods) for name, methods in found.items()}


@lru_cache(maxsize=4096)
def guess(text: str, uses: frozenset[str]) -> Kind:
    """What something of this text is; UNKNOWN where neither its name nor its uses tell.

    Args:
        text: Such as `self.model`.
        uses: Telling methods that the file calls on it.
    """
    for pattern, kind in _NAMED:
        if pattern.search(text):
            needed = _NEEDED.get(kind)
            if needed is None or needed & uses:
                return kind
    if "zero_grad" in uses and "step" in uses and not uses & {"eval", "train"}:
        return Kind.OPTIMIZER
    if "backward" in uses and uses & {"step", "zero_grad"}:
        return Kind.ENGINE
    if {"eval", "train"} <= uses or ("parameters" in uses and uses & {"eval", "train"}):
        return Kind.UNKNOWN if known.IS_TRAINER_NAME.search(text) else Kind.MODEL
    if uses & _MODEL_USES and uses & {"parameters", "named_parameters", "no_sync", "load_state_dict"}:
        return Kind.MODEL
    return Kind.UNKNOWN
