"""What a file's model is asked for besides training: the part of a probe's question that is about that."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, get_args

from oomdoctor.errors import UsageError
from oomdoctor.option_values import one_of, with_value
from oomdoctor.results import EvaluationBetween, Generation
from oomdoctor.results.variant import CacheKind, Mode
from oomdoctor.units import LARGEST_MICRO_BATCH, positive_number

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from oomdoctor.option_values import Spelling
    from oomdoctor.results import SearchedSize

MODES: Final[tuple[Mode, ...]] = get_args(Mode)
CACHES: Final[tuple[CacheKind, ...]] = get_args(CacheKind)


def check_mode(mode: str, command: object, of_training: Sequence[str], spelled: Spelling) -> None:
    """See that a question about another mode than training holds nothing that only training has.

    Args:
        mode: The mode, as given.
        command: A command that is probed; None for a file.
        of_training: Options that were given and are for training alone, as their user writes them.
        spelled: How an error names a parameter.

    Raises:
        UsageError: It does.
    """
    if command is not None:
        hint = "give the command that evaluates, or put model and batch into a file; `oomdoctor init` writes one"
        raise UsageError(f"`{spelled('mode')}` is for files, and a command is given", hint=hint)
    for option in of_training:
        hint = f"drop it, or ask about training without `{spelled('mode')}`"
        raise UsageError(f"`{option}` is for training, and `{spelled('mode')}` asks for `{mode}`", hint=hint)


def build_generation(
    mode: Mode, prompt: int | None, new_tokens: int | None, cache: str | None, spelled: Spelling
) -> Generation | None:
    """Build what the mode `generate` needs; None for the other modes.

    Raises:
        UsageError: A number of tokens is missing or below 1, or one is given for another mode.
    """
    tokens = {"prompt": prompt, "new_tokens": new_tokens}
    given = [name for name, value in {**tokens, "cache": cache}.items() if value is not None]
    if mode != "generate":
        if given:
            hint = f"add `{with_value(spelled, 'mode', 'generate')}`, or drop this"
            raise UsageError(f"`{spelled(given[0])}` is for `{with_value(spelled, 'mode', 'generate')}`", hint=hint)
        return None
    for name, value in tokens.items():
        if value is None:
            hint = f"say how many tokens, as in `{with_value(spelled, name, 256)}`"
            raise UsageError(f"`{with_value(spelled, 'mode', 'generate')}` needs `{spelled(name)}`", hint=hint)
        positive_number(spelled(name), value)
    kind = one_of(spelled("cache"), "dynamic" if cache is None else cache, CACHES)
    return Generation(prompt or 1, new_tokens or 1, kind)


TOKENS: Final = ("prompt", "new_tokens")
"""Sizes of generating, which are given and varied as those of `make_batch` are for training."""


def generated_tokens(
    sizes: Mapping[str, int],
    searched: SearchedSize | None,
    prompt: int | None,
    new_tokens: int | None,
    spelled: Spelling,
) -> tuple[int | None, int | None]:
    """Return the tokens of the prompt and the new ones, given by an option, as a size, or as the one that is searched.

    Raises:
        UsageError: Another size is given, or one of these twice.
    """
    found = {"prompt": prompt, "new_tokens": new_tokens}
    given = dict(sizes) if searched is None else {**sizes, searched.name: searched.multiple_of}
    for name, size in given.items():
        if name not in TOKENS:
            hint = "they are `prompt` and `new_tokens`, since generating makes its own prompts; drop this one"
            raise UsageError(f"`{name}` is no size of `{with_value(spelled, 'mode', 'generate')}`", hint=hint)
        if found[name] is not None:
            raise UsageError(f"`{name}` is asked about twice", hint=f"drop `{spelled(name)}`, or the size")
        found[name] = size
    return found["prompt"], found["new_tokens"]


def build_evaluation(
    with_eval: bool | None,  # noqa: FBT001 - as the option is given
    eval_batch: int | None,
    command: object,
    searched: SearchedSize | None,
    spelled: Spelling,
) -> EvaluationBetween | None:
    """Build the evaluation between training steps; None where none is asked for.

    Raises:
        UsageError: A command is asked about, or a batch is given that is below 1 or of no evaluation.
    """
    option = spelled("eval_batch")
    if not with_eval:
        if eval_batch is not None:
            hint = f"add `{spelled('with_eval')}`, or drop this"
            raise UsageError(f"`{option}` is for `{spelled('with_eval')}`, which is missing", hint=hint)
        return None
    if command is not None:
        hint = "let the command evaluate between its steps, and give `--steps` that reach beyond its first evaluation"
        raise UsageError(f"`{spelled('with_eval')}` is for files, and a command is given", hint=hint)
    if eval_batch is None:
        return EvaluationBetween()
    if searched is not None:
        hint = f"drop it: an evaluation has the micro-batch of the training, at each {searched.name} that is tried"
        raise UsageError(f"`{option}` and `{spelled('largest')}` exclude each other", hint=hint)
    return EvaluationBetween(positive_number(option, eval_batch, LARGEST_MICRO_BATCH))
