"""The catalogue: every entry is sound, and people find a card by what they call it."""

from __future__ import annotations

import re
import tomllib
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from oomdoctor.engines import catalogue
from oomdoctor.engines.catalogue import all_cards, find_card, generic_card
from oomdoctor.errors import UsageError
from oomdoctor.units import GIB, MIB

if TYPE_CHECKING:
    from oomdoctor.engines.catalogue import Card

CARDS = {card.key: card for card in all_cards()}
ENTRIES: dict[str, dict[str, Any]] = {
    entry["key"]: entry
    for entry in tomllib.loads(Path(catalogue.__file__).with_name("gpus.toml").read_text(encoding="utf-8"))["card"]
}
OPTIONAL_FIELDS = {"context_bytes", "context_source"}
FIELDS = {
    "key",
    "name",
    "memory_gb",
    "total_bytes",
    "total_source",
    "compute_capability",
    "sm_count",
    "l2_bytes",
    *OPTIONAL_FIELDS,
}


def test_keys_are_unique_and_there_are_many() -> None:
    """Each entry of the file is one card of the catalogue."""
    assert len(CARDS) == len(ENTRIES) == len(all_cards())
    assert len(CARDS) >= 60


@pytest.mark.parametrize("key", ENTRIES)
def test_an_entry_has_the_known_fields_and_no_other(key: str) -> None:
    """A misspelt field would be passed over in silence."""
    assert FIELDS - OPTIONAL_FIELDS <= ENTRIES[key].keys() <= FIELDS
    assert len(OPTIONAL_FIELDS & ENTRIES[key].keys()) in {0, 2}


@pytest.mark.parametrize("card", CARDS.values(), ids=list(CARDS))
def test_a_total_is_below_the_memory_that_is_sold(card: Card) -> None:
    """The driver and ECC keep a part of it, less than a tenth."""
    sold_bytes = ENTRIES[card.key]["memory_gb"] * GIB
    assert 0.9 * sold_bytes < card.total_bytes < sold_bytes


@pytest.mark.parametrize("card", CARDS.values(), ids=list(CARDS))
def test_an_entry_is_within_what_hardware_has(card: Card) -> None:
    """No number is off by a unit or a digit."""
    assert (5, 0) <= card.compute_capability <= (12, 1)
    assert 4 <= card.sm_count <= 200
    assert card.max_threads_per_sm in {1024, 1536, 2048}
    assert 48 * 1024 <= card.shared_memory_per_block_bytes <= 227 * 1024
    assert MIB <= card.l2_bytes <= 130 * MIB
    assert 50 * MIB < card.context_bytes < 1024 * MIB
    assert card.capacity_bytes == card.total_bytes - card.context_bytes


@pytest.mark.parametrize("card", CARDS.values(), ids=list(CARDS))
def test_an_entry_says_where_its_figures_were_had_from(card: Card) -> None:
    """Sources fit into a sentence of the report."""
    for source in (card.total_source, card.context_source):
        assert source.strip() == source
        assert 10 <= len(source) <= 160
        assert not source.endswith(".")


@pytest.mark.parametrize("card", CARDS.values(), ids=list(CARDS))
def test_a_card_is_found_by_its_key_in_any_spelling(card: Card) -> None:
    """Case, hyphens and spaces do not matter."""
    assert find_card(card.key) is card
    assert find_card(card.key.upper().replace("-", " ")) is card
    assert find_card(card.key.replace("-", "")) is card


@pytest.mark.parametrize("card", CARDS.values(), ids=list(CARDS))
def test_a_card_is_found_by_the_name_that_pytorch_prints(card: Card) -> None:
    """A name that several cards share is refused, and all of them are offered."""
    sharing = [other for other in all_cards() if other.name == card.name]
    if len(sharing) == 1:
        assert find_card(card.name) is card
    else:
        with pytest.raises(UsageError) as refusal:
            find_card(card.name)
        assert all(f"`{other.key}`" in str(refusal.value.hint) for other in sharing)


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("RTX 4090", "rtx-4090"),
        ("rtx4090", "rtx-4090"),
        ("4090", "rtx-4090"),
        ("NVIDIA GeForce RTX 4090", "rtx-4090"),
        ("GeForce RTX 2080 Ti", "rtx-2080-ti"),
        ("rtx 4090 24 GB", "rtx-4090"),
        ("rtx 3080 12GB", "rtx-3080-12gb"),
        ("RTX 3080 10G", "rtx-3080-10gb"),
        ("3060ti", "rtx-3060-ti"),
        ("rtx 3060", "rtx-3060-12gb"),
        ("a6000", "rtx-a6000"),
        ("A10", "a10"),
        ("Tesla T4", "t4"),
        ("h100 sxm", "h100-sxm-80gb"),
        ("A100-SXM4-80GB", "a100-sxm4-80gb"),
        ("dgx spark", "gb10-dgx-spark"),
    ],
)
def test_a_card_is_found_by_what_people_call_it(name: str, key: str) -> None:
    """A full name, a short one, with the maker or without."""
    assert find_card(name).key == key


@pytest.mark.parametrize(
    ("name", "keys"),
    [
        ("a100", ["a100-pcie-40gb", "a100-sxm4-40gb", "a100-pcie-80gb", "a100-sxm4-80gb"]),
        ("A100 80GB", ["a100-pcie-80gb", "a100-sxm4-80gb"]),
        ("H100 80GB", ["h100-pcie", "h100-sxm-80gb"]),
        ("rtx-3080", ["rtx-3080-10gb", "rtx-3080-12gb"]),
        ("rtx 6000", ["quadro-rtx-6000", "rtx-6000-ada"]),
    ],
)
def test_an_ambiguous_name_is_refused_with_all_it_may_mean(name: str, keys: list[str]) -> None:
    """No card is guessed, since the guess would be off by gigabytes."""
    with pytest.raises(UsageError, match="may be any of") as refusal:
        find_card(name)
    assert all(f"`{key}`" in str(refusal.value.hint) for key in keys)


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("rtx 4095", "`rtx-4090`"),
        ("h300", "`h200`"),
        ("t5", "`t4`"),
        ("gtx 1080 it", "`gtx-1080-ti`"),
        ("rtx4090ti", "mean `rtx-4090`"),
    ],
)
def test_an_unknown_name_is_refused_with_the_nearest(name: str, nearest: str) -> None:
    """A slip of the finger is put right by the hint."""
    with pytest.raises(UsageError, match=f"no GPU called `{name}` is known") as refusal:
        find_card(name)
    assert nearest in str(refusal.value.hint)
    assert "`oomdoctor gpus --known`" in str(refusal.value.hint)


@pytest.mark.parametrize("name", ["", "   ", "x", "nvidia", "xyzzy", "rtx 4090 48gb", "/" * 10_000])
def test_what_resembles_nothing_is_refused_without_a_guess(name: str) -> None:
    """The hint still says where the list is, and the message stays short."""
    with pytest.raises(UsageError) as refusal:
        find_card(name)
    assert "`oomdoctor gpus --known`" in str(refusal.value.hint)
    assert len(refusal.value.message) < 100


@given(st.text(alphabet=st.characters(codec="utf-8"), max_size=60))
def test_any_text_is_a_card_or_a_usage_error(name: str) -> None:
    """Nothing that can be typed makes the search fail otherwise."""
    try:
        assert find_card(name) in all_cards()
    except UsageError as error:
        assert error.hint  # noqa: PT017 - one of two good outcomes


@given(st.sampled_from(sorted(CARDS)), st.data())
def test_part_of_a_key_leads_only_to_cards_that_have_it(key: str, data: st.DataObject) -> None:
    """Whether one card is found or several are offered, each has every word that was typed."""
    words = data.draw(st.lists(st.sampled_from(key.split("-")), min_size=1, unique=True))
    assume(len("".join(words)) > 1)  # the x of a titan x is refused
    try:
        found = [find_card(" ".join(words)).key]
    except UsageError as error:
        found = re.findall(r"`([a-z0-9-]+)` \(", str(error.hint))
    assert found
    for other in found:
        spelling = f"{other} {CARDS[other].name} {ENTRIES[other]['memory_gb']}gb".lower()
        assert all(word in spelling for word in words)


def test_a_generic_card_has_exactly_the_capacity_that_was_asked_for() -> None:
    """`--capacity 24GiB` means what PyTorch may take."""
    card = generic_card(24 * GIB)
    assert card.capacity_bytes == 24 * GIB
    assert card.compute_capability == (8, 0)


def test_cards_of_one_name_differ_in_memory() -> None:
    """Otherwise nobody could tell which to choose."""
    shared = [name for name, count in Counter(card.name for card in all_cards()).items() if count > 1]
    assert shared
    for name in shared:
        memories = [ENTRIES[card.key]["memory_gb"] for card in all_cards() if card.name == name]
        assert len(set(memories)) == len(memories)
