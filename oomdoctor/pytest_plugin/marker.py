"""`@pytest.mark.gpu_memory("20 GiB", gpu="rtx-4090")`: what one test asks for, read from its markers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from oomdoctor.devices.catalogue import find_card
from oomdoctor.errors import UsageError
from oomdoctor.units import parse_size

if TYPE_CHECKING:
    import pytest

MARKER: Final = "gpu_memory"
_EXAMPLE: Final = '`@pytest.mark.gpu_memory("20 GiB", gpu="rtx-4090")`'


@dataclass(frozen=True, slots=True)
class Wish:
    """What a test's markers say.

    Attributes:
        limit_bytes: Most bytes that may be allocated at one time; None where no marker says.
        card: Key of the card to run on; None where no marker says.
    """

    limit_bytes: int | None = None
    card: str | None = None


def read_markers(item: pytest.Item) -> Wish | None:
    """What a test's markers ask for, the nearest to the test first; None where it has none.

    Raises:
        UsageError: A marker has arguments that it does not take.
    """
    wishes = [_read(mark, item) for mark in item.iter_markers(MARKER)]
    if not wishes:
        return None
    return Wish(
        next((wish.limit_bytes for wish in wishes if wish.limit_bytes is not None), None),
        next((wish.card for wish in wishes if wish.card is not None), None),
    )


def _read(mark: pytest.Mark, item: pytest.Item) -> Wish:
    try:
        given = _arguments(mark)
        return Wish(_limit(given.get("limit")), _card(given.get("gpu")))
    except UsageError as error:
        raise UsageError(f"`{MARKER}` of `{item.nodeid}`: {error.message}", hint=error.hint) from None


def _arguments(mark: pytest.Mark) -> dict[str, object]:
    if len(mark.args) > 1:
        raise UsageError(f"it takes one limit, and not {len(mark.args)}", hint=f"for example {_EXAMPLE}")
    unknown = sorted(mark.kwargs.keys() - {"limit", "gpu"})
    if unknown:
        raise UsageError(f"it takes `limit` and `gpu`, and not `{unknown[0]}`", hint=f"for example {_EXAMPLE}")
    if mark.args and "limit" in mark.kwargs:
        raise UsageError("its limit is given twice", hint=f"for example {_EXAMPLE}")
    return {**mark.kwargs, **({"limit": mark.args[0]} if mark.args else {})}


def _limit(value: object) -> int | None:
    if value is None:
        return None
    if isinstance(value, str):
        return parse_size(value)
    if type(value) is not int or value < 1:
        raise UsageError(
            f"the limit is a size or a positive number of bytes, and not {value!r}", hint=f"for example {_EXAMPLE}"
        )
    return value


def _card(value: object) -> str | None:
    if value is None:
        return None
    if not isinstance(value, str):
        raise UsageError(f"`gpu` is the name of a card, and not {value!r}", hint=f"for example {_EXAMPLE}")
    return find_card(value).key
