"""Shorthands of models that a library knows by name: `timm:resnet50`, `torchvision:resnet50`, `hf:DIRECTORY_OR_ID`."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from oomdoctor.errors import TargetError

HUBS: Final = ("timm", "torchvision", "hf", "lightning")
_SHORTHAND: Final = re.compile(
    rf"(?P<hub>{'|'.join(HUBS)}):(?P<name>.*?)\s*(?:\((?P<arguments>[^()]*(?:\(.*\)[^()]*)*)\))?", re.DOTALL
)
_NAMES: Final = {
    "timm": (r"\w[\w.\-]*", "a model of `timm.list_models()`, such as `timm:resnet50`"),
    "torchvision": (r"\w+", "a model of `torchvision.models.list_models()`, such as `torchvision:resnet50`"),
    "hf": (r"[^\0]+", "a directory with a `config.json`, or a model's id on the hub, such as `hf:bert-base-uncased`"),
    "lightning": (
        r"[^\W\d]\w*(?:\.[^\W\d]\w*)+",
        "a LightningModule with its module's name, such as `lightning:package.module.Classifier`",
    ),
}
"""What a name of each hub looks like, as an expression and in words."""


class Shorthand(NamedTuple):
    """A shorthand, taken apart.

    Attributes:
        hub: One of `HUBS`.
        name: The model's name there.
        arguments: Source of its keywords as between the parentheses; None without parentheses.
    """

    hub: str
    name: str
    arguments: str | None


def read_shorthand(text: str) -> Shorthand | None:
    """Take a shorthand apart; None for another kind of target.

    Raises:
        TargetError: What follows the colon can be no name there.
    """
    match = _SHORTHAND.fullmatch(text)
    if match is None:
        return None
    hub, name = match["hub"], match["name"].strip()
    pattern, meaning = _NAMES[hub]
    if not re.fullmatch(pattern, name):
        raise TargetError(
            f"`{name}` is no model's name for `{hub}:`" if name else f"`{hub}:` names no model",
            hint=f"it takes {meaning}; a file of your own that is called `{hub}.py` goes by that name",
        )
    return Shorthand(hub, name, match["arguments"])
