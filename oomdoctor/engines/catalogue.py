"""GPU models: the catalogue `gpus.toml`, the card of an environment, and published peaks of speed from `peaks.toml`."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from oomdoctor.codec import decode, encode
from oomdoctor.errors import UsageError
from oomdoctor.units import format_size

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class Card:
    """One GPU model.

    Attributes:
        key: Name on the command line, such as `rtx-4090`.
        name: Name as `torch.cuda.get_device_name` prints it.
        total_bytes: `torch.cuda.get_device_properties(...).total_memory` on Linux.
        total_source: Source of `total_bytes`.
        compute_capability: (major, minor); decides attention kernels and the cuBLAS workspace.
        sm_count: Streaming multiprocessors.
        max_threads_per_sm: Resident threads of a multiprocessor.
        shared_memory_per_block_bytes: Opt-in maximum of shared memory of a block.
        l2_bytes: Size of the L2 cache.
        context_bytes: Bytes of a process outside PyTorch's allocator: the CUDA context, loaded kernels, handles.
        context_source: Source of `context_bytes`.
        reserve_bytes: Bytes that others hold, as the user says.
    """

    key: str
    name: str
    total_bytes: int
    total_source: str
    compute_capability: tuple[int, int]
    sm_count: int
    max_threads_per_sm: int
    shared_memory_per_block_bytes: int
    l2_bytes: int
    context_bytes: int
    context_source: str
    reserve_bytes: int = 0

    @property
    def capacity_bytes(self) -> int:
        """Bytes that PyTorch may take: the total less the context's and what others hold."""
        return self.total_bytes - self.context_bytes - self.reserve_bytes

    def with_loading(self, environ: Mapping[str, str]) -> Card:
        """Return the card with the context of a process that loads its kernels as the environment says."""
        if environ.get("CUDA_MODULE_LOADING", "").upper() != "EAGER":
            return self
        more_bytes, source = _eager_loading()
        return replace(
            self,
            context_bytes=self.context_bytes + more_bytes,
            context_source=f"{self.context_source}; and {format_size(more_bytes)} for {source}",
        )

    def with_reserve(self, reserve_bytes: int) -> Card:
        """Return the card with so many bytes that others hold.

        Raises:
            UsageError: They leave nothing.
        """
        check_reserve(reserve_bytes, self.capacity_bytes)
        return replace(self, reserve_bytes=reserve_bytes)


def check_reserve(reserve_bytes: int, capacity_bytes: int | None) -> None:
    """See that others leave something of a capacity.

    Raises:
        UsageError: They hold all of it.
    """
    if reserve_bytes and capacity_bytes is not None and reserve_bytes >= capacity_bytes:
        raise UsageError(
            f"`--reserve` leaves nothing: others hold {format_size(reserve_bytes)}, and PyTorch could take "
            f"{format_size(capacity_bytes)}",
            hint="say what others hold on this one GPU, for example `--reserve 1GiB`",
        )


# Words that distinguish no two cards, so that a name may have them or not.
_NOISE: Final = frozenset({"nvidia", "geforce", "tesla", "gpu", "graphics", "generation", "edition"})
_MEMORY_WORD: Final = re.compile(r"(\d)\s*-?\s*g(?:i?b)?\b")
# By path: `importlib.resources` takes as long to import as the file to read.
_FILE: Final = Path(__file__).with_name("gpus.toml")
_MOST_CANDIDATES: Final = 8
_LISTED: Final = "`oomdoctor gpus --known` lists all"
_NAMELESS: Final = "; `--memory 24GiB` needs no name"


@dataclass(frozen=True, slots=True)
class _Entry:
    """A card and the names by which it is found."""

    card: Card
    spellings: frozenset[str]  # the key and the name, words joined
    phrases: tuple[tuple[str, ...], ...]  # the key and the name as words
    words: frozenset[str]  # all words of both, and the memory as sold, such as `24gb`


def all_cards() -> tuple[Card, ...]:
    """Return every card of the catalogue, by generation, then by size."""
    return tuple(entry.card for entry in _entries())


def find_card(name: str, *, has_memory: bool = True) -> Card:
    """Return the card that a person means by `name`.

    Case, spaces, hyphens and the words NVIDIA, GeForce and Tesla do not count: `RTX 4090`, `rtx4090`, `4090` and
    `NVIDIA GeForce RTX 4090` are one card. A part of a name suffices where only one card has it.

    Args:
        name: The name.
        has_memory: Whether `--memory` can be given instead, for the hint.

    Raises:
        UsageError: No card is called that (the hint has the nearest names), or several are (the hint has them).
    """
    words = _words(name)
    found = _matches(words)
    if len(found) == 1:
        return found[0].card
    elsewhere = _LISTED + (_NAMELESS if has_memory else "")
    raise _ambiguous(name, found, elsewhere) if found else _unknown(name, words, elsewhere)


def generic_card(capacity_bytes: int) -> Card:
    """Return a card of no model, of which PyTorch may take exactly `capacity_bytes`.

    It has the compute capability and the limits of an A100, since most kernels and most servers are of that
    generation or newer.
    """
    return Card(
        key="generic",
        name="generic GPU",
        total_bytes=capacity_bytes,
        total_source="given",
        compute_capability=(8, 0),
        sm_count=108,
        max_threads_per_sm=2048,
        shared_memory_per_block_bytes=166_912,
        l2_bytes=41_943_040,
        context_bytes=0,
        context_source="none: the memory given is what PyTorch may take",
    )


@cache
def _eager_loading() -> tuple[int, str]:
    found = _document()["eager_loading"]
    return found["bytes"], found["source"]


def _document() -> dict[str, Any]:
    import tomllib  # noqa: PLC0415 - workers have a card, and no catalogue

    return tomllib.loads(_FILE.read_text(encoding="utf-8"))


@cache
def _entries() -> tuple[_Entry, ...]:
    document = _document()
    return tuple(_read_entry(row, document) for row in document["card"])


def _read_entry(row: dict[str, Any], document: dict[str, Any]) -> _Entry:
    phrases = (tuple(_words(row["key"])), tuple(_words(row["name"])))
    architecture = document["architecture"][row["compute_capability"]]
    estimate = document["context_estimate"]
    resident_threads = row["sm_count"] * architecture["max_threads_per_sm"]
    estimated_bytes = estimate["base_bytes"] + estimate["bytes_per_resident_thread"] * resident_threads
    major, minor = row["compute_capability"].split(".")
    return _Entry(
        card=Card(
            key=row["key"],
            name=row["name"],
            total_bytes=row["total_bytes"],
            total_source=row["total_source"],
            compute_capability=(int(major), int(minor)),
            sm_count=row["sm_count"],
            l2_bytes=row["l2_bytes"],
            context_bytes=row.get("context_bytes", estimated_bytes),
            context_source=row.get("context_source", estimate["source"]),
            **architecture,
        ),
        spellings=frozenset("".join(phrase) for phrase in phrases),
        phrases=phrases,
        words=frozenset({*phrases[0], *phrases[1], f"{row['memory_gb']}gb"}),
    )


def _words(text: str) -> list[str]:
    """Split a name: `RTX 3080 12 GB` is rtx, 3080, 12gb."""
    joined = _MEMORY_WORD.sub(r"\1gb", text.lower())
    return [word for word in re.findall(r"[a-z0-9]+", joined) if word not in _NOISE]


_SHORTEST: Final = 2
"""Characters of a name; a single letter is a forgotten placeholder, and not the X of TITAN X."""


def _matches(words: list[str]) -> list[_Entry]:
    """Return the cards of exactly this name; failing that, the cards whose name has all of it."""
    spelling = "".join(words)
    if len(spelling) < _SHORTEST:
        return []
    exact = [entry for entry in _entries() if spelling in entry.spellings]
    return exact or [
        entry
        for entry in _entries()
        if entry.words.issuperset(words)
        or any(
            "".join(phrase[start:end]) == spelling
            for phrase in entry.phrases
            for start in range(len(phrase))
            for end in range(start + 1, len(phrase) + 1)
        )
    ]


def _ambiguous(name: str, found: list[_Entry], elsewhere: str) -> UsageError:
    listed = [f"`{entry.card.key}` ({format_size(entry.card.total_bytes)})" for entry in found[:_MOST_CANDIDATES]]
    rest = len(found) - len(listed)
    hint = f"name one of {', '.join(listed)}" + (f" and {rest} more; {elsewhere}" if rest else "")
    return UsageError(f"`{_shortened(name)}` may be any of {len(found)} GPUs", hint=hint)


def _unknown(name: str, words: list[str], elsewhere: str) -> UsageError:
    nearest = ", ".join(f"`{key}`" for key in _nearest_keys("".join(words)))
    hint = f"did you mean {nearest}? {elsewhere}" if nearest else elsewhere
    return UsageError(f"no GPU called `{_shortened(name)}` is known", hint=hint)


def _nearest_keys(spelling: str) -> list[str]:
    """Return the keys of up to three cards whose key or name resembles `spelling`; first those of the same number."""
    from difflib import get_close_matches  # noqa: PLC0415 - only a wrong name needs it

    keys = {alias: entry.card.key for entry in reversed(_entries()) for alias in _aliases(entry)}
    close = get_close_matches(spelling[:100], list(keys), n=6, cutoff=0.65 if len(spelling) > 2 else 0.5)  # noqa: PLR2004 - one letter of two
    number = re.search(r"\d{3,}", spelling)
    close.sort(key=lambda alias: number is None or number[0] not in alias)
    return list(dict.fromkeys(keys[alias] for alias in close))[:3]


def _aliases(entry: _Entry) -> set[str]:
    """Return the spellings, and each without its first or its last word, as people shorten them."""
    return {
        "".join(part) for phrase in entry.phrases for part in (phrase, phrase[1:], phrase[:-1]) if part
    } | entry.spellings


def _shortened(name: str) -> str:
    return name if len(name) <= 40 else f"{name[:37]}..."  # noqa: PLR2004 - one line of a terminal


_CARD_VARIABLE: Final = "OOMDOCTOR_EMULATED_CARD"


def emulated_environment(card: Card, base: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a worker that emulates `card`; no real GPU is visible in it."""
    return {**base, _CARD_VARIABLE: json.dumps(encode(card)), "CUDA_VISIBLE_DEVICES": ""}


def emulated_card(environ: Mapping[str, str]) -> Card | None:
    """Return the card that a process emulates; None where it uses the GPU that it has."""
    text = environ.get(_CARD_VARIABLE)
    return None if text is None else decode(Card, json.loads(text), "card")


_PEAKS: Final = Path(__file__).with_name("peaks.toml")


@dataclass(frozen=True, slots=True)
class Peaks:
    """A card's highest rates, as its maker publishes them.

    Attributes:
        flops: Floating-point operations a second, by the type of the numbers; without structured sparsity.
        bytes_per_second: Bytes a second between the card and its memory.
        source: Where they were had from.
    """

    flops: dict[str, float]
    bytes_per_second: float
    source: str


def peaks_of(name: str) -> Peaks | None:
    """Return the peaks of a card by the name that `torch.cuda.get_device_name` prints; None where none are known."""
    import tomllib  # noqa: PLC0415 - only where a roofline is asked for

    found = tomllib.loads(_PEAKS.read_text(encoding="utf-8"))["peaks"].get(name)
    if found is None:
        return None
    flops = {kind: found[kind] * 1e12 for kind in ("float32", "float16", "bfloat16") if kind in found}
    return Peaks(flops, found["gb_per_second"] * 1e9, found["source"])
