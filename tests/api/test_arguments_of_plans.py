"""A plan takes whole numbers, and says of anything else which argument it was."""

from __future__ import annotations

import numpy as np
import pytest

from oomdoctor import plan_accumulation
from oomdoctor.errors import UsageError


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ((2.5, 1), r"`target_batch` is `2\.5`, which is no whole number"),
        (("4", 2), "`target_batch` is `'4'`"),
        ((4, None), "`maximum` is `None`"),
        ((4, 2.0), r"`maximum` is `2\.0`"),
        ((4, 2, 1.0), r"`world_size` is `1\.0`"),
        ((True, 1), "`target_batch` is `True`"),
    ],
)
def test_what_is_no_whole_number_is_refused(arguments: tuple[int, int], problem: str) -> None:
    """Floats, text, None and truth values are usage errors, and none is taken for a number of samples."""
    with pytest.raises(UsageError, match=problem) as refusal:
        plan_accumulation(*arguments)
    assert refusal.value.hint


def test_numbers_of_numpy_make_the_same_plan() -> None:
    """NumPy's integers are whole numbers, and leave none of their own in the plan."""
    plan = plan_accumulation(np.int64(256), np.int32(100), np.int64(2))  # type: ignore[arg-type]
    assert plan == plan_accumulation(256, 100, 2)
    assert {type(plan.target_batch), type(plan.world_size), *map(type, plan.micro_batches)} == {int}
