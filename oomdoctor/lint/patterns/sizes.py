"""How large a tensor is for what it was computed from: an output itself, or a few numbers a sample or a batch."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING, Final

from oomdoctor.lint.code.walking import walk

if TYPE_CHECKING:
    from collections.abc import Iterator

    from oomdoctor.lint.code.functions import Function, Module

_SMALL: Final = frozenset(
    {
        "argmax", "argmin", "max", "min", "amax", "amin", "topk", "mode", "median", "mean", "sum", "prod", "std", "var",
        "norm", "numel", "any", "all", "eq", "ne", "item", "tolist", "gather", "cross_entropy", "nll_loss", "mse_loss",
        "cosine_similarity", "squeeze", "flatten_loss", "bincount", "histc", "nonzero", "multinomial", "batch_decode",
        "count_nonzero", "logsumexp", "square_error", "einsum", "where", "masked_select", "max_memory_allocated",
    }
)  # fmt: skip
"""Calls after which a few numbers a sample, or fewer, are left; or that may leave so few."""
_LOSS: Final = re.compile(
    r"loss|criterion|(?:^|_)(?:nll|acc|accuracy|metric|score|error|err|dice|iou|psnr|ssim)(?:$|_)", re.IGNORECASE
)
_MOST_NAMES: Final = 4


def may_be_small(node: ast.expr | None, module: Module, function: Function | None, names: int = 0) -> bool:
    """Whether an expression may come down to a few numbers a sample.

    Args:
        node: What made the tensor; what is not known may be small.
        module: The file it stands in.
        function: The function, for what its names were last set to.
        names: How many names led here.
    """
    if node is None:
        return True
    return any(_is_small(step, module, function, names) for step in _steps(node))


def _steps(node: ast.expr) -> Iterator[ast.expr]:
    """An expression and what it is taken from: `model(x).logits` and `model(x)`; arguments are not looked at."""
    while True:
        yield node
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and _last(node) not in ("cat", "stack"):
            node = node.func.value
        elif isinstance(node, ast.Attribute | ast.Subscript | ast.Starred):
            node = node.value
        else:
            return


def _is_small(node: ast.expr, module: Module, function: Function | None, names: int) -> bool:
    if isinstance(node, ast.Name):
        made = _last_set(node, module, function) if names < _MOST_NAMES else None
        is_loss = _LOSS.search(node.id) is not None
        return is_loss or (made is not None and may_be_small(made, module, function, names + 1))
    if isinstance(node, ast.Call):
        return _last(node) in _SMALL or _LOSS.search(_last(node)) is not None
    if isinstance(node, ast.Attribute):
        return node.attr in ("loss", "indices", "shape")
    if isinstance(node, ast.Subscript):
        return _is_one_column(node.slice)
    return isinstance(node, ast.Compare)


def _last(call: ast.Call) -> str:
    function = call.func
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def _is_one_column(index: ast.expr) -> bool:
    """Whether an index picks one of many: `[:, 1]`, `[0]`; `["out"]` and `[-1]` pick a part of the output."""
    parts = index.elts if isinstance(index, ast.Tuple) else []
    return len(parts) > 1 and any(isinstance(part, ast.Constant | ast.UnaryOp) for part in parts[1:])


def _last_set(name: ast.Name, module: Module, function: Function | None) -> ast.expr | None:
    """What a name was set to last above where it stands; None where it was not, or to itself."""
    scope = module.tree if function is None else function.node
    found = None
    for node in walk(scope):
        if isinstance(node, ast.Assign) and node.lineno < name.lineno and _sets(node, name.id):
            found = node.value if found is None or node.lineno > found.lineno else found
    return found


def _sets(node: ast.Assign, name: str) -> bool:
    return any(isinstance(target, ast.Name) and target.id == name for target in node.targets)
