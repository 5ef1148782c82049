"""Costs of an evaluation, of its graph, and of a prompt's logits: sizes run once more with one thing changed."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from oomdoctor.results import Outcome
from oomdoctor.search.trial_source import EvaluationGraph, EvaluationTooLarge

if TYPE_CHECKING:
    from oomdoctor.results import Trial, Variant
    from oomdoctor.trial.client import WorkerTrialSource


def weigh_graph(source: WorkerTrialSource, variant: Variant, micro_batch: int) -> None:
    """Note what the graph of an evaluation costs at a size that fits, where it builds one."""
    if not source.notes.builds_graph:
        return
    peaks = [
        _peak_of_evaluation(source.run_variation(micro_batch, without_graph=without).trial) for without in (False, True)
    ]
    source.notes.graph = EvaluationGraph(_evaluation_batch(variant) or micro_batch, *peaks)


def _peak_of_evaluation(trial: Trial) -> int:
    """Return the peak while evaluating, in bytes; of a trial that does nothing else, its own."""
    peak = trial.evaluation_peak_bytes
    return (trial.peak_allocated_bytes or 0) if peak is None else peak


def _evaluation_batch(variant: Variant) -> int | None:
    return variant.evaluation.micro_batch if variant.evaluation else None


def fits_without_evaluation(source: WorkerTrialSource, micro_batch: int, micro_steps: int) -> bool:
    """Return whether a size fits with all of the memory where nothing is evaluated between the training steps."""
    done = source.run_variation(micro_batch, micro_steps=micro_steps, without_evaluation=True)
    return done.trial.outcome is Outcome.FITS


def explain_evaluation(source: WorkerTrialSource, variant: Variant, ran_out: Trial) -> None:
    """Note what would fit instead, where the smallest size runs out in its evaluation or after it."""
    size, steps = ran_out.micro_batch, ran_out.micro_batches_per_step or 1
    trains = None
    if variant.mode == "train":
        if ran_out.evaluation_peak_bytes is None:
            return
        trains = fits_without_evaluation(source, size, steps)
    done = source.run_variation(size, micro_steps=steps, without_graph=True)
    source.notes.too_large = EvaluationTooLarge(
        size, _evaluation_batch(variant), trains, done.trial.outcome is Outcome.FITS
    )


def weigh_logits(source: WorkerTrialSource, variant: Variant, micro_batch: int) -> None:
    """Note what generating takes at a size that fits, and what all of the prompts' logits would take besides."""
    if variant.generation is None:
        return
    found = source.run_variation(micro_batch).generation
    if found is not None and found.logits_argument is not None:
        done = source.run_variation(micro_batch, all_logits=True)
        runs = done.trial.outcome is Outcome.FITS
        logits_bytes = done.generation.logits_bytes if runs and done.generation is not None else None
        found = replace(found, all_logits_bytes=logits_bytes, runs_without=runs)
    source.notes.generation = found
