"""Running out of memory inside a trial of a sweep: told apart from other errors, diagnosed, and memory given back."""

from __future__ import annotations

import gc
import io
import sys
import traceback
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from oomdoctor.agent.oom_errors import walk_chain
from oomdoctor.diagnose.diagnose import diagnose
from oomdoctor.diagnose.sources import Source
from oomdoctor.oom.classifier import Evidence, classify
from oomdoctor.results import Outcome

if TYPE_CHECKING:
    from collections.abc import Callable

    from oomdoctor.results import DiagnosisResult

ResultT = TypeVar("ResultT")


@dataclass(frozen=True, slots=True)
class DiagnosedError:
    """A function ran out of a GPU's memory.

    Attributes:
        error: The error that says so, in one line.
        diagnosis: What `oomdoctor diagnose` says of its traceback.
    """

    error: str
    diagnosis: DiagnosisResult

    def notes(self) -> dict[str, str]:
        """Return the error, its most likely cause and the first remedy by name, as a trial of a sweep keeps them."""
        cause, remedies = self.diagnosis.causes[0], self.diagnosis.remedies
        first = {"oomdoctor/remedy": remedies[0].change} if remedies else {}
        return {"oomdoctor/why": self.error, "oomdoctor/cause": f"{cause.id}: {cause.evidence}", **first}


def run_or_diagnose(function: Callable[..., ResultT], *args: Any, **kwargs: Any) -> ResultT | DiagnosedError:  # noqa: ANN401
    """Run a function; where it runs out of a GPU's memory, give back what it held and say why.

    Args:
        function: What to run.
        args: Its arguments.
        kwargs: Its keyword arguments.

    Returns:
        What the function returned, or the diagnosis.

    Raises:
        BaseException: Any other error of the function's, as it was.
    """
    try:
        return function(*args, **kwargs)
    except Exception as error:
        if classify(error, _evidence()).outcome is not Outcome.OOM:
            raise
        found = _diagnosed(error)
        for link in walk_chain(error):
            traceback.clear_frames(link.__traceback__)  # frames hold the tensors of the step that failed
            link.__traceback__ = None
    _release()  # after the `except`, whose error held the frames
    return found


def _diagnosed(error: Exception) -> DiagnosedError:
    text = "".join(traceback.format_exception(error))
    # The last of those that mean it is the first that was raised, on top of which others may stand.
    link = [link for link in walk_chain(error) if classify(link).outcome is Outcome.OOM or link is error][-1]
    source = Source("the trial's error", None, io.BytesIO(text.encode("utf-8", "replace")))
    return DiagnosedError(traceback.format_exception_only(link)[-1].strip().splitlines()[0], diagnose([source]))


def _cuda() -> Any:  # noqa: ANN401 - torch is the user's, and may not be there
    """Return `torch.cuda` where this process uses it; else None."""
    torch = sys.modules.get("torch")
    return torch.cuda if torch is not None and torch.cuda.is_initialized() else None


def _evidence() -> Evidence:
    cuda = _cuda()
    if cuda is None:
        return Evidence()
    free_bytes, total_bytes = cuda.mem_get_info()
    return Evidence(free_bytes, total_bytes)


def _release() -> None:
    gc.collect()
    cuda = _cuda()
    if cuda is not None:
        cuda.empty_cache()
