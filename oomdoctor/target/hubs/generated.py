"""A generated target: its source, with each choice and where it is from, and what every hub needs to write one."""

from __future__ import annotations

import importlib
import math
import textwrap
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import torch

from oomdoctor.errors import NoAnswerError, TargetError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import ModuleType

    from oomdoctor.target.reference import Reference

_LIBRARIES: Final = {"transformers": "transformers", "timm": "timm", "torchvision": "torchvision"}
IMAGE_LOSS: Final = """\
def training_step(model, batch):
    images, labels = batch
    return torch.nn.functional.cross_entropy(model(images), labels)
"""


@dataclass(frozen=True, slots=True)
class GeneratedTarget:
    """A file that the four functions are in.

    Attributes:
        shorthand: The target that it is for, as typed.
        choices: What was chosen, by its name, with where it is from.
        body: The imports and functions.
    """

    shorthand: str
    choices: Mapping[str, str]
    body: str

    @property
    def source(self) -> str:
        """Return the whole file."""
        lines = [f"`{self.shorthand}` as a target of oomdoctor.", "", "What was chosen, and where it is from:", ""]
        for name, text in self.choices.items():
            lines += textwrap.wrap(f"- {name}: {text}", 116, subsequent_indent="  ", break_on_hyphens=False)
        text = "\n".join(lines).replace("\\", "\\\\").replace('"""', "'''")
        return f'"""{text}\n"""\n\n{self.body.strip()}\n'


def library(name: str, reference: Reference) -> ModuleType:
    """Import a library of models.

    Raises:
        NoAnswerError: It is not installed, or cannot be imported beside this torch.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        missing = isinstance(error, ModuleNotFoundError) and error.name == name
        problem = f"{name} is not installed" if missing else f"{name} cannot be imported: {error}"
    raise NoAnswerError(
        f"`{reference.text}` needs {name}: {problem}", hint=f"install it beside torch: `pip install {_LIBRARIES[name]}`"
    )


def without_memory(build: Callable[[], Any]) -> Any:  # noqa: ANN401 - a model of any library
    """Return a model without the memory of its weights where it can be built so, else as it is."""
    try:
        with torch.device("meta"):
            return build()
    except Exception:  # noqa: BLE001 - what cannot be built so may be built with memory, whose error is told
        return build()


def called(name: str, *arguments: object, **keywords: object) -> str:
    """Return a call as source; texts of `Raw` stand as they are."""
    parts = [*map(literal, arguments), *(f"{key}={literal(value)}" for key, value in keywords.items())]
    return f"{name}({', '.join(parts)})"


def literal(value: object) -> str:
    """Return a value as source, with the quotes that formatters write; infinity and NaN are calls."""
    match value:
        case float() if not math.isfinite(value):
            return f'float("{value}")'
        case dict():
            return "{" + ", ".join(f"{literal(key)}: {literal(item)}" for key, item in value.items()) + "}"
        case list():
            return f"[{', '.join(map(literal, value))}]"
        case tuple():
            return f"({', '.join(map(literal, value))}{',' * (len(value) == 1)})"
    text = repr(value)
    return text if '"' in text or "\\" in text else text.replace("'", '"')


class Raw(str):
    """Source that is not quoted."""

    __slots__ = ()

    def __repr__(self) -> str:
        """Return it as it is."""
        return str(self)


def whole(name: str, value: object, reference: Reference) -> int:
    """Return a size that was given as a keyword.

    Raises:
        TargetError: It is none.
    """
    if isinstance(value, int) and not isinstance(value, bool) and value > 0:
        return value
    raise TargetError(
        f"`{name}` of `{reference.text}` is {value!r}, not a whole number above 0", hint=f"give one: `{name}=256`"
    )


def refused(reference: Reference, why: str) -> TargetError:
    """Return the error for a model of which no file can be generated."""
    return TargetError(
        f"`{reference.location}` cannot be a target by its name: {why}",
        hint="write a file for it with the two functions `build_model` and `make_batch`; "
        "`oomdoctor init timm:resnet50 > model.py` writes one to begin with",
    )
