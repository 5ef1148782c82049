"""The peak by module: the largest ones, and the rest as one."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from memory_documents import MIB, many_modules, step_memory

from oomdoctor.report.probe.sentences import module_rows
from oomdoctor.results import Category, ModuleBytes

modules = st.lists(
    st.builds(
        ModuleBytes,
        st.none() | st.integers(0, 40).map(str),
        st.sampled_from(Category),
        st.integers(0, 2**40),
        st.integers(0, 9),
    ),
    max_size=60,
)


def test_a_row_a_module_largest_first() -> None:
    """The categories of a module are one row, in the order of the stack."""
    found = module_rows(step_memory().modules)
    assert [row.module for row in found][:3] == ["transformer.h.*.mlp", "transformer.h.*.attn", "lm_head"]
    assert found[0].parts == (
        (Category.WEIGHTS, 217 * MIB),
        (Category.GRADIENTS, 217 * MIB),
        (Category.OPTIMIZER_STATE, 434 * MIB),
        (Category.ACTIVATIONS, 9216 * MIB),
    )
    assert found[0].total_bytes == 10_084 * MIB


def test_ten_thousand_modules_are_thirteen_rows() -> None:
    """The twelve largest modules have a row each, and the rest is one."""
    found = module_rows(many_modules(10_000).modules)
    assert [row.others for row in found] == [0] * 12 + [9988]
    assert found[0].module is not None
    assert found[0].module.startswith("branch9999.")


@given(modules)
def test_rows_sum_to_the_whole(found: list[ModuleBytes]) -> None:
    """No byte and no block is lost, and the rows are in order."""
    made = module_rows(found)
    assert sum(row.total_bytes for row in made) == sum(part.allocated_bytes for part in found)
    assert sum(row.blocks for row in made) == sum(part.blocks for part in found)
    assert all(row.total_bytes == sum(size for _, size in row.parts) for row in made)
    sizes = [row.total_bytes for row in made if not row.others]
    assert sizes == sorted(sizes, reverse=True)
    assert sum(row.others or 1 for row in made) == len({part.module for part in found})
