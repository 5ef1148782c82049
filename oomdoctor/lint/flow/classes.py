"""The user's classes: what they stand on, and which methods they have."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from oomdoctor.lint.code.functions import Class
from oomdoctor.lint.flow import known
from oomdoctor.lint.flow.values import Kind

if TYPE_CHECKING:
    from oomdoctor.lint.code.functions import Function

_MOST_BASES: Final = 6
_MODEL_ENDINGS: Final = ("Module", "PreTrainedModel", "Model", "ModelMixin")


def find_method(class_: Class, name: str, depth: int = 0) -> Function | None:
    """A method of a class or of the bases that the repository has."""
    found = class_.methods.get(name)
    if found is not None or depth > _MOST_BASES:
        return found
    for base in bases_of(class_):
        found = find_method(base, name, depth + 1)
        if found is not None:
            return found
    return None


def bases_of(class_: Class) -> list[Class]:
    """The base classes that the repository has."""
    module, found = class_.module, []
    for name in class_.bases:
        base: Class | Function | None = module.classes.get(name)
        if base is None and module.project is not None:
            base = module.project.definition(name, module)
        if isinstance(base, Class) and base is not class_:
            found.append(base)
    return found


def roots_of(class_: Class, depth: int = 0) -> frozenset[str]:
    """Qualified names of the library's classes that a class stands on, through the repository's own bases."""
    found = set(class_.bases)
    if depth <= _MOST_BASES:
        for base in bases_of(class_):
            found |= roots_of(base, depth + 1)
    return frozenset(found)


def kind_of_class(class_: Class) -> Kind:
    """What an object of a user's class is, by what the class stands on."""
    roots = roots_of(class_)
    kind = next((known.BASE_KINDS[root] for root in roots if root in known.BASE_KINDS), None)
    if kind is None and any(root.rpartition(".")[2] in _MODEL_ENDINGS for root in roots):
        kind = Kind.MODEL
    if kind is None and any(root.endswith("LightningModule") for root in roots):
        kind = Kind.MODEL
    if kind is Kind.MODEL and known.CRITERION_CLASS.search(class_.name):
        return Kind.LOSS_FUNCTION
    return kind or Kind.UNKNOWN
