"""Judge from gradients whether accumulated micro-batches train what the whole batch would, and how they would.

The gradients of the parts are had once each; every way of weighting them is then a sum. In order: by their samples, not
at all, by something that can be counted in the batch, by a least-squares fit. Equal and unequal micro-batches must
agree, since a loss over tokens looks right on micro-batches that happen to have as many.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, Final, Literal

import torch

from oomdoctor.errors import NoAnswerError, TargetError
from oomdoctor.results.verify import GradientError, VerifyCause, VerifyCauseId, VerifyResult
from oomdoctor.verification.counts import Count, LabelLosses, candidates, list_size
from oomdoctor.verification.coupling import Coupling, find_coupling
from oomdoctor.verification.gradients import AccumulatedStep, distance, fitted_weights, weighted_sum
from oomdoctor.verification.remedies import REMEDIES, normalisation_remedy, weighting_remedy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from oomdoctor.results.verify import VerifyRemedy, VerifyVerdict, Weighting
    from oomdoctor.verification.gradients import Batch, Gradients, Laboratory

TOLERANCES: Final = {"fp64": 1e-6, "fp32": 1e-3}
"""Relative errors up to which gradients count as equal: rounding stays below, and no mistake that was seen does."""
_MOST_CAUSES: Final = 4
_MOST_COUNTS: Final = 200
BATCH_NORM: Final = torch.nn.modules.batchnorm._BatchNorm  # noqa: SLF001 - the class of all of them


@dataclass(frozen=True, slots=True)
class _Partition:
    """The batch in micro-batches.

    Attributes:
        sizes: Samples of each.
        parts: The micro-batches.
        gradients: The gradient of each, from the first state and with weight 1.
    """

    sizes: tuple[int, ...]
    parts: list[Any]
    gradients: list[Gradients]

    @property
    def by_samples(self) -> list[float]:
        total = sum(self.sizes)
        return [size / total for size in self.sizes]


@dataclass(frozen=True, slots=True)
class _Weighted:
    """One way to weight the micro-batches, tried on all partitions."""

    weighting: Weighting
    errors: tuple[GradientError, ...]
    count: Count | None = None

    @property
    def worst(self) -> float:
        return max(error.error for error in self.errors)


class Judge:
    """Judges one target.

    Args:
        laboratory: The model and its step.
        parts: How many equal micro-batches.
        tolerance: Relative error up to which gradients count as equal.
        own_roots: Directories or files of the user's code.
    """

    def __init__(self, laboratory: Laboratory, parts: int, tolerance: float, own_roots: Sequence[Path]) -> None:
        self._laboratory = laboratory
        self._tolerance = tolerance
        self._own_roots = own_roots
        self._sizes = partitions(laboratory.samples, parts)
        self._tried: list[_Weighted] = []
        self._causes: list[VerifyCause] = []
        self._notes: list[str] = []
        self._couplings: list[Coupling] = []
        self._losses = LabelLosses(laboratory.samples)

    def judge(self, target: str, precision: Literal["fp64", "fp32"]) -> VerifyResult:
        """Run the batch and its parts, and judge."""
        laboratory = self._laboratory
        self._see_losses()
        whole = self._whole()
        first, second = self._drawn(seed=0), self._drawn(seed=1)
        _check_gradients(whole, first)
        random_error = distance(second.gradients, first.gradients)
        # Where nothing was replaced, a run with the same seed is the same run again.
        repeated = self._whole() if laboratory.drawn else first
        noise = distance(repeated.gradients, whole.gradients)
        found = [] if noise > self._tolerance else self._partitions()
        best = self._best(found, whole.gradients) if found else None
        weights = self._loop_weights(best)
        accumulated = self._laboratory.run(self._laboratory.parts(self._sizes[0]), weights)
        changed = self._changed_buffers(accumulated, whole)
        if not found:
            self._causes.append(_NOT_REPEATABLE)
        else:
            self._judge_state(accumulated, weighted_sum(found[0].gradients, weights))
            self._judge_buffers(changed)
            self._judge_draws(is_equal=best is not None)
            if best is None and not self._is_drawn:
                best = self._find_couplings()
        verdict = self._verdict(best, random_error, noise)
        return VerifyResult(
            target=target,
            samples=laboratory.samples,
            precision=precision,
            tolerance=self._tolerance,
            verdict=verdict,
            gradient_error=self._tried[0].errors[0].error if self._tried else noise,
            weighted_error=None if best is None else best.worst,
            weights_error=self._weights_error(accumulated, whole),
            errors=tuple(error for tried in self._tried for error in tried.errors),
            random_error=random_error,
            reversed_error=self._reversed_error(whole),
            random_operators=tuple(laboratory.drawn),
            changed_buffers=changed,
            causes=tuple(self._causes),
            remedies=tuple(self._remedies(best, verdict)),
            notes=tuple(self._notes),
        )

    # --- runs --------------------------------------------------------------------------------------------------------

    def _whole(self, *, seed: int = 0) -> AccumulatedStep:
        return self._laboratory.run([self._laboratory.batch], [1.0], seed=seed)

    def _drawn(self, *, seed: int) -> AccumulatedStep:
        """Run the whole batch with random numbers as they are drawn."""
        self._laboratory.expected = False
        try:
            return self._whole(seed=seed)
        finally:
            self._laboratory.expected = True

    def _partitions(self) -> list[_Partition]:
        """Run each micro-batch of equal and unequal ones by itself."""
        return [self._partition(sizes) for sizes in self._sizes]

    def _partition(self, sizes: tuple[int, ...]) -> _Partition:
        parts = self._laboratory.parts(sizes)
        return _Partition(sizes, parts, [self._laboratory.run([part], [1.0]).gradients for part in parts])

    def _loop_weights(self, best: _Weighted | None) -> Sequence[float]:
        """Return the weights of equal micro-batches in a loop: the best, or the usual ones where none helps."""
        steps = len(self._sizes[0])
        return [1 / steps] * steps if best is None else best.errors[0].weights

    def _reversed_error(self, whole: AccumulatedStep) -> float | None:
        if self._laboratory.has_lists:
            return None
        samples = self._laboratory.samples
        order = self._laboratory.parts([1] * samples)[::-1]
        batch = _joined(order)
        if batch is None:
            return None
        return distance(self._laboratory.run([batch], [1.0]).gradients, whole.gradients)

    # --- weights -----------------------------------------------------------------------------------------------------

    def _best(self, found: Sequence[_Partition], whole: Gradients) -> _Weighted | None:
        """Return the first weighting with which all partitions give the whole batch's gradient."""
        self._tried = []
        for tried in self._weightings(found, whole):
            if tried.weighting != "count" or tried.worst <= self._tolerance:
                self._tried.append(tried)
            if tried.worst <= self._tolerance and (tried.weighting != "fitted" or self._holds_elsewhere(tried)):
                return tried
        return None

    def _holds_elsewhere(self, fitted: _Weighted) -> bool:
        """Return whether fitted weights hold for other parameters too; else they follow the loss, as with a root."""
        with self._laboratory.elsewhere():
            whole = self._whole().gradients
            found = self._partitions()
        weights = [error.weights for error in fitted.errors]
        return self._weighted("fitted", found, whole, weights).worst <= self._tolerance

    def _weightings(self, partitions_: Sequence[_Partition], whole: Gradients) -> Iterator[_Weighted]:
        yield self._weighted("mean", partitions_, whole, [partition.by_samples for partition in partitions_])
        yield self._weighted("sum", partitions_, whole, [[1.0] * len(part.sizes) for part in partitions_])
        for count in islice(candidates(self._laboratory.batch, self._losses.class_weights), _MOST_COUNTS):
            weights = [count.weights(partition.parts) for partition in partitions_]
            known = [part for part in weights if part is not None]
            if len(known) == len(weights):
                yield self._weighted("count", partitions_, whole, known, count)
        fitted = [fitted_weights(partition.gradients, whole) for partition in partitions_]
        solved = [weights for weights in fitted if weights is not None]
        if len(solved) == len(fitted):
            yield self._weighted("fitted", partitions_, whole, solved)

    @staticmethod
    def _weighted(
        weighting: Weighting,
        partitions_: Sequence[_Partition],
        whole: Gradients,
        weights: Sequence[Sequence[float]],
        count: Count | None = None,
    ) -> _Weighted:
        errors = [
            GradientError(weighting, part.sizes, tuple(each), distance(weighted_sum(part.gradients, each), whole))
            for part, each in zip(partitions_, weights, strict=True)
        ]
        return _Weighted(weighting, tuple(errors), count)

    # --- causes ------------------------------------------------------------------------------------------------------

    def _judge_state(self, accumulated: AccumulatedStep, apart: Gradients) -> None:
        """See whether a micro-batch leaves something behind for the next one, which `apart` was without."""
        error = distance(accumulated.gradients, apart)
        if error > self._tolerance:
            self._causes.append(
                VerifyCause("state", None, None, f"a micro-batch changes the next one's gradient, by {error:.2g}")
            )

    def _judge_buffers(self, names: Sequence[str]) -> None:
        own = [name for name in names if not self._belongs_to_batch_norm(name)]
        if own:
            shown = ", ".join(f"`{name}`" for name in own[:3])
            evidence = f"{shown} {'is' if len(own) == 1 else 'are'} updated in each micro-batch, not once a step"
            self._causes.append(VerifyCause("buffers", own[0].rpartition(".")[0], None, evidence))

    def _judge_draws(self, *, is_equal: bool) -> None:
        """See whether draws that no expected values replaced may have made the difference, or hidden one."""
        for what in self._laboratory.not_replaced:
            if not is_equal or "mask" in what:
                evidence = f"{what} are not replaced by expected values: the batch and its parts draw other ones"
                self._causes.append(VerifyCause("random_draws", None, None, evidence))

    @property
    def _is_drawn(self) -> bool:
        return any(cause.id == "random_draws" for cause in self._causes)

    def _changed_buffers(self, accumulated: AccumulatedStep, whole: AccumulatedStep) -> tuple[str, ...]:
        return tuple(
            name
            for name, value in accumulated.buffers.items()
            if name in whole.buffers
            and value.shape == whole.buffers[name].shape
            and distance([value], [whole.buffers[name]]) > self._tolerance
        )

    def _belongs_to_batch_norm(self, name: str) -> bool:
        owner = dict(self._laboratory.model.named_modules()).get(name.rpartition(".")[0])
        return isinstance(owner, BATCH_NORM)

    def _find_couplings(self) -> _Weighted | None:
        """Name what mixes samples, module by module: each that is found is switched off before the next is looked for.

        Returns:
            The weighting with which the parts equal the whole once the modules are switched off; None where none does.
        """
        with self._switched_off() as switch_off:
            for _ in range(_MOST_CAUSES):
                coupling = find_coupling(self._laboratory, self._sizes[0], self._own_roots)
                if coupling is None or coupling in self._couplings:
                    break
                self._causes.append(_cause_of(coupling))
                self._couplings.append(coupling)
                if not switch_off(coupling):
                    return None
                tried, best = self._tried, self._best(self._partitions(), self._whole().gradients)
                self._tried = tried
                if best is not None:
                    self._causes[-1] = _confirmed(self._causes[-1])
                    return best
        if not self._causes or all(cause.id == "batch_norm" for cause in self._causes):
            self._causes.append(_LOSS_CAUSE)
        return None

    @contextmanager
    def _switched_off(self) -> Iterator[Callable[[Coupling], bool]]:
        """Give a function that puts the modules of a coupling's class into evaluation mode, until the block is left."""
        modules = dict(self._laboratory.model.named_modules())
        off: list[torch.nn.Module] = []

        def switch_off(coupling: Coupling) -> bool:
            own = modules[coupling.module] if coupling.module else None
            alike = [module for module in modules.values() if own and type(module) is type(own) and module.training]
            if not alike or any(True for _ in alike[0].children()):
                return False
            for module in alike:
                module.train(mode=False)
            off.extend(alike)
            return True

        try:
            yield switch_off
        finally:
            for module in off:
                module.train()

    def _see_losses(self) -> None:
        """See what the losses take a mean over, and say where the batch cannot show what padding would change."""
        self._losses = seen = LabelLosses(self._laboratory.samples)
        self._laboratory.restore()
        self._laboratory.forward(self._laboratory.batch, seen)
        if seen.is_mean_over_labels and not seen.leaves_labels_out:
            self._notes.append(
                "every label of this batch counts, so it cannot tell how padded batches weigh: let `make_batch` pad, "
                "with -100 where a label does not count"
            )

    # --- the verdict -------------------------------------------------------------------------------------------------

    def _verdict(self, best: _Weighted | None, random_error: float, noise: float) -> VerifyVerdict:
        if noise > self._tolerance or self._is_drawn:
            return "cannot_tell"
        if best is None or self._causes:
            return "different"
        if best.weighting != "mean":
            return "equal_if_weighted"
        return "random_only" if random_error > self._tolerance else "equal"

    def _weights_error(self, accumulated: AccumulatedStep, whole: AccumulatedStep) -> float:
        self._laboratory.restore()
        before = [parameter.detach() for parameter in self._laboratory.parameters]
        changes = [
            [after - first for after, first in zip(run.weights, before, strict=True)] for run in (accumulated, whole)
        ]
        return distance(*changes)

    def _remedies(self, best: _Weighted | None, verdict: VerifyVerdict) -> Iterator[VerifyRemedy]:
        for cause in self._causes:
            yield self._called_rightly(self._remedy(cause))
        if best is not None and best.weighting != "mean" and verdict != "cannot_tell":
            code = None if best.count is None else best.count.code
            remedy = weighting_remedy(best.weighting, best.errors[0].weights, code and self._with_own_weights(code))
            yield self._called_rightly(remedy)

    def _remedy(self, cause: VerifyCause) -> VerifyRemedy:
        modules = dict(self._laboratory.model.named_modules())
        if cause.id == "batch_norm" and cause.module in modules:
            return normalisation_remedy(modules[cause.module])
        return REMEDIES[cause.id]

    def _called_rightly(self, remedy: VerifyRemedy) -> VerifyRemedy:
        """Return a remedy whose `accumulate` is told how many samples there are, where a list holds them."""
        size = list_size(self._laboratory.batch, self._laboratory.samples) if self._laboratory.has_lists else None
        told = "accumulate(batch, plan" + ("" if size is None else f", batch_size={size}")
        return replace(remedy, code=remedy.code.replace("accumulate(batch, plan", told))

    def _with_own_weights(self, code: str) -> str:
        """Return a count's code with the weights of classes as the model holds them, where it does."""
        model = self._laboratory.model
        used = {weights.data_ptr() for weights in self._losses.class_weights}
        held = chain(model.named_buffers(), model.named_parameters())
        named = (name for name, tensor in held if tensor.data_ptr() in used)
        name = next((name for name in named if all(map(str.isidentifier, name.split(".")))), None)
        return code if name is None else code.replace("class_weights[", f"model.{name}[")


def _check_gradients(expected: AccumulatedStep, drawn: AccumulatedStep) -> None:
    """See that there are gradients to compare.

    Raises:
        TargetError: They are all zero.
        NoAnswerError: They are zero where random draws have their expected values, as with a generator's noise.
    """
    if any(bool(gradient.any()) for gradient in expected.gradients):
        return
    if any(bool(gradient.any()) for gradient in drawn.gradients):
        raise NoAnswerError(
            "with random draws replaced by their expected values every gradient is zero: there is nothing to compare",
            hint="let `make_batch` draw the numbers, so that each sample brings its own",
        )
    raise TargetError(
        "every gradient of the whole batch is zero: there is nothing to compare",
        hint="see that the loss depends on the parameters that are trained",
    )


def partitions(samples: int, parts: int) -> tuple[tuple[int, ...], ...]:
    """Return sizes of equal micro-batches and of unequal ones; `samples` is at least twice `parts`, and a multiple."""
    equal = (samples // parts,) * parts
    larger = samples // parts + 1
    unequal = [larger] * (samples // larger)
    rest = samples - sum(unequal)
    return equal, (*unequal, rest) if rest else (*unequal[:-1], larger - 1, 1)


def _joined(parts: Sequence[Batch]) -> Batch | None:
    """Join micro-batches into one batch; None where they hold more than tensors that lead with the samples."""
    first = parts[0]
    if isinstance(first, torch.Tensor):
        return torch.cat(list(parts)) if first.dim() else None
    if isinstance(first, dict):
        joined = {key: _joined([part[key] for part in parts]) for key in first}
        return None if any(value is None for value in joined.values()) else joined
    if type(first) in (tuple, list):
        items = [_joined(column) for column in zip(*parts, strict=True)]
        return None if any(item is None for item in items) else type(first)(items)
    return None


def _cause_of(coupling: Coupling) -> VerifyCause:
    kind: VerifyCauseId = "module"
    if coupling.is_pairwise:
        kind = "pairs"
    elif coupling.module is None:
        kind = "loss"
    elif coupling.module == "":
        kind = "model"
    elif "BatchNorm" in (coupling.kind or ""):
        kind = "batch_norm"
    where = f"in `{coupling.module}` ({coupling.kind})" if coupling.module else _PLACES[coupling.module]
    what = "holds a number for each pair of samples" if coupling.is_pairwise else "depends on the other samples"
    return VerifyCause(
        kind, coupling.module or None, coupling.location, f"the result of `{coupling.operator}` {where} {what}"
    )


_PLACES: Final = {None: "in the loss", "": "in the model's own forward"}


def _confirmed(cause: VerifyCause) -> VerifyCause:
    evidence = f"{cause.evidence}; in evaluation mode the gradients are equal"
    return VerifyCause(cause.id, cause.module, cause.location, evidence)


_NOT_REPEATABLE: Final = VerifyCause(
    "not_repeatable", None, None, "two runs of the whole batch from one state and one seed give other gradients"
)
_LOSS_CAUSE: Final = VerifyCause(
    "loss", None, None, "no module mixes samples, so the loss is over the batch as a whole"
)
