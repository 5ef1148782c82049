"""The search over sets of remedies, on tables of maxima instead of probes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from oomdoctor.prescription.search import Found, search, with_front
from oomdoctor.remedies.catalogue import BY_ID, REMEDIES, cost, exactness, remedy
from oomdoctor.results.prescribe import MeasuredRemedies

Names = tuple[str, ...]
BLOCKS = 12


class Table:
    """Maxima by set of remedies, as GPT-2 has them; a set that it does not have gains nothing over its best part."""

    def __init__(self, maxima: dict[frozenset[str], int], target: int = 256) -> None:
        self.maxima = maxima
        self.target = target
        self.asked: list[Names] = []

    def row(self, names: Names) -> MeasuredRemedies:
        """The row of a set."""
        parts = [value for known, value in self.maxima.items() if known <= {*map(self._known, names)}]
        first = [int(name.rpartition("-")[2]) for name in names if name.startswith("checkpoint-first-")]
        maximum = max(parts)
        if first:  # a line from none of the blocks to all of them
            rest = self.row(tuple(name for name in names if not name.startswith("checkpoint-first-"))).maximum
            maximum = rest + (maximum - rest) * first[0] // BLOCKS
        maximum = min(maximum, self.target)
        found = MeasuredRemedies(names, "", exactness(names), "measured", maximum, maximum)
        return replace(found, limited_by="target" if maximum == self.target else "memory")

    @staticmethod
    def _known(name: str) -> str:
        return "checkpoint" if name.startswith("checkpoint-first-") else name

    def measure(self, sets: Sequence[Names]) -> list[MeasuredRemedies]:
        """Answer, and remember what was asked."""
        self.asked += sets
        return [self.row(names) for names in sets]

    def search(self, **options: Any) -> Found:
        """Search over the table."""
        asked: dict[str, Any] = {"need": None, "keep": "rounding", "blocks": lambda _: BLOCKS, **options}
        return search(self.measure, self.row(()), **asked)


def counted(*names: str, flops: float | None, touched: float | None, maximum: int = 20) -> MeasuredRemedies:
    """A row whose step computes and touches so many percent more."""
    row = MeasuredRemedies(names, "", exactness(names), "measured", maximum, maximum)
    return replace(row, recomputed_flops_percent=flops, extra_bytes_percent=touched)


def test_the_front_is_of_maximum_against_counted_cost() -> None:
    """Rank decides among equals only, and what is not known is dearer than any number."""
    rows = [
        counted(flops=0.0, touched=0.0, maximum=16),
        counted("checkpoint", flops=17.3, touched=16.4),
        counted("checkpoint-keep-attention", flops=13.0, touched=14.3),
        counted("checkpoint-every-2", flops=None, touched=None),
        counted("fused-cross-entropy", flops=0.0, touched=210.6, maximum=35),
    ]
    front = [row.remedies for row in with_front(rows) if row.on_front]
    assert front == [(), ("checkpoint-keep-attention",), ("fused-cross-entropy",)]


def test_fewer_blocks_are_tried_where_another_way_to_checkpoint_is_the_cheaper_one() -> None:
    """What keeps attention costs 13 %, and all blocks 17 %: five of twelve blocks are enough, and cost 7 %."""
    table = gpt2()
    table.maxima[frozenset({"checkpoint-keep-attention"})] = 25
    plain = table.row

    def row(names: Names) -> MeasuredRemedies:
        parts = {"checkpoint": 17.0, "checkpoint-keep-attention": 13.0, "checkpoint-every-2": 14.0}
        blocks = [17.0 * int(name.rpartition("-")[2]) / BLOCKS for name in names if "-first-" in name]
        percent = sum(blocks) + sum(parts.get(name, 0.0) for name in names)
        return replace(plain(names), recomputed_flops_percent=percent, extra_bytes_percent=percent)

    table.row = row  # type: ignore[method-assign]
    found = table.search(need=20)
    assert found.chosen is not None
    assert found.chosen.remedies == ("checkpoint-first-5",)


def gpt2() -> Table:
    """What GPT-2 has on an RTX 4090."""
    maxima = {
        (): 16,
        ("checkpoint",): 27,
        ("checkpoint-every-2",): 21,
        ("fused-cross-entropy",): 35,
        ("fused-cross-entropy", "checkpoint"): 214,
        ("bf16-weights",): 34,
        ("bf16-weights", "fused-cross-entropy"): 100,
        ("bf16-weights", "fused-cross-entropy", "checkpoint"): 256,
        ("expandable-segments",): 18,
        ("offload-activations",): 28,
        ("offload-activations", "fused-cross-entropy"): 256,
        ("freeze-half",): 21,
    }
    return Table({frozenset(names): value for names, value in maxima.items()})


def test_the_best_is_taken_and_all_others_are_measured_on_top() -> None:
    """Remedies that gain 19 and 11 alone gain 198 together."""
    found = gpt2().search()
    assert found.chosen is not None
    assert (set(found.chosen.remedies), found.chosen.maximum) == ({"fused-cross-entropy", "checkpoint"}, 214)
    assert {row.remedies[0] for row in found.alone} == {one.id for one in REMEDIES if not one.on_request}


def test_combinations_keep_what_is_asked_for() -> None:
    """With the same numbers only checkpointing is left; with anything, bf16 weights come in."""
    same, anything = gpt2().search(keep="same").chosen, gpt2().search(keep="any").chosen
    assert same is not None
    assert same.remedies == ("checkpoint",)
    assert anything is not None
    assert anything.maximum == 256
    assert {"bf16-weights", "checkpoint"} < {*anything.remedies}


def test_the_fewest_blocks_that_are_enough_are_checkpointed() -> None:
    """20 samples need 5 of 12 blocks; the row before was measured, and is not enough."""
    table = gpt2()
    chosen = table.search(need=20).chosen
    assert chosen is not None
    assert chosen.remedies == ("checkpoint-first-5",)
    assert table.row(("checkpoint-first-4",)).maximum < 20 <= chosen.maximum
    assert ("checkpoint-first-4",) in table.asked


def test_without_a_need_all_blocks_are_checkpointed() -> None:
    """As much as possible takes every block, and no probe is spent on fewer."""
    table = gpt2()
    table.search()
    assert not any(name.startswith("checkpoint-first-") for names in table.asked for name in names)


def test_a_larger_maximum_with_a_smaller_recommended_size_is_no_gain() -> None:
    """What lets a few samples more run at the edge, and fewer with headroom, is not prescribed."""

    class AtTheEdge(Table):
        """A table in which an allocator's setting costs headroom."""

        def row(self, names: Names) -> MeasuredRemedies:
            """The row, with a recommended size of its own."""
            found = super().row(names)
            return replace(found, recommended=10) if "expandable-segments" in names else found

    table = AtTheEdge({frozenset(): 16, frozenset({"checkpoint"}): 17, frozenset({"expandable-segments"}): 18})
    chosen, needed = table.search().chosen, table.search(need=18).chosen
    assert chosen is not None
    assert chosen.remedies == ("checkpoint",)
    assert needed is not None
    assert needed.remedies == ("expandable-segments",)


def test_what_is_not_needed_is_left_out() -> None:
    """For 30 the loss alone is enough; for 100 checkpointing is needed beside."""
    first, both = gpt2().search(need=30).chosen, gpt2().search(need=100).chosen
    assert first is not None
    assert first.remedies == ("fused-cross-entropy",)
    assert both is not None
    assert both.maximum >= 100
    assert both.remedies[0] == "fused-cross-entropy"
    assert both.remedies[1].startswith("checkpoint-first-")


@pytest.mark.parametrize(("option", "name"), [("without", "fused-cross-entropy"), ("without", "checkpoint")])
def test_what_is_left_out_is_not_measured(option: str, name: str) -> None:
    """Neither alone nor in a combination."""
    table = gpt2()
    found = table.search(**{option: (name,)})
    assert found.chosen is not None
    assert not any(name in names for names in table.asked)


def test_what_costs_out_of_proportion_is_combined_on_request_only() -> None:
    """Offloading is measured alone; frozen blocks are not even that."""
    found, asked = gpt2().search(), gpt2().search(beside=("offload-activations", "freeze-half"), keep="any")
    assert any(row.remedies == ("offload-activations",) for row in found.alone)
    assert not any("offload-activations" in row.remedies for row in found.combined)
    assert not any("freeze-half" in row.remedies for row in found.alone)
    assert any("offload-activations" in row.remedies for row in asked.combined)
    assert any(row.remedies == ("freeze-half",) for row in asked.alone)


def test_remedies_of_one_kind_are_never_combined() -> None:
    """Two ways to checkpoint, or two optimizers, exclude each other."""
    table = gpt2()
    table.search(keep="any")
    for names in table.asked:
        kinds = [remedy(name).kind for name in names]
        assert len(kinds) == len({*kinds})


def test_nothing_is_prescribed_where_nothing_gains() -> None:
    """A table of equal maxima ends after each was measured alone."""
    table = Table({frozenset(): 16})
    found = table.search()
    assert (found.chosen, found.combined) == (None, ())


def test_a_target_that_fits_as_it_is_needs_nothing() -> None:
    """Neither where the target is reached nor where what is needed is."""
    for table, need in ((Table({frozenset(): 256}), None), (gpt2(), 16)):
        found = table.search(need=need)
        assert (found.chosen, found.combined) == (None, ())


def test_the_front_is_what_nothing_cheaper_reaches() -> None:
    """Of two that reach as much the cheaper one is on it; a row that was not measured never is."""
    rows = [gpt2().row(names) for names in ((), ("checkpoint",), ("bf16-weights",), ("expandable-segments",))]
    rows.append(replace(rows[1], remedies=("fp16",), outcome="raises"))
    rows.append(replace(gpt2().row(("checkpoint-every-2",)), maximum=27))
    front = [row.remedies for row in with_front(rows) if row.on_front]
    assert front == [(), ("bf16-weights",), ("expandable-segments",), ("checkpoint-every-2",)]


def test_cost_counts_exactness_first() -> None:
    """However many remedies keep the numbers, they are cheaper than one that does not."""
    same = [one.id for one in REMEDIES if one.exactness == "same"]
    assert cost(same) < cost(("optimizer-fused",)) < cost(("bf16",))
    assert all(one.sources and one.cost for one in BY_ID.values())
