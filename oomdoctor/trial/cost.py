"""What a step costs: what a forward and backward compute and touch, counted, and the time of optimizer steps.

Operators are counted as PyTorch dispatches them. Floating-point operations are counted by PyTorch's own formulas
(`torch.utils.flop_counter`) and some more; bytes are those of each operator's inputs and outputs, once an operator. An
operator that is neither known to multiply nor known not to makes the count unknown. Time is measured on a real GPU
alone, by its own clock: a null GPU runs nothing, and has no true time. Runs in the worker.
"""

from __future__ import annotations

import re
import time
import traceback
from collections import Counter
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING, Any, Final

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from oomdoctor.agent.oom_errors import walk_chain
from oomdoctor.errors import NoAnswerError
from oomdoctor.oom.classifier import classify
from oomdoctor.results import Outcome
from oomdoctor.results.prescribe import StepCost
from oomdoctor.search.throughput import TIMED_STEPS, WARM_STEPS
from oomdoctor.target.contract import make_one_batch
from oomdoctor.target.placement import place
from oomdoctor.trial.device import begin_trial
from oomdoctor.trial.step import loss_of, train_once
from oomdoctor.trial.trial import release_memory, set_memory_limit
from oomdoctor.trial.variants import gradient_scaler, make_optimizer

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch._ops import OpOverload

    from oomdoctor.trial.protocol import TimeStep
    from oomdoctor.trial.step import TrialSetup

# Beginnings of the names of operators in `aten` that multiply no matrices; those with the tag `pointwise` need no name.
_WITHOUT_PRODUCTS: Final = re.compile(
    "_?(?:adaptive_)?(?:max|avg)_pool|_?(?:safe_|log_)?softmax|_?foreach_|_?fused_(?:ada|sgd|dropout|rms)|_?unsafe_|"
    "_?(?:native|cudnn|miopen)?_?(?:batch|layer|group|rms|instance)_norm|_?to_copy|_?reshape_|_local_scalar|_assert|"
    "_cudnn_init|_?(?:new|embedding|nll_loss|masked|index|gather|scatter|segment|upsample|native_dropout|pad|weight_norm)|"
    "select|slice|diagonal|unfold|as_strided|set|resize|cat|stack|split|clone|copy|detach|lift|alias|repeat|roll|flip|"
    "zeros|ones|empty|full|fill|zero|eye|arange|linspace|rand|normal|uniform|bernoulli|multinomial|exponential|random|"
    "sum|mean|var|std|max|min|arg|amax|amin|aminmax|any|all|prod|cum|logcumsum|sort|topk|kthvalue|median|mode|unique|"
    "nonzero|count|bincount|hist|searchsorted|bucketize|where|tril|triu|linalg_vector_norm|norm|logsumexp|equal|is|"
    "constant_pad|reflection_pad|replication_pad|im2col|col2im|pixel_|channel_shuffle|grid_sampler|one_hot|glu|"
    "scalar_tensor|floor_divide|hardswish|hardsigmoid|hardtanh|hardshrink|softshrink|"
    "binary_cross|mse_|l1_|smooth_|huber|kl_div|ctc_loss|_ctc_loss|item|view|contiguous|record_stream|_thnn_fused|"
    "_efficientzerotensor|_nested_|_conj|_neg_view|_amp_|_has_|_pin|is_pinned|_resize|_chunk|_stack|_cat"
)
_RUNS_OPERATORS: Final = ("torch_nn::_linear_cross_entropy_batch_chunked",)
"""Operators whose kernels are Python that calls other operators, which are counted instead."""
_LOOKUPS: Final = ("embedding", "index_select", "index", "gather")
"""Operators that read as much of their first tensor as they return."""
_WARM_STEPS, _TIMED_STEPS = 2, 5


@dataclass
class CostCounter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the operators that are dispatched inside of it.

    Attributes:
        flops: Floating-point operations of products; a product of `m x k` with `k x n` has `2 m k n`.
        touched_bytes: Bytes of each operator's inputs and outputs.
        score_bytes: Bytes of the largest matrix of attention scores that a softmax was taken of.
        unknown: Names of operators without a known count.
        flops_by_type: The floating-point operations by the type of the numbers that are multiplied.
    """

    flops: int = 0
    touched_bytes: int = 0
    score_bytes: int = 0
    unknown: set[str] = field(default_factory=set)
    flops_by_type: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def __torch_dispatch__(self, func: OpOverload, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # noqa: ANN401
        """Run an operator and count it."""
        del types
        kwargs = kwargs or {}
        if func._schema.name in _RUNS_OPERATORS:  # noqa: SLF001 - the operator's public name lacks the namespace
            device = next(leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)).device
            key = getattr(torch._C.DispatchKey, device.type.upper())  # noqa: SLF001 - no public way below the mode
            with self:
                return func.redispatch(torch._C.DispatchKeySet(key), *args, **kwargs)  # noqa: SLF001 - as above
        result = func(*args, **kwargs)
        self._count(func, args, kwargs, result)
        return result

    def _count(self, func: OpOverload, args: Any, kwargs: Any, result: Any) -> None:  # noqa: ANN401 - an operator's
        if func.is_view:
            return
        namespace, _, name = func._schema.name.partition("::")  # noqa: SLF001 - as above
        # What works in place has the formula of what does not.
        plain = getattr(torch.ops.aten, name.rstrip("_"), None) if namespace == "aten" else func.overloadpacket
        formula = flop_registry.get(plain) or _FORMULAS.get(name.rstrip("_"))
        if formula is not None:
            operations = int(formula(*args, **kwargs, out_val=result))
            self.flops += operations
            self.flops_by_type[_type_of(args)] += operations
        elif torch.Tag.pointwise not in func.tags and not (
            namespace in ("aten", "prims") and _WITHOUT_PRODUCTS.match(name)
        ):
            self.unknown.add(func._schema.name)  # noqa: SLF001 - as above
        if name == "_softmax" and result.dim() >= 3 and result.shape[-1] == result.shape[-2]:  # noqa: PLR2004
            self.score_bytes = max(self.score_bytes, result.nbytes)
        if not name.startswith("empty") and name not in ("new_empty", "set_", "_unsafe_view"):
            given = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
            returned = sum(_size(leaf) for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor))
            if name in _LOOKUPS:
                given = given[1:]
                returned *= 2
            self.touched_bytes += returned + sum(map(_size, given))


def _type_of(args: Any) -> str:  # noqa: ANN401 - an operator's
    """Return the type of the numbers that an operator multiplies, such as `float32`."""
    types = (leaf.dtype for leaf in tree_leaves(args) if isinstance(leaf, torch.Tensor) and leaf.is_floating_point())
    return str(next(types, "unknown")).removeprefix("torch.")


def _size(tensor: torch.Tensor) -> int:
    """Return bytes that a tensor takes; of one that is expanded, those of its storage."""
    try:
        return min(tensor.nbytes, tensor.untyped_storage().nbytes())
    except (RuntimeError, NotImplementedError):  # a kind of tensor without a storage of its own
        return tensor.nbytes


def _recurrent(rows: torch.Tensor, weights: list[torch.Tensor], *_: object, **__: object) -> int:
    """Return operations of a recurrent layer: each row of its input meets each weight once."""
    return 2 * (rows.numel() // rows.shape[-1]) * sum(weight.numel() for weight in weights if weight.dim() > 1)


def _grouped(rows: torch.Tensor, columns: torch.Tensor, *_: object, **__: object) -> int:
    """Return operations of products in groups: each row meets the columns of its own group alone."""
    groups = rows.shape[0] if (rows.dim(), columns.dim()) == (3, 2) else 1
    return 2 * (rows.numel() // groups) * columns.shape[-1]


def _recurrent_backward(*args: Any, **kwargs: Any) -> int:  # noqa: ANN401 - an operator's
    return 2 * _recurrent(*args, **kwargs)


_FORMULAS: Final[dict[str, Callable[..., int]]] = {
    "_grouped_mm": _grouped,
    "_cudnn_rnn": _recurrent,
    "_cudnn_rnn_backward": _recurrent_backward,
    "dot": lambda one, *_, **__: 2 * one.numel(),
    "vdot": lambda one, *_, **__: 2 * one.numel(),
    "mv": lambda matrix, *_, **__: 2 * matrix.numel(),
    "addmv": lambda _, matrix, *__, **___: 2 * matrix.numel(),
    "addr": lambda _, one, other, *__, **___: 2 * one.numel() * other.numel(),
}


def count_cost(setup: TrialSetup, micro_batch: int) -> StepCost:
    """Run one forward and backward, count it, and leave its memory as it is.

    Args:
        setup: The model and how it trains.
        micro_batch: A size that fits.

    Raises:
        NoAnswerError: Counting keeps tensors a moment longer than the step alone does, and there is no room for that.
        Exception: What the user's code raises.
    """
    try:
        with CostCounter() as counter:
            train_once(setup, micro_batch)
    except Exception as error:
        if classify(error).outcome is Outcome.FAILED:
            raise
        raise NoAnswerError(f"counting micro-batch {micro_batch} runs out of memory") from None
    is_known = not counter.unknown
    return StepCost(
        micro_batch=micro_batch,
        flops=counter.flops if is_known else None,
        touched_bytes=counter.touched_bytes if is_known else None,
        score_bytes=counter.score_bytes,
        unknown=tuple(sorted(counter.unknown)),
        seconds=_timed(setup, micro_batch) if setup.computes else None,
        flops_by_type=dict(counter.flops_by_type) if is_known else {},
    )


def _timed(setup: TrialSetup, micro_batch: int) -> float:
    """Return seconds of a forward and backward on a real GPU: the median of some, after some to warm up."""
    seconds = []
    for _ in range(_WARM_STEPS + _TIMED_STEPS):
        torch.cuda.synchronize()
        started = time.perf_counter()
        train_once(setup, micro_batch)
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - started)
    return median(seconds[_WARM_STEPS:])


def time_step(setup: TrialSetup, question: TimeStep) -> float | None:
    """Return the seconds of one whole optimizer step, and leave memory as it was.

    Batches are made before the clock runs, as a loader makes them beside the training; they go to the device within it.

    Args:
        setup: The model and how it trains.
        question: The micro-batches of the step, and the memory that is allowed.

    Returns:
        The seconds; None where memory runs out.

    Raises:
        Exception: What else the user's code raises.
    """
    begin_trial()
    set_memory_limit(question.allowed_bytes)
    batches = {size: setup.changes.batch(make_one_batch(setup.target, size)) for size in {*question.micro_batches}}
    try:
        return _seconds(setup, batches, question.micro_batches)
    except Exception as error:
        if classify(error).outcome is not Outcome.OOM:
            raise
        for link in walk_chain(error):
            traceback.clear_frames(link.__traceback__)
        return None
    finally:
        setup.changes.end()
        release_memory(setup.model)


def _seconds(setup: TrialSetup, batches: Mapping[int, object], sizes: Sequence[int]) -> float:
    optimizer = setup.changes.optimizer(make_optimizer(setup.target, setup.model, setup.variant.optimizer))
    scaler = gradient_scaler(setup.variant)
    marks = []
    for step in range(WARM_STEPS + TIMED_STEPS + 1):
        if step >= WARM_STEPS:
            marks.append(torch.cuda.Event(enable_timing=True))  # type: ignore[no-untyped-call]
            marks[-1].record()
        if step < WARM_STEPS + TIMED_STEPS:
            _accumulate(setup, scaler, batches, sizes)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad(set_to_none=True)
    torch.cuda.synchronize()
    milliseconds: float = median(first.elapsed_time(second) for first, second in pairwise(marks))
    return milliseconds / 1000


def _accumulate(
    setup: TrialSetup, scaler: torch.amp.GradScaler, batches: Mapping[int, object], sizes: Sequence[int]
) -> None:
    samples = sum(sizes)
    for size in sizes:
        loss = loss_of(setup, place(batches[size], setup.device))
        scaler.scale(loss * (size / samples)).backward()  # type: ignore[no-untyped-call]
