"""The causes of a situation in the order in which they should be looked at."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from oomdoctor.diagnosis.causes import activity, elsewhere, numbers, time
from oomdoctor.results import Cause, CauseId, Confidence
from oomdoctor.units import format_size

if TYPE_CHECKING:
    from collections.abc import Callable

    from oomdoctor.diagnosis.situation import Situation

RULES: Final[tuple[Callable[[Situation], Cause | None], ...]] = (
    elsewhere.size_limit,
    elsewhere.kv_cache_no_room,
    elsewhere.shm,
    numbers.single_huge_allocation,
    numbers.memory_fraction_cap,
    numbers.other_process,
    numbers.unexplained_refusal,
    time.leak_across_steps,
    activity.missing_no_grad,
    activity.optimizer_state,
    activity.checkpoint_load,
    activity.batch_named_in_code,
    numbers.fragmentation,
    activity.model_too_large,
    activity.batch_too_large,
    numbers.fragmentation_beside_free,
    numbers.unseen_process,
    numbers.large_allocation,
    elsewhere.host_oom,
    elsewhere.not_oom,
)
"""In order of precedence among causes of one confidence: what a number proves before what a line of code suggests."""

_ORDER: Final = tuple(Confidence)


def judge(situation: Situation) -> tuple[Cause, ...]:
    """Every cause that the evidence fits, most certain first; `unknown` where there is none."""
    if situation.event is None and not situation.is_oom:  # a snapshot of a program that went on
        return tuple(filter(None, [time.leak_across_steps(situation)]))
    found = [cause for rule in RULES if (cause := rule(situation)) is not None]
    if not found or ([cause.id for cause in found] == [CauseId.HOST_OOM] and situation.on_gpu):
        found.append(_unknown(situation))
    return tuple(sorted(found, key=lambda cause: _ORDER.index(cause.confidence)))


def _unknown(situation: Situation) -> Cause:
    asked = situation.facts.tried_bytes
    if situation.is_oom and asked is not None:
        text = f"{format_size(asked)} were asked for and refused; nothing else in the message tells why"
    elif situation.is_oom:
        text = "Memory ran out, and the message has no numbers and no traceback that would tell why"
    else:
        text = "Nothing in it tells of an error that is known"
    return Cause(CauseId.UNKNOWN, Confidence.CERTAIN, text)
