"""Whose fault a failure is: the target's, or a null GPU's, which cannot do all that a GPU does. Runs in the worker."""

from __future__ import annotations

from oomdoctor.devices.null_gpu.control import is_null_gpu, unknown_calls
from oomdoctor.errors import NoAnswerError, OomdoctorError

_REAL_GPU = "probe this target on a machine with a CUDA GPU"


def blame(error: OomdoctorError, *, zeros_read: int) -> OomdoctorError:
    """The error as it is, or the one that says what the null GPU could not do.

    Args:
        error: What the target's code seems to have done wrong.
        zeros_read: Times that the code read data back from the GPU before.
    """
    if not is_null_gpu():
        return error
    details = "\n\n".join(filter(None, (error.message, error.details)))
    if calls := unknown_calls():
        served = ", ".join(f"`{name}`" for name in calls)
        return NoAnswerError(f"the null GPU does not serve {served}", details=details, hint=_REAL_GPU)
    if zeros_read:
        return NoAnswerError(
            "the target read data back from the GPU and then failed; from a null GPU come zeros, whatever was computed",
            details=details,
            hint=f"{_REAL_GPU}, or take decisions on what was computed (`.item()`, `.any()`, masks) out of the step",
        )
    return error
