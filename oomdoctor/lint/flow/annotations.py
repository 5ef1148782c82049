"""What a parameter's annotation says of it."""

from __future__ import annotations

import ast
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from oomdoctor.lint.code.functions import Class
from oomdoctor.lint.flow.classes import kind_of_class
from oomdoctor.lint.flow.values import Kind, Value

if TYPE_CHECKING:
    from collections.abc import Mapping

    from oomdoctor.lint.code.functions import Module

_KINDS: Final[Mapping[str, Kind]] = MappingProxyType(
    {
        "Module": Kind.MODEL,
        "PreTrainedModel": Kind.MODEL,
        "DistributedDataParallel": Kind.MODEL,
        "DataLoader": Kind.LOADER,
        "Optimizer": Kind.OPTIMIZER,
        "AdamW": Kind.OPTIMIZER,
        "LRScheduler": Kind.SCHEDULER,
        "_LRScheduler": Kind.SCHEDULER,
        "GradScaler": Kind.SCALER,
        "Tensor": Kind.TENSOR,
        "FloatTensor": Kind.TENSOR,
        "Accelerator": Kind.ACCELERATOR,
        "Fabric": Kind.FABRIC,
        "DeepSpeedEngine": Kind.ENGINE,
        "int": Kind.NUMBER,
        "float": Kind.NUMBER,
        "str": Kind.NUMBER,
        "bool": Kind.NUMBER,
        "ndarray": Kind.ARRAY,
    }
)
"""By the last part of the name of a class; only names of libraries and of Python itself are looked up."""
_PYTHONS: Final = frozenset({"int", "float", "str", "bool"})


def of_annotation(node: ast.expr, module: Module) -> Value | None:
    """What something with this annotation is; None where it does not say.

    Args:
        node: The annotation; a union with None, `Optional` and a text are looked into.
        module: The file, for what its names mean.
    """
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return _of_text(node.value, module)
    if isinstance(node, ast.BinOp):
        return of_annotation(node.left, module) or of_annotation(node.right, module)
    if isinstance(node, ast.Subscript):
        is_optional = isinstance(node.value, ast.Name | ast.Attribute) and ast.unparse(node.value).endswith("Optional")
        return of_annotation(node.slice, module) if is_optional else None
    if isinstance(node, ast.Name) and node.id in module.classes:
        return _of_class(module.classes[node.id])
    qualified = module.qualified(node)
    if qualified is None:
        kind = _KINDS.get(node.id) if isinstance(node, ast.Name) and node.id in _PYTHONS else None
        return None if kind is None else Value(kind=kind)
    kind = _KINDS.get(qualified.rpartition(".")[2])
    return _imported(qualified, module) if kind is None else Value(kind=kind)


def _of_text(text: str, module: Module) -> Value | None:
    try:
        return of_annotation(ast.parse(text, mode="eval").body, module)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _imported(qualified: str, module: Module) -> Value | None:
    definition = None if module.project is None else module.project.definition(qualified, module)
    return _of_class(definition) if isinstance(definition, Class) else None


def _of_class(class_: Class) -> Value:
    return Value(kind=kind_of_class(class_), class_=class_)
