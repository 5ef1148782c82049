"""Ray: each trial of a Tune sweep sized for the card of its worker, and completed where it cannot fit.

    def train(config, plan):
        for micro_batch in plan.micro_batches: ...
        tune.report({"loss": loss})

    trainable = sized(
        train, target="model.py:build_model(width={width})", target_batch=512, gpu="t4", infeasible={"loss": 100.0}
    )
    tune.Tuner(trainable, param_space={"width": tune.grid_search([512, 4096])}).fit()

The probes run on a null GPU, in processes of their own at `num_gpus=0`; each configuration is asked about once for each
card in the whole cluster.
"""

from __future__ import annotations

import math
import numbers
from dataclasses import dataclass, field
from functools import wraps
from typing import TYPE_CHECKING, Any, cast

from oomdoctor.errors import UsageError
from oomdoctor.integrations import need, sizing
from oomdoctor.integrations.recovery import DiagnosedError, run_or_diagnose
from oomdoctor.integrations.sizing import Sizing

need("ray", "ray")
need("ray.tune", "ray")

from ray.tune.trainable.function_trainable import wrap_function  # noqa: E402

from oomdoctor.integrations.ray_sizing import ClusterSizer  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Unpack

    from ray.train import ScalingConfig
    from ray.tune import Trainable

    from oomdoctor.integrations.sizing import SizeOptions
    from oomdoctor.results import Accumulation

__all__ = ["size_for", "sized"]

Config = dict[str, Any]


def sized(
    train: Callable[[Config, Accumulation], Any],
    *,
    target: str | Sequence[str],
    target_batch: int,
    infeasible: Mapping[str, float],
    gpu: str | None = None,
    **options: Unpack[SizeOptions],
) -> type[Trainable]:
    """Return a trainable for `ray.tune.Tuner` whose trials are sized before they train.

    Every result of a trial has `oomdoctor/fits`, `oomdoctor/micro_batch`, `oomdoctor/steps` and
    `oomdoctor/effective_batch`. A configuration that does not fit, and one whose training runs out of the GPU's memory,
    end *completed*, with `oomdoctor/fits` false, `oomdoctor/why` and the figures of `infeasible`. A trial of which
    nothing can be said, for the target is at fault or no card was found, ends in ERROR, as every other error does.

    Call it on the driver, after `ray.init`. On several machines, let the target's file travel to them:
    `ray.init(runtime_env={"working_dir": "."})`.

    Args:
        train: Trains a configuration by a plan; reports and returns what a function for Tune does.
        target: As of `oomdoctor.probe`, with `{name}` for a parameter: `model.py:build_model(width={width})`, and
            `{model.width}` for one inside another.
        target_batch: Samples per optimizer step over all devices.
        infeasible: What a trial reports that does not fit, by metric: finite, for infinite ones break searchers.
        gpu: Card to ask about, which may be `{name}` as well; None for the first that the trial's worker sees.
        options: Options of `oomdoctor.probe`.

    Raises:
        UsageError: A figure of `infeasible` is no finite number, or there is none; the target batch is no number of
            samples; an option is none.
    """
    figures = _finite(infeasible)
    sizing.check_options(target_batch, options)
    cluster = ClusterSizer()

    @wraps(train, assigned=("__module__", "__name__", "__qualname__", "__doc__"), updated=())
    def run(config: _SizedTrial) -> Any:  # noqa: ANN401 - what the user returns
        return config.run(train, figures)

    del run.__wrapped__  # whose parameters Ray would read

    def ask(config: Config) -> Sizing:
        return Sizing(cluster.ask(sizing.build_question(target, config, target_batch, gpu, options)))

    class SizedTrainable(wrap_function(run)):  # type: ignore[misc]  # Ray makes the class
        """Trial that is sized before its function begins."""

        def _trainable_func(self, config: Config) -> object:
            self._sized = _SizedTrial(config, ask(config))
            return super()._trainable_func(self._sized)

        def step(self) -> Config:
            """Return the next report, with the figures of the plan."""
            report: Config = super().step()  # which waits for the function's thread
            return {**report, **self._sized.figures}

    SizedTrainable.__name__ = SizedTrainable.__qualname__ = getattr(train, "__name__", "train")
    return cast("type[Trainable]", SizedTrainable)


@dataclass(slots=True)
class _SizedTrial:
    """A configuration, its size, and what its reports have besides the user's."""

    config: Config
    sizing: Sizing
    figures: Config = field(init=False)

    def __post_init__(self) -> None:
        self.figures = {**self.sizing.figures(), "oomdoctor/gpu": self.sizing.document.result.device.name}

    def run(self, train: Callable[[Config, Accumulation], Any], infeasible: Mapping[str, float]) -> object:
        """Return what training returns, or the figures of what does not fit."""
        plan = self.sizing.plan
        if plan is None:
            self.figures["oomdoctor/why"] = self.sizing.why
            return dict(infeasible)
        found = run_or_diagnose(train, self.config, plan)
        if isinstance(found, DiagnosedError):
            self.figures |= {"oomdoctor/fits": False, **found.notes()}
            return dict(infeasible)
        return found


def _finite(figures: Mapping[str, Any]) -> dict[str, float]:
    for name, value in figures.items():
        if not isinstance(value, numbers.Real):
            raise UsageError(
                f"`infeasible` gives `{name}` as {value!r}, which is no number",
                hint="name a number that is worse than any real one",
            )
        if not math.isfinite(value):
            raise UsageError(
                f"`infeasible` gives `{name}` as {value}, which is not finite",
                hint="Bayesian searchers fail on infinite values; name one that is worse than any real one",
            )
    if not figures:
        raise UsageError(
            "`infeasible` names no metric",
            hint='give the sweep\'s metric a value that is worse than any real one: `infeasible={"loss": 100.0}`',
        )
    return dict(figures)


def size_for(
    scaling_config: ScalingConfig,
    target: str | Sequence[str],
    parameters: Mapping[str, object] | None = None,
    *,
    target_batch: int,
    gpu: str | None = None,
    **options: Unpack[SizeOptions],
) -> Accumulation:
    """Return the plan of each worker of a trainer of Ray Train; ask before `fit()`, and hand it to the workers.

        plan = size_for(scaling, "model.py", target_batch=512)
        TorchTrainer(train, train_loop_config={"plan": plan}, scaling_config=scaling).fit()

    The probe runs beside the driver, on a null GPU: no worker is started for it.

    Args:
        scaling_config: The trainer's; its workers share the target batch, and its `accelerator_type` is the card.
        target: As of `oomdoctor.probe`, with `{name}` for a parameter.
        parameters: Values by name, such as the trainer's `train_loop_config`.
        target_batch: Samples per optimizer step over all workers.
        gpu: Card to ask about; None for the `accelerator_type`, else for the first that the driver sees.
        options: Options of `oomdoctor.probe`.

    Raises:
        UsageError: Not one sample fits, the number of workers is not known yet, or the question contradicts itself.
        TargetError: The user's file is at fault.
        NoAnswerError: There is no card to ask about, a crash, or a time limit.
    """
    workers = scaling_config.num_workers
    if not isinstance(workers, int):
        raise UsageError(f"`num_workers` is {workers!r}, not one number", hint="a plan is for one number of workers")
    card = gpu or scaling_config.accelerator_type
    options = {**options, "world_size": workers}
    found = sizing.size(target, parameters or {}, target_batch=target_batch, gpu=card, **options)
    if found.plan is None:
        raise UsageError(str(found.why), hint="`oomdoctor prescribe` measures what makes room")
    return found.plan
