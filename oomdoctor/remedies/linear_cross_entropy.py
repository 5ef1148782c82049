"""A linear layer and the cross entropy on it in one operator, which never holds all logits.

`fused_linear_cross_entropy()` does it for any forward inside of it: what the layer with the most outputs returns is
left to be computed until something asks for it. Where that is `cross_entropy`, PyTorch's `linear_cross_entropy`, or
that of liger-kernel or cut-cross-entropy, answers instead; where it is anything else, the layer computes as ever.
Views, slices and `.float()` on the way are followed.
"""

from __future__ import annotations

from contextlib import ContextDecorator
from importlib import import_module
from importlib.util import find_spec
from inspect import signature
from typing import TYPE_CHECKING, Any, Final, Self

import torch
import torch.nn.functional as F  # noqa: N812 - as everybody has it
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map

from oomdoctor.engines.null_gpu import library as null_gpu
from oomdoctor.remedies.blocks import repeated_blocks
from oomdoctor.remedies.change import Change, refuse
from oomdoctor.remedies.file_edit import FileEdit

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractContextManager

_KEEPS_ROWS: Final = ("view", "reshape", "flatten", "__getitem__")
_SAME: Final = ("contiguous", "float")
_ASKS: Final = ("size", "dim", "numel", "ndimension", "stride", "is_floating_point", "__get__", "__len__")
_LEAST_OUTPUTS: Final = 64
"""Fewer logits than these are no memory."""


class _Logits(torch.Tensor):
    """What a linear layer will return: a shape, until something but the cross entropy asks for the numbers."""

    hidden: torch.Tensor
    weight: torch.Tensor
    bias: torch.Tensor | None
    owner: fused_linear_cross_entropy
    computed: torch.Tensor | None

    def __new__(
        cls,
        hidden: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        dtype: torch.dtype,
        owner: fused_linear_cross_entropy,
    ) -> Self:
        shape = (*hidden.shape[:-1], weight.shape[0])
        made = torch.Tensor._make_wrapper_subclass(  # noqa: SLF001
            cls, shape, dtype=dtype, device=hidden.device, requires_grad=True
        )
        made.hidden, made.weight, made.bias, made.owner, made.computed = hidden, weight, bias, owner, None
        return made

    def numbers(self) -> torch.Tensor:
        """Compute them, once."""
        if self.computed is None:
            self.computed = F.linear(self.hidden, self.weight, self.bias)
        return self.computed

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]  # noqa: ANN401
        del types, args, kwargs
        raise refuse(f"the logits go into `{func}` below PyTorch's functions, where they cannot be left out")

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # noqa: ANN401
        del types
        kwargs = kwargs or {}
        name = getattr(function, "__name__", "")
        logits = args[0] if args and isinstance(args[0], cls) else None
        with torch._C.DisableTorchFunctionSubclass():  # noqa: SLF001 - torch's documented way
            if logits is None or logits.computed is not None:
                return function(*tree_map(_numbers, args), **tree_map(_numbers, kwargs))
            if name in _ASKS:
                return function(*args, **kwargs)
            if name in _SAME and not kwargs:
                return logits
            if name in _KEEPS_ROWS and (rows := _rows(logits, name, args[1:], kwargs)) is not None:
                return cls(rows, logits.weight, logits.bias, logits.dtype, logits.owner)
            if name == "cross_entropy" and (loss := _fused(logits, args[1:], kwargs)) is not None:
                logits.owner.fused += 1
                return loss
            return function(*tree_map(_numbers, args), **tree_map(_numbers, kwargs))


def _numbers(value: object) -> object:
    return value.numbers() if isinstance(value, _Logits) else value


def _rows(logits: _Logits, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.Tensor | None:
    """Return the layer's inputs after a view or slice that leaves whole rows of logits; None for any other."""
    shape = getattr(torch.empty(logits.shape, device="meta"), name)(*args, **kwargs).shape
    if not shape or shape[-1] != logits.shape[-1]:
        return None
    if name != "__getitem__":
        return logits.hidden.reshape(*shape[:-1], logits.hidden.shape[-1])
    rows = logits.hidden[args[0]]
    return rows if rows.shape == (*shape[:-1], logits.hidden.shape[-1]) else None


def _fused(logits: _Logits, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.Tensor | None:
    """Return the loss; None where it is one that PyTorch fuses not."""
    names = ("target", "weight", "size_average", "ignore_index", "reduce", "reduction", "label_smoothing")
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    target = given.pop("target")
    if target.is_floating_point() or logits.dim() != 2 or given.pop("size_average", None) or given.pop("reduce", None):  # noqa: PLR2004
        return None
    hidden, weight, bias = logits.hidden, logits.weight, logits.bias
    if torch.is_autocast_enabled(hidden.device.type):
        dtype = torch.get_autocast_dtype(hidden.device.type)
        hidden, weight, bias = hidden.to(dtype), weight.to(dtype), None if bias is None else bias.to(dtype)
    if torch._C._len_torch_dispatch_stack() and null_gpu.is_null_gpu():  # noqa: SLF001 - no public way
        # Under a dispatch mode PyTorch finds no kernel of a custom operator for a tensor whose values are kept.
        target = torch.empty(target.shape, dtype=target.dtype, device=target.device)
    return _LIBRARIES[logits.owner.library](hidden, weight, target, bias, given)


def _by_torch(
    hidden: torch.Tensor, weight: torch.Tensor, target: torch.Tensor, bias: torch.Tensor | None, given: dict[str, Any]
) -> torch.Tensor | None:
    options = torch.nn.LinearCrossEntropyOptions()
    loss: torch.Tensor = F.linear_cross_entropy(hidden, weight, target, linear_bias=bias, options=options, **given)
    return loss


def _by_liger(
    hidden: torch.Tensor, weight: torch.Tensor, target: torch.Tensor, bias: torch.Tensor | None, given: dict[str, Any]
) -> torch.Tensor | None:
    functions = import_module("liger_kernel.transformers.functional")
    class_weight = given.pop("weight", None)
    loss: torch.Tensor = functions.liger_fused_linear_cross_entropy(
        hidden, weight, target, bias=bias, ce_weight=class_weight, **given
    )
    return loss


def _by_cut(
    hidden: torch.Tensor, weight: torch.Tensor, target: torch.Tensor, bias: torch.Tensor | None, given: dict[str, Any]
) -> torch.Tensor | None:
    if given.pop("weight", None) is not None or given.pop("label_smoothing", 0.0):
        return None  # it knows neither
    if hidden.is_cuda and hidden.dtype not in (torch.float16, torch.bfloat16):
        raise refuse(
            f"its backward takes float16 and bfloat16 alone, and the last layer's input is "
            f"{str(hidden.dtype).removeprefix('torch.')}; it goes with `--precision bf16`"
        )
    function = import_module("cut_cross_entropy").linear_cross_entropy
    if bias is not None:
        given["bias"] = bias
        if "bias" not in signature(function).parameters:
            raise refuse("the layer has a bias, which this release of cut-cross-entropy does not take")
    loss: torch.Tensor = function(hidden, weight, target, **given)
    return loss


_LIBRARIES: Final = {"torch": _by_torch, "liger_kernel": _by_liger, "cut_cross_entropy": _by_cut}
"""Functions that compute the loss in pieces, by the module that has them."""


class fused_linear_cross_entropy(TorchFunctionMode, ContextDecorator):  # noqa: N801 - it is used as a function
    """Have the cross entropy on a large linear layer's output never hold all logits; a context and a decorator.

        @fused_linear_cross_entropy(outputs=50257)
        def training_step(model, batch): ...

    Needs a PyTorch with `torch.nn.LinearCrossEntropyOptions`, or another library. The gradient is that of the two
    operators but for rounding.

    Args:
        outputs: Outputs of the layer; several where it may be one or another.
        library: What computes it: `torch`, `liger_kernel` or `cut_cross_entropy`.

    Attributes:
        fused: How often the two were one.
    """

    def __init__(self, outputs: int | Sequence[int], library: str = "torch") -> None:
        super().__init__()
        self.outputs = (outputs,) if isinstance(outputs, int) else tuple(outputs)
        self.library = library
        self.fused = 0

    def _recreate_cm(self) -> Self:
        return type(self)(self.outputs, self.library)  # of one that is inside of itself, torch would lose the outer

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # noqa: ANN401
        """Leave the layer's output to be computed; call everything else."""
        del types
        kwargs = kwargs or {}
        if function is F.linear and torch.is_grad_enabled():
            hidden, weight, bias = _layer(*args, **kwargs)
            if weight.shape[0] in self.outputs and not any(isinstance(item, _Logits) for item in (hidden, weight)):
                kind = hidden.device.type
                dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else hidden.dtype
                return _Logits(hidden, weight, bias, dtype, self)
        return function(*args, **kwargs)


def _layer(
    input: torch.Tensor,  # noqa: A002 - as `torch.nn.functional.linear` has it
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    return input, weight, bias


class FuseLinearCrossEntropy(Change):
    """`fused_linear_cross_entropy` around each forward."""

    library = "torch"
    _mode: fused_linear_cross_entropy

    def model(self, model: torch.nn.Module) -> torch.nn.Module:
        """Find layers with many outputs outside of the repeated blocks; nothing is changed in the model."""
        self.check_library()
        self._outputs = _most_outputs(model)
        if not self._outputs:
            raise refuse(f"no linear layer has as many as {_LEAST_OUTPUTS} outputs")
        self.acts_on = f"the linear layer with {self._named_outputs} outputs and the `cross_entropy` on it"
        self.count = self.total = 1
        return model

    @property
    def _named_outputs(self) -> str:
        return " or ".join(map(str, self._outputs))

    def check_library(self) -> None:
        """See that the loss can be had.

        Raises:
            NotApplicableError: It cannot.
        """
        if not hasattr(torch.nn, "LinearCrossEntropyOptions") or not hasattr(F, "linear_cross_entropy"):
            raise refuse(
                f"PyTorch {torch.__version__} has no `linear_cross_entropy` that goes in pieces; "
                "`LigerFusedLinearCrossEntropyLoss` of liger-kernel does the same"
            )

    def forward(self) -> AbstractContextManager[object]:
        """Return a context of its own for each forward."""
        self._mode = fused_linear_cross_entropy(self._outputs, self.library)
        return self._mode

    def check_forward(self) -> None:
        """See that the two were one."""
        if not self._mode.fused:
            raise refuse(
                f"no output of a linear layer with {self._named_outputs} outputs goes straight into `cross_entropy`"
            )

    def edit(self) -> FileEdit:
        """Return a decorator of `training_step`."""
        library = "" if self.library == "torch" else f', library="{self.library}"'
        outputs = self._outputs[0] if len(self._outputs) == 1 else self._outputs
        return FileEdit(
            imports=("from oomdoctor.remedies.linear_cross_entropy import fused_linear_cross_entropy",),
            decorators=(f"fused_linear_cross_entropy(outputs={outputs}{library})",),
        )


def _most_outputs(model: torch.nn.Module) -> tuple[int, ...]:
    """Return the outputs of the last layer: blocks may have wider ones, and their outputs are no logits.

    Its weight may be an embedding's or a parameter of any module; where the largest is, it may as well be an input's,
    and the widest linear layer the last.
    """
    inside = {id(parameter) for _, block in repeated_blocks(model) for parameter in block.parameters()}
    matrices = [parameter for parameter in model.parameters() if parameter.dim() == 2]  # noqa: PLR2004
    outside = [matrix for matrix in matrices if id(matrix) not in inside] or matrices
    layers = {id(module.weight) for module in model.modules() if isinstance(module, torch.nn.Linear)}
    widest = max((matrix.shape[0] for matrix in outside), default=0)
    widest_layer = max((matrix.shape[0] for matrix in outside if id(matrix) in layers), default=0)
    return tuple(dict.fromkeys(outputs for outputs in (widest, widest_layer) if outputs >= _LEAST_OUTPUTS))


class FuseByLiger(FuseLinearCrossEntropy):
    """The same by the kernels of liger-kernel."""

    library = "liger_kernel"

    def check_library(self) -> None:
        """See that it is installed."""
        if find_spec(self.library) is None:
            raise refuse(f"`{self.library}` is not installed")


class FuseByCutCrossEntropy(FuseByLiger):
    """The same by the kernels of cut-cross-entropy."""

    library = "cut_cross_entropy"
