"""The OOM classifier on what really arrives: wrapped, grouped, hidden or broken errors, and some that torch raises."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oomdoctor.agent.oom_errors import table, walk_chain
from oomdoctor.oom.classifier import NO_EVIDENCE, Classification, Evidence, classify, classify_recorded
from oomdoctor.results import Outcome
from oomdoctor.units import GIB, MIB

if TYPE_CHECKING:
    from collections.abc import Callable

    from oomdoctor.agent.oom_errors import Row

AMPLE = Evidence(free_bytes=20 * GIB, capacity_bytes=24 * GIB)
FULL = Evidence(free_bytes=100 * MIB, capacity_bytes=24 * GIB)
SWALLOWED = Evidence(free_bytes=20 * GIB, capacity_bytes=24 * GIB, allocator_ooms=1)

ALLOCATOR_TEXT = "CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity of 23.64 GiB"
RUNTIME_ROWS = [row for row in table().rows if "RuntimeError" in row.types]


def chain(depth: int, root: BaseException, link: Callable[[BaseException, BaseException], None]) -> BaseException:
    """Wrap an error in plain ones, the given number of times."""
    error = root
    for index in range(depth):
        outer = ValueError(f"wrapper {index}")
        link(outer, error)
        error = outer
    return error


def by_cause(outer: BaseException, inner: BaseException) -> None:
    """Link as `raise outer from inner` does."""
    outer.__cause__ = inner


def by_context(outer: BaseException, inner: BaseException) -> None:
    """Link as raising in an `except` block does."""
    outer.__context__ = inner


@pytest.mark.parametrize("link", [by_cause, by_context])
@given(depth=st.integers(0, 50), row=st.sampled_from(RUNTIME_ROWS))
def test_wrapping_an_error_keeps_the_verdict(
    link: Callable[[BaseException, BaseException], None], depth: int, row: Row
) -> None:
    """However deep the cause lies, the outcome and the row are those of the bare error."""
    error = RuntimeError(row.example)
    bare, wrapped = classify(error, AMPLE), classify(chain(depth, error, link), AMPLE)
    assert (wrapped.outcome, wrapped.row, wrapped.reason) == (bare.outcome, bare.row, bare.reason)


def test_a_very_long_chain_is_walked_to_its_end() -> None:
    """No recursion limit is met."""
    assert classify(chain(20_000, RuntimeError(ALLOCATOR_TEXT), by_context)).outcome is Outcome.OOM


def test_a_cycle_of_causes_ends() -> None:
    """Each error of a chain is looked at once, though the chain bites its own tail."""
    first, second = ValueError("first"), ValueError("second")
    first.__cause__, second.__cause__ = second, first
    assert list(walk_chain(first)) == [first, second]
    assert classify(first).outcome is Outcome.FAILED


def raised(function: Callable[[], object]) -> BaseException:
    """The error that a function raises."""
    with pytest.raises(BaseException) as caught:  # noqa: PT011 - whatever it is
        function()
    return caught.value


def run_out() -> None:
    """Run out of memory, as PyTorch says it."""
    raise RuntimeError(ALLOCATOR_TEXT)


def wrap_from_none() -> None:
    """Hide an OOM, as `from None` asks."""
    try:
        run_out()
    except RuntimeError:
        raise ValueError("bad configuration") from None


def fail_while_handling() -> None:
    """Meet a bug in the handler of an OOM."""
    try:
        run_out()
    except RuntimeError:
        int("a bug")


def exit_on_oom() -> None:
    """Leave the program on an OOM, as scripts do."""
    try:
        run_out()
    except RuntimeError:
        sys.exit(1)


def test_from_none_is_respected_unless_the_allocator_counted() -> None:
    """A cause that was hidden on purpose is not looked at; the allocator's own count is."""
    error = raised(wrap_from_none)
    assert classify(error, AMPLE).outcome is Outcome.FAILED
    assert classify(error, SWALLOWED).outcome is Outcome.OOM


def test_a_bug_in_the_handler_and_an_exit_on_oom_are_ooms() -> None:
    """The size ran out of memory, whatever the code made of it."""
    assert classify(raised(fail_while_handling)).outcome is Outcome.OOM
    assert classify(raised(exit_on_oom)).outcome is Outcome.OOM


def test_an_interrupt_is_no_oom_even_while_one_is_handled() -> None:
    """Ctrl-C ends a trial without an answer."""
    interrupt = KeyboardInterrupt()
    interrupt.__context__ = RuntimeError(ALLOCATOR_TEXT)
    assert classify(interrupt, SWALLOWED).outcome is Outcome.FAILED


def test_a_member_of_an_exception_group_counts() -> None:
    """A group is searched through, nested groups and their causes included."""
    cause = RuntimeError("wrapped")
    cause.__cause__ = RuntimeError(ALLOCATOR_TEXT)
    group = BaseExceptionGroup("ranks", [ValueError("rank 0"), ExceptionGroup("node", [cause])])
    assert classify(group).outcome is Outcome.OOM
    assert classify(BaseExceptionGroup("ranks", [ValueError("rank 0")])).outcome is Outcome.FAILED


@pytest.mark.parametrize(
    ("outer", "inner", "row_id"),
    [
        ("CUDA error: device-side assert triggered", ALLOCATOR_TEXT, "cuda-allocator"),
        (ALLOCATOR_TEXT, "CUDA error: device-side assert triggered", "cuda-allocator"),
        ("more than INT_MAX elements", ALLOCATOR_TEXT, "cuda-allocator"),
        ("device-side assert triggered", "more than INT_MAX elements", "int-max"),
        ("CUDNN_STATUS_NOT_SUPPORTED", "device-side assert triggered", "device-assert"),
        ("nothing known", "CUDNN_STATUS_NOT_SUPPORTED", "cudnn-not-supported"),
    ],
)
def test_the_most_telling_error_of_a_chain_decides(outer: str, inner: str, row_id: str) -> None:
    """An OOM counts before a limit, that before a certain bug, that before an open text."""
    error = RuntimeError(outer)
    error.__cause__ = RuntimeError(inner)
    verdict = classify(error, AMPLE)
    assert verdict.row is not None
    assert verdict.row.id == row_id


class UnprintableError(RuntimeError):
    """An error that cannot be printed."""

    def __str__(self) -> str:
        raise ZeroDivisionError


def test_an_error_that_cannot_be_printed_is_judged_by_its_type() -> None:
    """A user's broken `__str__` neither escapes nor counts."""
    assert classify(UnprintableError(), FULL).outcome is Outcome.FAILED
    error = UnprintableError()
    error.__cause__ = RuntimeError(ALLOCATOR_TEXT)
    assert classify(error).outcome is Outcome.OOM


def test_a_huge_text_is_searched_at_both_ends() -> None:
    """Megabytes of text cost little, and its two ends still count."""
    padding = "x" * 5_000_000
    for text in (f"{ALLOCATOR_TEXT}{padding}", f"{padding}\n{ALLOCATOR_TEXT}"):
        assert classify(RuntimeError(text)).outcome is Outcome.OOM


evidences = st.builds(
    Evidence,
    free_bytes=st.none() | st.integers(0, 200 * GIB),
    capacity_bytes=st.none() | st.integers(0, 200 * GIB),
    allocator_ooms=st.integers(0, 3),
)
fragments = st.sampled_from([row.example for row in table().rows]) | st.text(max_size=30)


@given(
    texts=st.lists(st.lists(fragments, max_size=3).map(" ".join), min_size=1, max_size=5),
    types=st.sampled_from([RuntimeError, ValueError, MemoryError, OSError, SystemExit, KeyboardInterrupt]),
    evidence=evidences,
)
def test_any_chain_gets_a_verdict(texts: list[str], types: type[BaseException], evidence: Evidence) -> None:
    """Nothing makes the classifier raise, and every verdict has a reason that fits its row."""
    error = types(texts[0])
    for text in texts[1:]:
        outer = types(text)
        outer.__context__ = error
        error = outer
    verdict = classify(error, evidence)
    assert isinstance(verdict, Classification)
    assert verdict.outcome is not Outcome.FITS
    assert verdict.reason
    assert verdict.row is None or verdict.reason.startswith(verdict.row.reason)


def _recorded(text: str, *classes: str, evidence: Evidence = NO_EVIDENCE) -> Outcome:
    return classify_recorded([(classes or ("RuntimeError",), text)], evidence).outcome


def test_a_recorded_error_is_judged_like_the_error() -> None:
    """What a dead process wrote counts as an OOM by its text, unless it is of a class that raises none."""
    traceback = f"Traceback (most recent call last):\n  File 'train.py'\ntorch.OutOfMemoryError: {ALLOCATOR_TEXT}"
    assert _recorded(traceback) is Outcome.OOM
    assert _recorded(ALLOCATOR_TEXT, "torch.OutOfMemoryError", "RuntimeError") is Outcome.OOM
    assert _recorded("no block", "torch.OutOfMemoryError", "RuntimeError") is Outcome.OOM
    assert _recorded("CUDA error: out of memory", "torch.AcceleratorError", "RuntimeError") is Outcome.OOM
    assert _recorded(ALLOCATOR_TEXT, "ValueError") is Outcome.FAILED
    assert _recorded("CUDNN_STATUS_NOT_SUPPORTED", evidence=FULL) is Outcome.OOM
    assert _recorded("") is Outcome.FAILED


def test_the_classifier_does_not_import_torch() -> None:
    """The parent process classifies as well, and never pays for torch."""
    code = "import sys, oomdoctor.oom.classifier; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


class TestRealErrors:
    """Errors that this torch really raises, without a GPU."""

    torch: Any

    @pytest.fixture(autouse=True)
    def _import_torch(self) -> None:
        self.torch = pytest.importorskip("torch")

    def test_a_real_host_allocation_that_fails_is_not_the_gpus(self) -> None:
        """A petabyte on the host fails as host memory, under any evidence."""
        error = raised(lambda: self.torch.empty(2**50, dtype=self.torch.uint8))
        verdict = classify(error, SWALLOWED)
        assert verdict.outcome is Outcome.FAILED
        assert "host" in verdict.reason

    def test_a_real_shape_mismatch_is_a_failure(self) -> None:
        """The most common bug is not hidden by a full card."""
        error = raised(lambda: self.torch.ones(2, 3) @ self.torch.ones(4, 5))
        assert classify(error, FULL) == Classification(
            Outcome.FAILED, None, "`RuntimeError` is no error that a lack of memory is known to cause"
        )

    def test_a_real_size_overflow_is_a_limit(self) -> None:
        """More bytes than 64 bits count is a limit, not memory."""
        assert classify(raised(lambda: self.torch.empty(2**62, 8))).outcome is Outcome.LIMIT

    def test_the_real_oom_type_is_known_by_name(self) -> None:
        """The name that this torch gives its type is the one in the table."""
        verdict = classify(self.torch.OutOfMemoryError("no block"))
        assert verdict.row is not None
        assert verdict.row.id == "torch-type"

    def test_the_real_accelerator_error_is_read_by_its_text(self) -> None:
        """A failed CUDA call has a type of its own in new versions; its text decides."""
        accelerator_error = getattr(self.torch, "AcceleratorError", RuntimeError)
        assert classify(accelerator_error("CUDA error: out of memory")).outcome is Outcome.OOM
        assert classify(accelerator_error("CUDA error: device-side assert triggered"), FULL).outcome is Outcome.FAILED

    def test_a_real_numpy_allocation_that_fails_is_the_hosts(self) -> None:
        """Numpy's error is a MemoryError and has nothing to do with a GPU."""
        numpy = pytest.importorskip("numpy")
        verdict = classify(raised(lambda: numpy.empty(2**50, dtype=numpy.uint8)), FULL)
        assert verdict.outcome is Outcome.FAILED
        assert "host" in verdict.reason

    def test_a_real_triton_error_is_about_the_kernel(self) -> None:
        """Too much shared memory for one kernel is no lack of device memory."""
        errors = pytest.importorskip("triton.runtime.errors")
        assert classify(errors.OutOfResources(589824, 101376, "shared memory"), FULL).outcome is Outcome.FAILED
