"""Whether the sizes that were filled in are those that the model got."""

from __future__ import annotations

import pytest
from command_messages import batch, device, events, started
from hypothesis import given
from hypothesis import strategies as st

from oomdoctor.command.outcome import BatchSizeCheck
from oomdoctor.errors import OomdoctorError

MIB = 2**20


def _problem(following: BatchSizeCheck, size: int, peak: int, *shapes: list[int]) -> OomdoctorError | None:
    return following.problem_of(size, events([started(), device(), batch(*shapes)]), peak)


@given(
    st.lists(st.integers(1, 512), unique=True, min_size=2, max_size=6),
    st.sampled_from([lambda n: [[n, 3]], lambda n: [[512, n]], lambda n: [[n * 16, 8], [7]], lambda _: []]),
    st.integers(10_000, 10**8),
)
def test_a_command_that_heeds_its_size_has_no_problem(sizes: list[int], shapes_of: object, sample: int) -> None:
    """Batches first or second, flattened or not seen at all: memory that grows shows that the size is heeded."""
    following = BatchSizeCheck()
    assert callable(shapes_of)

    assert [_problem(following, size, 10 * MIB + size * sample, *shapes_of(size)) for size in sizes] == [None] * len(
        sizes
    )


def test_a_size_that_changes_nothing_is_a_problem() -> None:
    """The same batch and the same memory at two sizes: the placeholder stands where nobody reads it."""
    following = BatchSizeCheck()
    assert _problem(following, 8, 100 * MIB, [16, 3]) is None
    problem = _problem(following, 4, 100 * MIB, [16, 3])

    assert problem is not None
    assert problem.message.startswith("the command does not heed `{micro_batch}`: at 4 and at 8")
    assert "configuration file" in (problem.hint or "")


@pytest.mark.parametrize("shapes", [(), ([512, 1],)])
@pytest.mark.parametrize(
    ("fixed", "sample", "sizes"), [(0, MIB, (4, 3782, 3784)), (2048 * MIB, 10_000, (4, 190)), (0, 4096, (32768, 32769))]
)
def test_a_sample_that_is_a_small_share_of_memory_counts(
    fixed: int, sample: int, sizes: tuple[int, ...], shapes: tuple[list[int], ...]
) -> None:
    """Two sizes near the edge, or beside large weights, where no batch is seen or it is not the first dimension."""
    following = BatchSizeCheck()

    assert [_problem(following, size, fixed + size * sample, *shapes) for size in sizes] == [None] * len(sizes)


def test_what_differs_from_run_to_run_is_no_sign_of_heeding() -> None:
    """Some kilobytes more at a size that nobody reads are still the same memory."""
    following = BatchSizeCheck()
    _problem(following, 4, 100 * MIB, [16, 3])

    assert _problem(following, 190, 100 * MIB + 8192, [16, 3]) is not None


def test_the_same_size_twice_is_no_problem() -> None:
    """A size that is run again, as a forked trial or with less memory, takes the same memory and must."""
    following = BatchSizeCheck()

    assert [_problem(following, 8, 100 * MIB, [8, 3]) for _ in range(2)] == [None, None]


@pytest.mark.parametrize(("peak", "shape"), [(100 * MIB, [8, 3]), (200 * MIB, [16, 3])])
def test_either_sign_of_heeding_is_enough(peak: int, shape: list[int]) -> None:
    """Another batch with the same memory, or the same batch with other memory, is no proof of an ignored size."""
    following = BatchSizeCheck()
    _problem(following, 4, 100 * MIB, [16, 3])

    assert _problem(following, 8, peak, shape) is None


def _ran_out(following: BatchSizeCheck, size: int, peak: int, *shapes: list[int]) -> OomdoctorError | None:
    return following.problem_out_of_memory(size, events([started(), device(), batch(*shapes)]), peak)


def test_a_size_that_runs_out_with_the_same_batch_as_another_is_ignored() -> None:
    """A fixed batch that is too large runs out at every size, which is no answer about any."""
    following = BatchSizeCheck()
    assert _ran_out(following, 4, 7000 * MIB, [6000, 64]) is None
    problem = _ran_out(following, 1, 7000 * MIB, [6000, 64])

    assert problem is not None
    assert problem.message.startswith("the command does not heed `{micro_batch}`: at 1 and at 4")


@pytest.mark.parametrize(
    ("peak", "shapes"),
    [(7000 * MIB, ()), (7000 * MIB, ([128, 1],)), (6000 * MIB, ([128, 4],))],
    ids=["no batch yet", "batch second", "other memory"],
)
def test_running_out_at_two_sizes_is_no_sign_by_itself(peak: int, shapes: tuple[list[int], ...]) -> None:
    """Weights that do not fit run out before any batch, and a batch may have its samples in another dimension."""
    following = BatchSizeCheck()
    _ran_out(following, 4, 7000 * MIB, *([[128, 4]] if shapes else []))

    assert _ran_out(following, 1, peak, *shapes) is None


def test_fewer_samples_than_asked_for_is_a_problem() -> None:
    """A batch that was cut to the data's size says so, with how many samples there were."""
    following = BatchSizeCheck()
    assert _problem(following, 64, 64 * MIB, [64, 3]) is None
    problem = _problem(following, 128, 100 * MIB, [100, 3])

    assert problem is not None
    assert problem.message == "micro-batch 128 was asked for, and a batch of 100 reached the model"
    assert "--target-batch" in (problem.hint or "")


def test_batches_that_never_follow_are_not_cut() -> None:
    """A model that is given no batch first, such as one of single samples, is not taken for short of data."""
    following = BatchSizeCheck()

    assert [_problem(following, size, size * MIB, [1, 3]) for size in (4, 8, 16)] == [None] * 3


def test_only_processes_with_a_gpu_are_looked_at() -> None:
    """What a data loader's process showed a model of its own says nothing."""
    following = BatchSizeCheck()
    first = events([started(), device(), batch([4, 3]), started(2), batch([16, 3], pid=2)])
    second = events([started(), device(), batch([8, 3]), started(2), batch([16, 3], pid=2)])

    assert following.problem_of(4, first, 100 * MIB) is None
    assert following.problem_of(8, second, 100 * MIB) is None
    assert following.shapes == {4: {(4,)}, 8: {(8,)}}
