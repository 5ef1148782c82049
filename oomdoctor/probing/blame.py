"""Whose fault a failure is: the target's, or a null GPU's, which cannot do all that a GPU does. Runs in the worker."""

from __future__ import annotations

from oomdoctor.errors import NoAnswerError, OomdoctorError
from oomdoctor.probing.stand_in import kind, unknown_calls

_REAL_GPU = "probe this target on a machine with a CUDA GPU"
_STAND_IN = {"null": "a null GPU", "trace": "an emulated one"}


def blame(error: OomdoctorError, *, zeros_read: int) -> OomdoctorError:
    """The error as it is, or the one that says what the null GPU could not do.

    Args:
        error: What the target's code seems to have done wrong.
        zeros_read: Times that the code read data back from the GPU before.
    """
    if kind() == "cuda" or (kind() == "trace" and isinstance(error, NoAnswerError)):
        return error
    details = "\n\n".join(filter(None, (error.message, error.details)))
    if calls := unknown_calls():
        served = ", ".join(f"`{name}`" for name in calls)
        return NoAnswerError(f"the null GPU does not serve {served}", details=details, hint=_REAL_GPU)
    if zeros_read and not isinstance(error, NoAnswerError):
        return NoAnswerError(
            f"the target read data back from the GPU and then failed; from {_STAND_IN[kind()]} come zeros, whatever "
            "was computed",
            details=details,
            hint=f"{_REAL_GPU}, or take decisions on what was computed (`.item()`, `.any()`, masks) out of the step",
        )
    return error
