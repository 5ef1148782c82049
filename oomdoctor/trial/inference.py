"""Evaluate one batch, and generate tokens batch after batch in a loop of a fixed length. Runs in the worker.

A batch is evaluated by the file's own step, else by its training step without gradients. The loop that generates is
that of `generate()` in transformers without what decides by values: every prompt is of one length, each new token is
the likeliest, and none ends a sample early. A null GPU has no values, and the most memory is that of the longest
samples.
"""

from __future__ import annotations

import inspect
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, Final

import torch

from oomdoctor.errors import TargetError
from oomdoctor.results import GenerationMemory
from oomdoctor.target.placement import call_model, default_training_step, loss_in, tensors_in
from oomdoctor.trial.variants import autocast

if TYPE_CHECKING:
    from collections.abc import Iterator

    from oomdoctor.results import Generation
    from oomdoctor.trial.step import TrialSetup


@contextmanager
def evaluating(model: torch.nn.Module) -> Iterator[None]:
    """Put every module into evaluation mode, and back into the mode that it had."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, was_training in modes:
            module.training = was_training


class Evaluator:
    """Evaluates batches, and sees whether a graph is built for a backward that never comes.

    Args:
        setup: The model and how it runs.
        without_graph: Whether the file's own step runs under `torch.no_grad()` too, to learn what its graph costs.

    Attributes:
        builds_graph: Whether the model, or what the step returned, had a graph.
    """

    def __init__(self, setup: TrialSetup, *, without_graph: bool) -> None:
        self._setup = setup
        self._without_graph = without_graph
        self.builds_graph = False

    def run(self, batch: object) -> object:
        """Return what the caller of an evaluation holds until the next batch has been evaluated.

        That is what the file's `evaluation_step` returns; without one the model's output, or where the file has a
        training step of its own the loss.
        """
        watch = self._setup.model.register_forward_hook(self._watch)
        try:
            with self._setup.changes.forward(), autocast(self._setup.variant):
                output = self._evaluated(batch)
        finally:
            watch.remove()
        self._watch(None, None, output)
        return output

    def _evaluated(self, batch: object) -> object:
        target, model = self._setup.target, self._setup.model
        if target.evaluation_step is not None:
            with torch.no_grad() if self._without_graph else nullcontext():
                return target.evaluation_step(model, batch)
        with torch.no_grad():
            if target.training_step is default_training_step:
                return call_model(model, batch)
            output = target.training_step(model, batch)
        loss = loss_in(output)
        return output if loss is None else loss

    def _watch(self, _module: object, _inputs: object, output: object) -> None:
        self.builds_graph = self.builds_graph or any(tensor.grad_fn is not None for tensor in tensors_in(output))


_LOGITS_TO_KEEP: Final = ("logits_to_keep", "num_logits_to_keep")
"""Names of the argument by which a model computes logits of the last tokens only, in newer and older transformers."""
_LONGEST: Final = ("max_position_embeddings", "n_positions", "max_seq_len")
"""Names in a configuration of the most tokens that a sample may have."""


class GenerationLoop:
    """Generates for one batch after another.

    Args:
        setup: The model and how it runs.
        generation: How many tokens, and in what cache.
        all_logits: Whether the prompt's logits are computed for every token, although the model could leave them out.

    Raises:
        TargetError: The model is not one that generates so.
    """

    def __init__(self, setup: TrialSetup, generation: Generation, *, all_logits: bool) -> None:
        self._setup = setup
        self._generation = generation
        check_length(setup.model, generation)
        self._keep = logits_argument(setup.model)
        self._options: dict[str, int] = {} if self._keep is None or all_logits else {self._keep: 1}
        self._has_positions = "position_ids" in inspect.signature(setup.model.forward).parameters
        self._cache: Any = None
        self._mask = self._samples = torch.empty(0)
        self._logits_bytes = 0

    def prefill(self, micro_batch: int) -> torch.Tensor:
        """Compute the prompts' keys and values, and return the first new token of each sample.

        Returns:
            Tokens of shape (micro_batch, 1).
        """
        shape = (micro_batch, self._generation.prompt_tokens)
        self._samples = torch.zeros(shape, dtype=torch.long, device=self._setup.device)
        self._mask = torch.ones(shape, dtype=torch.long, device=self._setup.device)
        self._cache = self._empty_cache() if self._generation.cache == "static" else None
        output = self._forward(self._samples, self._mask.cumsum(-1) - 1, **self._options)
        self._logits_bytes = output.logits.nbytes
        return self._next(output)

    def decode(self, tokens: torch.Tensor) -> None:
        """Compute the other new tokens, each from the one before it."""
        for _ in range(self._generation.new_tokens - 1):
            self._mask = torch.cat([self._mask, self._mask.new_ones(len(tokens), 1)], dim=-1)
            tokens = self._next(self._forward(tokens, torch.full_like(tokens, self._mask.shape[1] - 1)))

    def end_batch(self, micro_batch: int) -> GenerationMemory:
        """Let go of the cache, and return what it and the prompt's logits took."""
        held = {tensor.data_ptr() or id(tensor): tensor.nbytes for tensor in _cached(self._cache)}
        self._cache, self._mask, self._samples = None, torch.empty(0), torch.empty(0)
        return GenerationMemory(
            micro_batch=micro_batch,
            cache_bytes=sum(held.values()),
            logits_bytes=self._logits_bytes,
            logits_argument=self._keep,
        )

    def _forward(self, tokens: torch.Tensor, positions: torch.Tensor, **options: int) -> Any:  # noqa: ANN401 - transformers' own
        # The mask is held as `generate()` does, and not given: models read of it that nothing is masked, a value.
        given = {"position_ids": positions} if self._has_positions else {}
        with self._setup.changes.forward(), autocast(self._setup.variant):
            output = self._setup.model(
                input_ids=tokens,
                past_key_values=self._cache,
                use_cache=True,
                **given,
                **options,
            )
        if getattr(output, "past_key_values", None) is None or not hasattr(output, "logits"):
            raise no_decoder(self._setup.model, "what its forward returns has no `logits` and `past_key_values`")
        return output

    def _next(self, output: Any) -> torch.Tensor:  # noqa: ANN401 - as above
        self._cache = output.past_key_values
        token: torch.Tensor = output.logits[:, -1].to(torch.float32, copy=True).argmax(-1, keepdim=True)
        self._samples = torch.cat([self._samples, token], dim=-1)
        return token

    def _empty_cache(self) -> Any:  # noqa: ANN401 - as above
        from transformers import StaticCache  # noqa: PLC0415 - a model that is asked so has it

        length = self._generation.prompt_tokens + self._generation.new_tokens
        config: Any = self._setup.model.config
        return StaticCache(config=config, max_cache_len=length)


def check_length(model: torch.nn.Module, generation: Generation) -> None:
    """See that a model takes prompt and new tokens, and is a decoder.

    Raises:
        TargetError: It does not.
    """
    parameters = inspect.signature(model.forward).parameters
    takes_any = any(each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters.values())
    if not takes_any and not {"input_ids", "past_key_values"} <= parameters.keys():
        raise no_decoder(model, "its forward takes no `input_ids` and `past_key_values`")
    config = getattr(model, "config", None)
    if getattr(config, "is_encoder_decoder", False):
        raise TargetError(
            f"`{type(model).__name__}` has an encoder, and `--mode generate` is for models that are decoders alone",
            hint="write its loop as `evaluation_step(model, batch)`, and probe it with `--mode eval`",
        )
    if generation.cache == "static" and config is None:
        raise TargetError(
            f"`{type(model).__name__}` has no `config`, from which a static cache is made",
            hint="leave `--cache static` out",
        )
    longest = next((size for name in _LONGEST if isinstance(size := getattr(config, name, None), int)), None)
    length = generation.prompt_tokens + generation.new_tokens
    if longest is not None and length > longest:
        raise TargetError(
            f"`{type(model).__name__}` takes {longest} tokens, and {generation.prompt_tokens} of the prompt and "
            f"{generation.new_tokens} new ones are {length}",
            hint="give fewer with `--prompt` or `--new-tokens`",
        )


def no_decoder(model: torch.nn.Module, why: str) -> TargetError:
    """Return the error of a model that does not generate tokens."""
    return TargetError(
        f"`{type(model).__name__}` cannot be asked for tokens: {why}",
        hint="`--mode generate` is for decoders as transformers has them, such as `hf:gpt2`; a loop of your own can be "
        "probed as `evaluation_step` with `--mode eval`",
    )


def logits_argument(model: torch.nn.Module) -> str | None:
    """Return the name of the argument by which a model computes only the last logits; None where it has none."""
    parameters = inspect.signature(model.forward).parameters
    return next((name for name in _LOGITS_TO_KEEP if name in parameters), None)


def _cached(cache: Any) -> Iterator[torch.Tensor]:  # noqa: ANN401 - transformers' own
    """Yield the tensors of a cache: a nest of tensors, or an object with layers that have them."""
    layers = getattr(cache, "layers", None)
    if layers is not None:
        cache = [vars(layer) for layer in layers]
    elif hasattr(cache, "key_cache"):
        cache = [cache.key_cache, cache.value_cache]
    return (tensor for tensor in tensors_in(cache) if tensor.is_cuda and tensor.dim() > 1)  # no counters
