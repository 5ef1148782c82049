"""The sentences of evaluating, also between training steps, and of generating."""

from __future__ import annotations

from typing import TYPE_CHECKING

from oomdoctor.units import format_size

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from oomdoctor.results import EvaluationMemory, GenerationMemory, ProbeResult, Variant


def mode_words(variant: Variant, varied: Collection[str] = ()) -> Iterator[str]:
    """Yield what was asked for besides training, such as `generation` and its tokens; nothing for training alone.

    Args:
        variant: The question's.
        varied: Names of sizes that have several values, which are told elsewhere.
    """
    if variant.mode == "eval":
        yield "evaluation"
    if (tokens := variant.generation) is not None:
        yield "generation"
        of_prompt, new = "prompt" not in varied, "new_tokens" not in varied
        if of_prompt and new:
            yield f"{tokens.prompt_tokens} + {tokens.new_tokens} tokens"
        elif of_prompt or new:
            yield f"{tokens.prompt_tokens} tokens of the prompt" if of_prompt else f"{tokens.new_tokens} new tokens"
        yield f"{tokens.cache} cache"
    if (evaluation := variant.evaluation) is not None:
        yield f"evaluation{f' of {evaluation.micro_batch}' if evaluation.micro_batch else ''} between steps"


def inference_rows(result: ProbeResult) -> Iterator[tuple[str, str]]:
    """Yield what is told of generating, or of an evaluation between training steps."""
    if result.generation is not None:
        yield from _generation(result.generation)
    if result.evaluation is not None:
        yield "evaluation", _evaluation(result.evaluation, result.micro_batch.maximum)


def _generation(found: GenerationMemory) -> Iterator[tuple[str, str]]:
    """Yield what generating takes besides the model at the maximum."""
    size = found.micro_batch
    logits = f"the prompts' logits {format_size(found.logits_bytes)}"
    yield "tokens", f"keys and values take {format_size(found.cache_bytes)} at the end with {size} samples, {logits}"
    if (name := found.logits_argument) is None:
        return
    if not found.runs_without:
        told = f"a loop without it runs out of memory with {size}"
    else:
        told = f"without it they are {format_size(found.all_logits_bytes or 0)}"
    yield "logits", f"of the last token alone, by `{name}=1` as `generate()` does; {told}"


def _evaluation(found: EvaluationMemory, maximum: int) -> str:
    """Return what an evaluation takes between two training steps, and whether it limits the size."""
    own, training = format_size(found.peak_allocated_bytes), format_size(found.training_peak_allocated_bytes)
    text = f"batches of {found.micro_batch} between training steps take {own} at their peak, the training {training}"
    if found.limited_by == "evaluation":
        return f"{text}; {maximum + 1} would fit without it"
    if found.limited_by == "next_step":
        return f"{text}; {maximum + 1} would fit without it, and after it the next training step runs out of memory"
    return f"{text}; the next training step still fits"


def evaluation_limit(found: EvaluationMemory) -> Iterator[str]:
    """Yield that an evaluation between training steps makes the largest size smaller, where it does."""
    if found.limited_by == "evaluation":
        yield "one more would fit without the evaluation between the training steps"
    if found.limited_by == "next_step":
        yield "one more would fit without the evaluation: the training step after it runs out of memory"
