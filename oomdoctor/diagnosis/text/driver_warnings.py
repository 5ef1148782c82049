"""PyTorch's warnings about a failed call to the driver, which have exact bytes where the error has two decimals.

The warning also comes before a retry that succeeds, so that it is no error by itself.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from oomdoctor.diagnosis.text.joining import squeeze

if TYPE_CHECKING:
    from collections.abc import Sequence

    from oomdoctor.diagnosis.evidence import Message
    from oomdoctor.results import Facts

_WARNING: Final = re.compile(
    r"failedwithoomondevice(\d{1,4})whiletryingtoallocate(\d{1,18})bytes(?:\(free:(\d{1,18})(?:bytes)?,?total:(\d{1,18}))?"
)
_MOST_ABOVE: Final = 60  # lines between the warning and the error: a traceback
_HALF_A_PERCENT: Final = 200  # one part in so many; the coarsest that two decimals can be


def exact_numbers(lines: Sequence[str], message: Message) -> Facts:
    """Replace what was printed with two decimals by the exact bytes of the warning above, where they agree."""
    facts = message.facts
    if message.kind != "cuda-allocator" or facts.tried_bytes is None:
        return facts
    above = [
        line for line in lines[max(0, message.first - _MOST_ABOVE) : message.first] if "with OOM on device" in line
    ]
    for match in reversed(list(_WARNING.finditer(squeeze(above, 0, len(above)).text))):
        index, tried, free, total = (None if group is None else int(group) for group in match.groups())
        if facts.gpu_index in {None, index} and _agree(facts.tried_bytes, tried):
            return replace(
                facts,
                tried_bytes=tried,
                free_bytes=free if _agree(facts.free_bytes, free) else facts.free_bytes,
                total_bytes=total if _agree(facts.total_bytes, total) else facts.total_bytes,
            )
    return facts


def _agree(printed: int | None, exact: int | None) -> bool:
    return printed is not None and exact is not None and abs(printed - exact) * _HALF_A_PERCENT <= max(printed, exact)
