"""Optuna: each trial sized for the card of its worker before it starts, and pruned where it cannot fit.

    @prune_on_oom
    def objective(trial):
        width = trial.suggest_categorical("width", [512, 4096])
        plan = size(trial, "model.py:build_model(width={width})", target_batch=512, gpu="t4")
        return train(width, plan)

The probes run in another process, on a null GPU: a trial's own process neither needs a GPU for them nor loses memory.
"""

from __future__ import annotations

from functools import wraps
from typing import TYPE_CHECKING, TypeVar

from oomdoctor.errors import UsageError
from oomdoctor.integrations import need, sizing
from oomdoctor.integrations.recovery import DiagnosedError, run_or_diagnose

need("optuna", "optuna")

import optuna  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Unpack

    from optuna.trial import BaseTrial

    from oomdoctor.integrations.sizing import SizeOptions
    from oomdoctor.results import Accumulation

__all__ = ["prune_on_oom", "size"]

ResultT = TypeVar("ResultT")


def size(
    trial: BaseTrial,
    target: str | Sequence[str],
    *,
    target_batch: int,
    gpu: str | None = None,
    **options: Unpack[SizeOptions],
) -> Accumulation:
    """Return the plan of a trial's parameters, found on a null GPU in another process.

    Call it after the parameters were suggested, and before the model is built. Models that were sized before are not
    asked about again, so that a sweep over learning rates costs one probe. The trial keeps, as user attributes,
    `oomdoctor/fits`, `oomdoctor/micro_batch`, `oomdoctor/steps`, `oomdoctor/effective_batch`, `oomdoctor/gpu`, and
    `oomdoctor/why` where nothing fits.

    Args:
        trial: The trial.
        target: As of `oomdoctor.probe`, with `{name}` for a parameter: `model.py:build_model(width={width})`.
        target_batch: Samples per optimizer step over all devices.
        gpu: Card to ask about, which may be `{name}` as well; None for the first that this process sees.
        options: Options of `oomdoctor.probe`.

    Raises:
        TrialPruned: Not one sample fits the card.
        UsageError: It is no trial, a placeholder has no value, or the question contradicts itself.
        TargetError: The user's file is at fault.
        NoAnswerError: There is no card to ask about, a crash, or a time limit.
    """
    if not isinstance(trial, optuna.trial.BaseTrial):
        raise UsageError(
            f"`{trial!r:.80}` is no trial of Optuna's", hint="pass what the objective gets: `size(trial, ...)`"
        )
    found = sizing.size(target, trial.params, target_batch=target_batch, gpu=gpu, **options)
    _keep(trial, {**found.figures(), "oomdoctor/gpu": found.document.result.device.name})
    if found.plan is None:
        _keep(trial, {"oomdoctor/why": found.why})
        raise optuna.TrialPruned(found.why)
    return found.plan


def prune_on_oom(objective: Callable[[optuna.Trial], ResultT]) -> Callable[[optuna.Trial], ResultT]:
    """Return an objective whose trials are pruned where they run out of the GPU's memory, which is given back.

    The trial keeps why, as the user attributes `oomdoctor/why`, `oomdoctor/cause` and `oomdoctor/remedy`. Every other
    error goes on as it is; one that is raised from an OOM, or while one is handled, counts as that OOM.

    Args:
        objective: The objective.
    """

    @wraps(objective)
    def guarded(trial: optuna.Trial) -> ResultT:
        found = run_or_diagnose(objective, trial)
        if isinstance(found, DiagnosedError):
            _keep(trial, {"oomdoctor/fits": False, **found.notes()})
            raise optuna.TrialPruned(found.error)
        return found

    return guarded


def _keep(trial: BaseTrial, values: Mapping[str, object]) -> None:
    for name, value in values.items():
        trial.set_user_attr(name, value)
