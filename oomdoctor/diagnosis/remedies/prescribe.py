"""The remedies of a situation, best first, without those that it shows to be pointless."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from oomdoctor.diagnosis.remedies import device, elsewhere, model, step
from oomdoctor.results import CauseId, Confidence

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from oomdoctor.diagnosis.situation import Situation
    from oomdoctor.results import Cause, Remedy

RULES: Final[dict[CauseId, tuple[Callable[[Situation], Remedy | None], ...]]] = {
    **device.RULES,
    **step.RULES,
    **model.RULES,
    **elsewhere.RULES,
}
"""Remedies by cause; those of the most certain cause come first."""

_MOST: Final = 8
_TRUE_ANYWHERE: Final = frozenset({"smaller_micro_batch", "check_shapes", "lighter_weights"})
_WRITTEN_FOR_TORCH: Final = _TRUE_ANYWHERE | {
    *("activation_checkpointing", "bf16_autocast", "chunked_loss", "fused_attention", "drop_graph", "no_grad"),
    *("expandable_segments", "max_split_size", "spread_model", "smaller_model", "lighter_optimizer", "no_foreach"),
    *("shard_optimizer", "load_on_host", "move_outputs", "raise_cap"),
}
_ORDER: Final = tuple(Confidence)


def prescribe(situation: Situation, causes: Sequence[Cause]) -> tuple[Remedy, ...]:
    """What to change, at most 8.

    What is for a more certain cause comes first; among those for equally certain ones, what is known to free enough for
    the request that failed, then what is not known, then what is known to free too little. Where a cause is certain,
    what would only help with causes that are merely possible is left out.
    """
    if causes and causes[0].confidence is Confidence.CERTAIN and causes[0].id is not CauseId.UNKNOWN:
        causes = [cause for cause in causes if cause.confidence is not Confidence.POSSIBLE]
    found: dict[str, tuple[int, int, Remedy]] = {}
    for cause in causes:
        for remedy in filter(None, (_in_its_words(rule(situation), situation) for rule in RULES.get(cause.id, ()))):
            found.setdefault(remedy.id, (_ORDER.index(cause.confidence), _shortfall(remedy, situation), remedy))
    if situation.on_gpu and (watermark := device.mps_watermark(situation)) is not None:
        found[watermark.id] = (len(_ORDER), 0, watermark)
    ordered = sorted(found.values(), key=lambda entry: entry[:2])
    return tuple(remedy for _, _, remedy in ordered)[:_MOST]


def _in_its_words(remedy: Remedy | None, situation: Situation) -> Remedy | None:
    """Another framework than PyTorch is not told what to write in PyTorch."""
    if remedy is None or situation.is_torch or remedy.id not in _WRITTEN_FOR_TORCH:
        return remedy
    return replace(remedy, how=None) if remedy.id in _TRUE_ANYWHERE else None


def _shortfall(remedy: Remedy, situation: Situation) -> int:
    """0 where it is known to free enough, 1 where nobody knows, 2 where it is known not to."""
    tried, free = situation.facts.tried_bytes, situation.facts.free_bytes or 0
    if remedy.frees_bytes is None or tried is None:
        return 1
    return 0 if remedy.frees_bytes + free >= tried else 2
